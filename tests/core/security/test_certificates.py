"""Files of certificates: what is refused at the start and what is kept while they change."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key

from sentiment.errors import BadSettings
from sentiment.observability.metrics import Metrics
from sentiment.security import certificates
from sentiment.security.certificates import Certificates, Contents, TlsFiles, reloaded_certificates
from sentiment.security.reloaded import Reloaded
from sentiment.security.secret_files import FILE_BYTES_MAX
from sentiment.security.secured import Secured
from sentiment.settings import Settings
from tests.core.security.authorities import A_DAY, Authority, Key, Mounted, mounted_pair

AUTHORITY = Authority()


def read(folder: Path, client_ca: bool = False) -> Reloaded[Contents, Certificates]:
    return reloaded_certificates(TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt" if client_ca else None))


def test_a_secret_that_is_replaced_is_loaded_with_its_expiry(tmp_path: Path) -> None:
    first, second = AUTHORITY.sign(lasts=timedelta(hours=7)), AUTHORITY.sign(lasts=2 * A_DAY)
    tls = mounted_pair(tmp_path / "tls", first, AUTHORITY)
    source = read(tls.folder)
    assert source.now.expires_at == first.expires_at

    tls.exchange(tls_crt=second.certificate, tls_key=second.key, ca_crt=AUTHORITY.certificate)

    assert source.look()
    assert source.now.contents.certificate == second.certificate
    assert source.now.expires_at == second.expires_at


def test_files_that_have_not_changed_are_not_loaded_again(tmp_path: Path) -> None:
    source = read(mounted_pair(tmp_path / "tls", AUTHORITY.sign(), AUTHORITY).folder)
    first = source.now

    with structlog.testing.capture_logs() as logged:
        useful = source.look()

    assert (useful, source.now is first, logged) == (True, True, [])


def test_files_that_change_while_they_are_read_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (AUTHORITY.sign() for _ in range(3))
    tls = mounted_pair(tmp_path / "tls", first, AUTHORITY)
    source = read(tls.folder)
    prove = certificates._expires_at

    def exchanged_meanwhile(*arguments: Any) -> float:
        tls.exchange(tls_crt=third.certificate, tls_key=third.key, ca_crt=AUTHORITY.certificate)
        return prove(*arguments)

    tls.exchange(tls_crt=second.certificate, tls_key=second.key, ca_crt=AUTHORITY.certificate)
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_expires_at", exchanged_meanwhile)
        looked_between = source.look()
    between = source.now.contents.certificate

    assert (looked_between, between) == (False, first.certificate)
    assert source.look()
    assert source.now.contents.certificate == third.certificate


def encrypted(key: bytes) -> bytes:
    return load_pem_private_key(key, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password"))


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Mounted], None]:
    """Change one of the files."""

    def write(tls: Mounted) -> None:
        (tls / name).write_bytes(change((tls / name).read_bytes()))

    return write


def signed(**arguments: Any) -> Callable[[Mounted], None]:
    """Replace certificate and key by others."""

    def exchange(tls: Mounted) -> None:
        pair = AUTHORITY.sign(**arguments)
        tls.exchange(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=AUTHORITY.certificate)

    return exchange


NO_KEY = "tls_cert_file = '{}/tls.crt': its key must be RSA, or ECDSA on P-256 or P-384; gRPC clients accept no other keys"
NO_BLOCK = "tls_cert_file = '{}/tls.crt': must have at least 1 block of BEGIN CERTIFICATE, got 0"
NO_CA = "tls_client_ca_file = '{}/ca.crt': must have at least 1 certificate of an authority, got 0"
WRONG: dict[str, tuple[Callable[[Mounted], None], str]] = {
    "ed25519": (signed(key=ed25519.Ed25519PrivateKey.generate()), NO_KEY),
    "p521": (signed(key=ec.generate_private_key(ec.SECP521R1())), NO_KEY),
    "another block": (changed("tls.crt", lambda pem: pem.replace(b" CERTIFICATE", b" TRUSTED CERTIFICATE")), NO_BLOCK),
    "half": (changed("tls.crt", lambda pem: pem[:200]), "tls_cert_file = '{}/tls.crt': must be a certificate in PEM"),
    "another key": (changed("tls.key", lambda _: AUTHORITY.sign().key), "key values mismatch"),
    "encrypted": (changed("tls.key", encrypted), "the key is encrypted"),
    "expired": (signed(now=datetime.now(UTC) - 2 * A_DAY), "a client would not accept it: certificate has expired"),
    "not yet": (signed(now=datetime.now(UTC) + A_DAY), "a client would not accept it: certificate is not yet valid"),
    "empty authorities": (changed("ca.crt", lambda _: b"\n"), "tls_client_ca_file = '{}/ca.crt': must be certificates in PEM"),
    "no authority": (changed("ca.crt", lambda _: AUTHORITY.sign().certificate), NO_CA),
    "gone": (lambda tls: (tls / "tls.key").unlink(), "tls_key_file = '{}/tls.key': cannot be read: No such file or directory"),
    "large": (changed("tls.crt", lambda _: b"#" * (FILE_BYTES_MAX + 1)), "tls.crt': has more bytes than the limit of 1048576"),
}


@pytest.mark.parametrize(("break_it", "reason"), WRONG.values(), ids=WRONG)
def test_files_of_no_use_stop_the_start_with_the_reason_and_leave_the_last_good_ones(
    tmp_path: Path, break_it: Callable[[Mounted], None], reason: str
) -> None:
    tls = mounted_pair(tmp_path / "tls", AUTHORITY.sign(), AUTHORITY)
    source = read(tls.folder, client_ca=True)
    good = source.now
    break_it(tls)

    with pytest.raises(BadSettings) as error:
        read(tls.folder, client_ca=True)

    assert reason.format(tls.folder) in str(error.value)
    assert not source.look()
    assert source.now is good


@pytest.mark.parametrize("key", [rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())], ids=["rsa", "p384"])
def test_keys_that_grpcs_clients_accept_are_accepted(tmp_path: Path, key: Key) -> None:
    pair = AUTHORITY.sign(key=key)

    assert read(mounted_pair(tmp_path / "tls", pair, AUTHORITY).folder).now.expires_at == pair.expires_at


def test_comments_beside_authorities_may_be_in_any_encoding(tmp_path: Path) -> None:
    tls = mounted_pair(tmp_path / "tls", AUTHORITY.sign(), AUTHORITY)
    comments = "# Büro\n".encode(), "# Café\n".encode("latin-1")
    (tls / "ca.crt").write_bytes(comments[0] + AUTHORITY.certificate + comments[1] + Authority("another").certificate)

    assert len(read(tls.folder, client_ca=True).now.context.get_ca_certs()) == 2


def test_files_exchanged_one_after_the_other_are_taken_once_both_are_there(tmp_path: Path) -> None:
    tls = mounted_pair(tmp_path / "tls", AUTHORITY.sign(), AUTHORITY)
    source = read(tls.folder)
    good, new = source.now, AUTHORITY.sign()

    (tls / "tls.crt").write_bytes(new.certificate)
    looked_between = source.look()
    between = source.now
    (tls / "tls.key").write_bytes(new.key)

    assert not looked_between
    assert between is good
    assert source.look()
    assert source.now.contents.certificate == new.certificate


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tls_cert_file": "a"}, "tls_cert_file = 'a' and tls_key_file = '': one of them is empty; set both or neither"),
        ({"tls_key_file": "b"}, "tls_cert_file = '' and tls_key_file = 'b': one of them is empty; set both or neither"),
        ({"tls_client_ca_file": "c"}, "tls_client_ca_file = 'c': client certificates need TLS; set tls_cert_file too"),
    ],
)
def test_incomplete_tls_settings_stop_the_start(settings: dict[str, str], says: str) -> None:
    with pytest.raises(BadSettings, match=re.escape(says)):
        Secured(Settings(**settings), Metrics([]))
