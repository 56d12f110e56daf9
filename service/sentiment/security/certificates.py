"""The server's certificate and key, and the authorities of client certificates, from files that can change while the server runs."""

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from sentiment.errors import BadSettings
from sentiment.security.reloaded import Reloaded
from sentiment.security.secret_files import content_of, no_password

# Rounds of a handshake in memory: more than TLS 1.3 needs.
FLIGHTS_MAX = 8
PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
# The DER encoding of the key type in a certificate: RSA, ECDSA on P-256, ECDSA on P-384.
KEY_KINDS = tuple(
    map(bytes.fromhex, ("06092a864886f70d010101", "06072a8648ce3d020106082a8648ce3d030107", "06072a8648ce3d020106052b81040022"))
)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of the files, all in PEM. With ``client_ca`` every client must show a certificate; without it none is requested."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of the files at one time."""

    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None = None


@dataclass(frozen=True, slots=True)
class Certificates:
    """Certificate and key of a server, verified by a test handshake."""

    contents: Contents
    # When the certificate expires, in seconds since 1970.
    expires_at: float
    # For the HTTP server. gRPC takes ``contents``.
    context: ssl.SSLContext


def reloaded_certificates(files: TlsFiles) -> Reloaded[Contents, Certificates]:
    """Read certificate and key, and verify by a handshake in memory that they match and that a client would accept them now.

    Raises:
        BadSettings: a file cannot be read or is too large; certificate and key do not match; the key is encrypted, or neither RSA nor
            ECDSA on P-256 or P-384; or the certificate has expired, is not valid yet or is not for servers.
    """
    return Reloaded("tls", lambda: _read(files), lambda contents: _prove(files, contents))


def https_context(source: Reloaded[Contents, Certificates]) -> ssl.SSLContext:
    """The context for an HTTP server. Each handshake uses the current server certificate and client authorities."""
    context = source.now.context

    def use_current(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = source.now.context

    # Called in every handshake, even if the client sends no server name.
    context.sni_callback = use_current
    return context


def _read(files: TlsFiles) -> Contents:
    return Contents(
        content_of(files.certificate, f"tls_cert_file = '{files.certificate}'"),
        content_of(files.key, f"tls_key_file = '{files.key}'"),
        None if files.client_ca is None else content_of(files.client_ca, f"tls_client_ca_file = '{files.client_ca}'"),
    )


def _prove(files: TlsFiles, contents: Contents) -> Certificates:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A resumed session does not show the client's certificate again, so a certificate that is no longer accepted would stay accepted.
        # Python cannot disable resumption in TLS 1.2.
        context.minimum_version = ssl.TLSVersion.TLSv1_2 if contents.client_ca is None else ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        # From the paths, because Python's ssl takes no bytes here.
        context.load_cert_chain(files.certificate, files.key, no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise BadSettings(
            f"tls_cert_file = '{files.certificate}': must be a certificate in PEM whose key is in tls_key_file = '{files.key}': {error}"
        ) from error
    expires_at = _expires_at(files, _leaf(files, contents), context)
    if files.client_ca is not None and contents.client_ca is not None:
        try:
            # Only the PEM blocks, because comments may be in any encoding.
            context.load_verify_locations(cadata="\n".join(PEM.findall(contents.client_ca.decode("latin-1"))))
        except (ssl.SSLError, ValueError) as error:
            raise BadSettings(f"tls_client_ca_file = '{files.client_ca}': must be certificates in PEM: {error}") from error
        if not context.get_ca_certs(binary_form=True):
            raise BadSettings(f"tls_client_ca_file = '{files.client_ca}': must have at least 1 certificate of an authority, got 0")
        context.verify_mode = ssl.CERT_REQUIRED
        # As in gRPC, every certificate in the file is trusted, not only self-signed authorities.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if _read(files) != contents:
        raise BadSettings(f"tls_cert_file = '{files.certificate}': this or another TLS file changed while it was read")
    return Certificates(contents, expires_at, context)


def _leaf(files: TlsFiles, contents: Contents) -> bytes:
    """The server's own certificate, which is the first one in the file, as DER."""
    found = PEM.search(contents.certificate.decode("latin-1"))
    # OpenSSL also accepts other kinds of block.
    if found is None:
        raise BadSettings(f"tls_cert_file = '{files.certificate}': must have at least 1 block of BEGIN CERTIFICATE, got 0")
    try:
        leaf = ssl.PEM_cert_to_DER_cert(found[0])
    except ValueError as error:
        raise BadSettings(f"tls_cert_file = '{files.certificate}': must be a certificate in PEM: {error}") from error
    if not any(kind in leaf for kind in KEY_KINDS):
        raise BadSettings(
            f"tls_cert_file = '{files.certificate}': its key must be RSA, or ECDSA on P-256 or P-384; gRPC clients accept no other keys"
        )
    return leaf


def _expires_at(files: TlsFiles, leaf: bytes, server: ssl.SSLContext) -> float:
    """When the certificate expires, as seen in a handshake in memory with a client that trusts only this certificate."""
    try:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        client.load_verify_locations(cadata=leaf)
        shown = _handshake(server, client).getpeercert()
        assert shown, "a client that has verified the certificate has received it"
        return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error
        raise BadSettings(f"tls_cert_file = '{files.certificate}': a client would not accept it: {reason}") from error


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    calling, answering = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [calling, answering]
    for _ in range(FLIGHTS_MAX):
        for side in tuple(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            return calling
    raise ssl.SSLError(f"the handshake did not end within {FLIGHTS_MAX} rounds")
