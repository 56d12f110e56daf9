"""Signatures of a bundle: the ones that ``cosign sign-blob`` with a key makes and ``cosign verify-blob`` checks.

What is signed is manifest.json, whose SHA-256 is the digest and which holds the SHA-256 of every other file but the card. A
signature is ECDSA over P-256 and SHA-256, in DER, in base64, in a file beside the bundle's folder. No transparency log, no
certificates: who has the public key from a place that he trusts knows who signed.
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

from sentiment.model.bundle import MANIFEST_BYTES_MAX, load_bundle
from sentiment_models.errors import BadSignature
from sentiment_models.export.manifest import MANIFEST_FILE

PASSWORD_VARIABLE = "COSIGN_PASSWORD"  # noqa: S105 - the variable's name, the same that cosign reads
# Keys and signatures are shorter still.
BYTES_MAX = MANIFEST_BYTES_MAX
_COSIGN_KEYS = (b"ENCRYPTED SIGSTORE PRIVATE KEY", b"ENCRYPTED COSIGN PRIVATE KEY")
_ALGORITHM = ec.ECDSA(hashes.SHA256())


def signature_path(bundle: Path) -> Path:
    """Return where a bundle's signature stands: beside its folder, never in it."""
    whole = bundle.resolve()
    return whole.with_name(whole.name + ".sig")


def sign(bundle: Path, key: Path, out: Path | None = None) -> Path:
    """Sign a bundle, once its files are found to be what its manifest says, and return the signature's file.

    Args:
        bundle: the bundle's folder.
        key: a P-256 private key in PEM; an encrypted one is opened with the environment's COSIGN_PASSWORD.
        out: where to write; None: ``signature_path(bundle)``. What stood there is replaced whole.

    Raises:
        BadSignature: the key cannot be used, or ``out`` is in the bundle.
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    out = (out or signature_path(bundle)).resolve()
    if bundle.resolve() in out.parents:
        raise BadSignature(f"{out}: is in the bundle; a signature stands outside of what it signs")
    private = _private_key(key)
    load_bundle(bundle)
    part = out.with_name(f".{out.name}.part")
    part.write_bytes(base64.b64encode(private.sign((bundle / MANIFEST_FILE).read_bytes(), _ALGORITHM)))
    part.replace(out)
    return out


def check_signature(bundle: Path, signature: Path, key: Path) -> None:
    """Check that the owner of a key signed this bundle's manifest.

    Args:
        bundle: the bundle's folder.
        signature: base64 or plain DER as ``cosign sign-blob --output-signature`` writes it, or the JSON that its ``--bundle``
            writes, of which only the signature is read.
        key: the P-256 public key in PEM.

    Raises:
        BadSignature: he did not, or a file cannot be used.
    """
    try:
        _public_key(key).verify(_der(signature), _read(bundle / MANIFEST_FILE), _ALGORITHM)
    except InvalidSignature as error:
        raise BadSignature(f"{signature}: is no signature of {bundle / MANIFEST_FILE} by the key {key}") from error


def _der(path: Path) -> bytes:
    content = _read(path)
    if content.lstrip().startswith(b"{"):
        try:
            content = json.loads(content)["messageSignature"]["signature"].encode()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadSignature(f"{path}: holds no messageSignature.signature; wanted what cosign sign-blob wrote") from error
    try:
        return base64.b64decode(b"".join(content.split()), validate=True)
    except binascii.Error:
        return content


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    content = _read(path)
    if any(words in content for words in _COSIGN_KEYS):
        raise BadSignature(
            f"{path}: is encrypted in a form of cosign's own; sign {MANIFEST_FILE} with it by cosign sign-blob, or give a P-256 key in "
            "plain PEM"
        )
    password = os.environ.get(PASSWORD_VARIABLE, "").encode() if b"ENCRYPTED" in content else None
    try:
        key = load_pem_private_key(content, password)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        hint = f"; it is encrypted: is {PASSWORD_VARIABLE} its password?" if password is not None else ""
        raise BadSignature(f"{path}: not a private key in PEM{hint}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadSignature(f"{path}: a key of another kind; wanted ECDSA P-256, as openssl ecparam -name prime256v1 makes it")
    return key


def _public_key(path: Path) -> ec.EllipticCurvePublicKey:
    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadSignature(f"{path}: not a public key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadSignature(f"{path}: a key of another kind; wanted ECDSA P-256")
    return key


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(BYTES_MAX + 1)
    except OSError as error:
        raise BadSignature(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > BYTES_MAX:
        raise BadSignature(f"{path}: has more than {BYTES_MAX} bytes, which neither a manifest nor a key nor a signature has")
    return content
