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
from sentiment.security.certificates import FILE_BYTES_MAX, Certificates, Contents, TlsFiles, reloaded_certificates
from sentiment.security.reloaded import Reloaded
from sentiment.security.secured import Secured
from sentiment.settings import Settings
from tests.security.authorities import A_DAY, Authority, Key, Mounted, mounted_pair

AUTHORITY = Authority()


def read(folder: Path, client_ca: bool = False) -> Reloaded[Contents, Certificates]:
    return reloaded_certificates(TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt" if client_ca else None))


def test_the_expiry_is_the_certificates(tmp_path: Path) -> None:
    pair = AUTHORITY.sign(lasts=timedelta(hours=7))
    mounted_pair(tmp_path / "tls", pair, AUTHORITY)

    assert read(tmp_path / "tls").now.expires_at == pair.expires_at


def test_a_secret_that_is_exchanged_is_seen(tmp_path: Path) -> None:
    first, second = AUTHORITY.sign(), AUTHORITY.sign(lasts=2 * A_DAY)
    tls = mounted_pair(tmp_path / "tls", first, AUTHORITY)
    source = read(tls.folder)

    tls.exchange(tls_crt=second.certificate, tls_key=second.key, ca_crt=AUTHORITY.certificate)

    assert source.look()
    assert source.now.contents.certificate == second.certificate
    assert source.now.expires_at == second.expires_at


def test_files_that_have_not_changed_are_not_taken_again(tmp_path: Path) -> None:
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


def _half(tls: Mounted) -> None:
    (tls / "tls.crt").write_bytes((tls / "tls.crt").read_bytes()[:200])


def _other_key(tls: Mounted) -> None:
    (tls / "tls.key").write_bytes(AUTHORITY.sign().key)


def _encrypted(tls: Mounted) -> None:
    (tls / "tls.key").write_bytes(encrypted((tls / "tls.key").read_bytes()))


def _expired(tls: Mounted) -> None:
    pair = AUTHORITY.sign(now=datetime.now(UTC) - 2 * A_DAY)
    tls.exchange(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=AUTHORITY.certificate)


def _not_yet(tls: Mounted) -> None:
    pair = AUTHORITY.sign(now=datetime.now(UTC) + A_DAY)
    tls.exchange(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=AUTHORITY.certificate)


def _empty_ca(tls: Mounted) -> None:
    (tls / "ca.crt").write_bytes(b"")


def _no_ca(tls: Mounted) -> None:
    (tls / "ca.crt").write_bytes(AUTHORITY.sign().certificate)


def _gone(tls: Mounted) -> None:
    (tls / "tls.key").unlink()


def _large(tls: Mounted) -> None:
    (tls / "tls.crt").write_bytes(b"#" * (FILE_BYTES_MAX + 1))


def _of_key(tls: Mounted, key: Key) -> None:
    pair = AUTHORITY.sign(key=key)
    tls.exchange(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=AUTHORITY.certificate)


def _ed25519(tls: Mounted) -> None:
    _of_key(tls, ed25519.Ed25519PrivateKey.generate())


def _p521(tls: Mounted) -> None:
    _of_key(tls, ec.generate_private_key(ec.SECP521R1()))


def _other_block(tls: Mounted) -> None:
    (tls / "tls.crt").write_bytes((tls / "tls.crt").read_bytes().replace(b" CERTIFICATE", b" TRUSTED CERTIFICATE"))


NO_KEY = "tls_cert_file = '{}/tls.crt': its key must be RSA, or ECDSA on P-256 or P-384; gRPC clients accept no other keys"
WRONG = [
    (_ed25519, NO_KEY),
    (_p521, NO_KEY),
    (_other_block, "tls_cert_file = '{}/tls.crt': must have at least 1 block of BEGIN CERTIFICATE, got 0"),
    (_half, "tls_cert_file = '{}/tls.crt': must be a certificate in PEM"),
    (_other_key, "key values mismatch"),
    (_encrypted, "the key is encrypted"),
    (_expired, "a client would not accept it: certificate has expired"),
    (_not_yet, "a client would not accept it: certificate is not yet valid"),
    (_empty_ca, "tls_client_ca_file = '{}/ca.crt': must be certificates in PEM"),
    (_no_ca, "tls_client_ca_file = '{}/ca.crt': must have at least 1 certificate of an authority, got 0"),
    (_gone, "tls_key_file = '{}/tls.key': cannot be read: No such file or directory"),
    (_large, "tls_cert_file = '{}/tls.crt': has more bytes than the limit of 1048576"),
]
each_wrong = pytest.mark.parametrize(("break_it", "reason"), WRONG, ids=[breaks.__name__ for breaks, _ in WRONG])


@each_wrong
def test_files_of_no_use_stop_the_start_with_the_reason(tmp_path: Path, break_it: Callable[[Mounted], None], reason: str) -> None:
    tls = mounted_pair(tmp_path / "tls", AUTHORITY.sign(), AUTHORITY)
    break_it(tls)

    with pytest.raises(BadSettings) as error:
        read(tls.folder, client_ca=True)

    assert reason.format(tls.folder) in str(error.value)


@each_wrong
def test_files_of_no_use_leave_the_last_good_ones(tmp_path: Path, break_it: Callable[[Mounted], None], reason: str) -> None:
    tls = mounted_pair(tmp_path / "tls", AUTHORITY.sign(), AUTHORITY)
    source = read(tls.folder, client_ca=True)
    good = source.now

    break_it(tls)
    useful = source.look()

    assert not useful
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
    ("told", "says"),
    [
        ({"tls_cert_file": "a"}, "tls_cert_file = 'a' and tls_key_file = '': one of them is empty; set both or neither"),
        ({"tls_key_file": "b"}, "tls_cert_file = '' and tls_key_file = 'b': one of them is empty; set both or neither"),
        ({"tls_client_ca_file": "c"}, "tls_client_ca_file = 'c': client certificates need TLS; set tls_cert_file too"),
    ],
)
def test_half_of_what_tls_needs_stops_the_start(told: dict[str, str], says: str) -> None:
    with pytest.raises(BadSettings, match=re.escape(says)):
        Secured(Settings(**told), Metrics([], []))
