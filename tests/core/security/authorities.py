"""Certificates for tests: an authority, servers and clients, and secrets that are exchanged as Kubernetes exchanges them."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

NOT_BEFORE = timedelta(minutes=5)
A_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes
    serial: int = 0
    expires_at: float = 0.0


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


def pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass
class Authority:
    """Signs for 127.0.0.1 and localhost."""

    name: str = "authority"
    key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)

    @property
    def certificate(self) -> bytes:
        return self._signed(_name(self.name), self.key, A_DAY, datetime.now(UTC), authority=True).public_bytes(Encoding.PEM)

    def sign(self, name: str = "server", lasts: timedelta = A_DAY, now: datetime | None = None, key: Key | None = None) -> Pair:
        key = key or new_key()
        certificate = self._signed(_name(name), key, lasts, now or datetime.now(UTC), authority=False)
        return Pair(
            certificate.public_bytes(Encoding.PEM), pem(key), certificate.serial_number, certificate.not_valid_after_utc.timestamp()
        )

    def _signed(self, subject: x509.Name, key: Key, lasts: timedelta, now: datetime, authority: bool) -> x509.Certificate:
        names = [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
        # Python 3.13 wants an authority's key usage, and the keys' identifiers.
        usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
        usage |= {"encipher_only": False, "decipher_only": False}
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_name(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - NOT_BEFORE)
            .not_valid_after(now + lasts)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=authority, crl_sign=authority, **usage), critical=True)
            .sign(self.key, hashes.SHA256())
        )


class Mounted:
    """A secret as the kubelet mounts it: all files are exchanged at once, by the symbolic link ..data."""

    def __init__(self, folder: Path, **files: bytes) -> None:
        self.folder = folder
        self._version = 0
        folder.mkdir(exist_ok=True)
        self.exchange(**files)

    def exchange(self, **files: bytes) -> None:
        """Names with _ for the dot of tls.crt."""
        self._version += 1
        version = self.folder / f"..{self._version}"
        version.mkdir()
        for name, content in files.items():
            (version / name.replace("_", ".")).write_bytes(content)
        (self.folder / "..new").symlink_to(version.name)
        (self.folder / "..new").rename(self.folder / "..data")
        for name in files:
            link = self.folder / name.replace("_", ".")
            if not link.is_symlink():
                link.symlink_to(f"..data/{link.name}")

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


def mounted_pair(folder: Path, pair: Pair, authority: Authority) -> Mounted:
    """As cert-manager makes it: tls.crt, tls.key and ca.crt."""
    return Mounted(folder, tls_crt=pair.certificate, tls_key=pair.key, ca_crt=authority.certificate)
