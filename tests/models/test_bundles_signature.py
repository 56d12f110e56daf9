"""Signatures: openssl accepts ours and we accept openssl's, which equal cosign's; anything else is refused."""

import base64
import json
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat, PublicFormat

from sentiment_models.cli import main
from sentiment_models.errors import BadSignature
from sentiment_models.export.export import Exported
from sentiment_models.export.signature import check_signature, sign, signature_path
from tests.models.tampered import copy, reseal


@pytest.fixture
def bundle(exported: tuple[Path, Exported], tmp_path: Path) -> Path:
    """A copy of the tiny bundle."""
    return copy(exported[0], tmp_path)


def _keys(
    folder: Path, name: str = "key", key: ec.EllipticCurvePrivateKey | None = None, password: bytes | None = None
) -> tuple[Path, Path]:
    key = key or ec.generate_private_key(ec.SECP256R1())
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def test_a_signed_bundle_verifies_on_the_command_line(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private, public = _keys(tmp_path)

    assert main(["sign", str(bundle), "--key", str(private)]) == 0
    signature = bundle.parent / "1.sig"
    assert main(["verify", str(bundle), "--signature", str(signature), "--key", str(public)]) == 0

    shown = capsys.readouterr().out
    assert f"--signature {signature} --insecure-ignore-tlog {bundle / 'manifest.json'}" in shown
    assert "ok    signature: 1.sig matches the key key.pub" in shown
    assert {path.name for path in bundle.parent.iterdir()} == {"1", "1.sig"}


def test_a_signature_on_standard_output_is_alone_there(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private, public = _keys(tmp_path)

    assert main(["sign", str(bundle), "--key", str(private), "--out", "-"]) == 0

    found = capsys.readouterr()
    (tmp_path / "piped.sig").write_text(found.out)
    check_signature(bundle, tmp_path / "piped.sig", public)
    assert "cosign verify-blob" in found.err


@pytest.mark.needs_tool("openssl")
def test_openssl_accepts_our_signature(bundle: Path, tmp_path: Path) -> None:
    private, public = _keys(tmp_path)

    (tmp_path / "der").write_bytes(base64.b64decode(sign(bundle, private).read_bytes(), validate=True))

    command = ["openssl", "dgst", "-sha256", "-verify", public, "-signature", tmp_path / "der", bundle / "manifest.json"]
    assert subprocess.run(command, check=True, capture_output=True, timeout=20).stdout == b"Verified OK\n"


@pytest.mark.needs_tool("openssl")
def test_openssl_signatures_are_accepted_in_every_form_that_cosign_writes(bundle: Path, tmp_path: Path) -> None:
    private, public = _keys(tmp_path)
    command = ["openssl", "dgst", "-sha256", "-sign", private, bundle / "manifest.json"]
    der = subprocess.run(command, check=True, capture_output=True, timeout=20).stdout
    text = base64.b64encode(der)
    forms = {
        "der": der,
        "base64": text,
        "line": text + b"\n",
        "json": json.dumps({"messageSignature": {"signature": text.decode()}}).encode(),
    }

    for name, content in forms.items():
        (tmp_path / name).write_bytes(content)
        check_signature(bundle, tmp_path / name, public)


def test_a_changed_bundle_another_key_or_another_signature_fails(bundle: Path, tmp_path: Path) -> None:
    private, public = _keys(tmp_path)
    _, other = _keys(tmp_path, "other")
    signature = sign(bundle, private)
    (tmp_path / "cut").write_bytes(signature.read_bytes()[:40])

    check_signature(bundle, signature, public)
    for wrong in ((signature, other), (tmp_path / "cut", public), (public, public)):
        with pytest.raises(BadSignature, match="not a signature of"):
            check_signature(bundle, *wrong)
    reseal(bundle, lambda manifest: manifest.update(version=2))
    with pytest.raises(BadSignature, match="not a signature of"):
        check_signature(bundle, signature, public)
    assert main(["verify", str(bundle), "--signature", str(signature), "--key", str(public)]) == 3


def test_an_encrypted_key_needs_its_password(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = _keys(tmp_path, password=b"correct horse")

    monkeypatch.setenv("COSIGN_PASSWORD", "wrong")
    with pytest.raises(BadSignature, match="check COSIGN_PASSWORD"):
        sign(bundle, private)
    assert not signature_path(bundle).exists()
    monkeypatch.setenv("COSIGN_PASSWORD", "correct horse")
    check_signature(bundle, sign(bundle, private), public)


def test_keys_of_other_kinds_are_refused(bundle: Path, tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    (tmp_path / "rsa.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    curve, curve_public = _keys(tmp_path, "p384", ec.generate_private_key(ec.SECP384R1()))
    (tmp_path / "text.pem").write_text("hello")
    (tmp_path / "cosign.key").write_text(
        "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\neyJ9\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n"
    )

    for path, why in (
        (tmp_path / "rsa.pem", "the key must be ECDSA P-256"),
        (curve, "the key must be ECDSA P-256"),
        (tmp_path / "text.pem", "not a private key in PEM"),
        (tmp_path / "cosign.key", "with cosign sign-blob"),
        (tmp_path / "none.pem", "cannot be read: No such file"),
    ):
        with pytest.raises(BadSignature, match=why):
            sign(bundle, path)
    with pytest.raises(BadSignature, match="the key must be ECDSA P-256"):
        check_signature(bundle, curve_public, curve_public)


def test_a_signature_never_lands_in_the_bundle_and_a_damaged_bundle_is_not_signed(bundle: Path, tmp_path: Path) -> None:
    private, _ = _keys(tmp_path)

    with pytest.raises(BadSignature, match="the signature must be outside of the bundle"):
        sign(bundle, private, bundle / "x.sig")
    (bundle / "config.json").write_text("{}")
    assert main(["sign", str(bundle), "--key", str(private)]) == 3
    assert not signature_path(bundle).exists()
