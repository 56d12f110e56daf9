"""Signatures of a bundle, compatible with ``cosign sign-blob`` and ``cosign verify-blob`` with a key.

The signed file is manifest.json. Its SHA-256 is the bundle's digest, and it holds the SHA-256 of every other file, except the card where an
earlier version wrote it. A signature is ECDSA over P-256 with SHA-256, DER in base64, in a file next to the bundle's folder. There is no
transparency log and no certificate: verifiers must get the public key from a trusted place.
"""

import base64
import binascii
import json
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from sentiment.files.output import new_file
from sentiment.model.bundle import MANIFEST_BYTES_MAX, load_bundle
from sentiment_models.errors import BadSignature
from sentiment_models.export.manifest import MANIFEST_FILE

PASSWORD_VARIABLE = "COSIGN_PASSWORD"  # noqa: S105 - the variable's name, the same that cosign reads
# Keys and signatures are much shorter.
BYTES_MAX = MANIFEST_BYTES_MAX
_COSIGN_KEYS = (b"ENCRYPTED SIGSTORE PRIVATE KEY", b"ENCRYPTED COSIGN PRIVATE KEY")
_ALGORITHM = ec.ECDSA(hashes.SHA256())


def signature_path(bundle: Path) -> Path:
    """Return the path of a bundle's signature: next to its folder, never in it."""
    whole = bundle.resolve()
    return whole.with_name(whole.name + ".sig")


def sign(bundle: Path, key: Path, out: Path | None = None) -> Path:
    """Check that a bundle's files match its manifest, sign it, and return the signature's file.

    Args:
        bundle: the bundle's folder.
        key: a P-256 private key in PEM; the environment variable COSIGN_PASSWORD opens an encrypted one.
        out: the file to write or replace; None: ``signature_path(bundle)``.

    Raises:
        BadSignature: the key cannot be used, or ``out`` is in the bundle.
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    out = out or signature_path(bundle)
    if bundle.resolve() in out.resolve().parents:
        raise BadSignature(f"{out}: the signature must be outside of the bundle")
    private = _private_key(key)
    load_bundle(bundle)
    with new_file(out) as write:
        write(base64.b64encode(private.sign((bundle / MANIFEST_FILE).read_bytes(), _ALGORITHM)))
    return out


def check_signature(bundle: Path, signature: Path, key: Path) -> None:
    """Check that the owner of a key signed this bundle's manifest.

    Args:
        bundle: the bundle's folder.
        signature: base64 or plain DER as ``cosign sign-blob --output-signature`` writes it, or the JSON that its ``--bundle``
            writes, of which only the signature is read.
        key: the P-256 public key in PEM.

    Raises:
        BadSignature: the signature does not match, or a file cannot be used.
    """
    try:
        _public_key(key).verify(_der(signature), _read(bundle / MANIFEST_FILE), _ALGORITHM)
    except InvalidSignature as error:
        raise BadSignature(f"{signature}: not a signature of {bundle / MANIFEST_FILE} by the key {key}") from error


def _der(path: Path) -> bytes:
    content = _read(path)
    if content.lstrip().startswith(b"{"):
        try:
            content = json.loads(content)["messageSignature"]["signature"].encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadSignature(f"{path}: expected the JSON of cosign sign-blob, but messageSignature.signature is missing") from error
    try:
        return base64.b64decode(b"".join(content.split()), validate=True)
    except binascii.Error:
        return content


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    content = _read(path)
    if any(words in content for words in _COSIGN_KEYS):
        raise BadSignature(
            f"{path}: the key is encrypted in cosign's own format; sign {MANIFEST_FILE} with cosign sign-blob, or use a P-256 key in PEM"
        )
    password = os.environ.get(PASSWORD_VARIABLE, "").encode() if b"ENCRYPTED" in content else None
    try:
        key = load_pem_private_key(content, password)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        hint = f"; the key is encrypted, check {PASSWORD_VARIABLE}" if password is not None else ""
        raise BadSignature(f"{path}: not a private key in PEM{hint}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadSignature(f"{path}: the key must be ECDSA P-256, such as openssl ecparam -name prime256v1 makes")
    return key


def _public_key(path: Path) -> ec.EllipticCurvePublicKey:
    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadSignature(f"{path}: not a public key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadSignature(f"{path}: the key must be ECDSA P-256")
    return key


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(BYTES_MAX + 1)
    except OSError as error:
        raise BadSignature(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > BYTES_MAX:
        raise BadSignature(f"{path}: the file must have at most {BYTES_MAX} bytes; a larger one is not a manifest, key or signature")
    return content
