"""The server's certificate, its key and whose certificates clients must show, from files that are exchanged while it runs."""

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from sentiment.errors import BadSettings
from sentiment.security.reloaded import Reloaded

# A chain has a few kilobytes, the authorities of the whole web a quarter of a million.
FILE_BYTES_MAX = 2**20
# Flights of a handshake of TLS 1.3, and some.
FLIGHTS_MAX = 8
PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
# What a certificate has in it as DER: RSA, ECDSA on P-256, ECDSA on P-384.
KEY_KINDS = tuple(
    map(bytes.fromhex, ("06092a864886f70d010101", "06072a8648ce3d020106082a8648ce3d030107", "06072a8648ce3d020106052b81040022"))
)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where they are, all in PEM. Without ``client_ca`` clients show no certificate; with it each of them must."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """What the files held at one time."""

    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None = None


@dataclass(frozen=True, slots=True)
class Certificates:
    """What connections are secured with, proved to be of use."""

    contents: Contents
    # When the certificate expires, in seconds since 1970.
    expires_at: float
    # For servers that take one, such as HTTP's.
    context: ssl.SSLContext


def reloaded_certificates(files: TlsFiles) -> Reloaded[Contents, Certificates]:
    """Read certificate and key, and prove by a handshake that they belong together and that a client would accept them now.

    Raises:
        BadSettings: a file cannot be read or is too large, they do not belong together, the key is encrypted or neither RSA nor ECDSA on
            P-256 or P-384, or the certificate has expired, is not valid yet or is not for servers.
    """
    return Reloaded("tls", lambda: _read(files), lambda contents: _prove(files, contents))


def https_context(source: Reloaded[Contents, Certificates]) -> ssl.SSLContext:
    """What an HTTP server is given: each handshake is made with the certificates of that moment, of the server and of its clients."""
    context = source.now.context

    def exchange(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = source.now.context

    # Called in every handshake, also of clients that name no server.
    context.sni_callback = exchange
    return context


def _read(files: TlsFiles) -> Contents:
    return Contents(
        _bytes("tls_cert_file", files.certificate),
        _bytes("tls_key_file", files.key),
        None if files.client_ca is None else _bytes("tls_client_ca_file", files.client_ca),
    )


def _bytes(setting: str, path: Path) -> bytes:
    try:
        with path.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadSettings(f"{setting} = '{path}': cannot be read: {error.strerror or error}") from error
    if len(content) > FILE_BYTES_MAX:
        raise BadSettings(f"{setting} = '{path}': has more bytes than the limit of {FILE_BYTES_MAX}")
    return content


def _prove(files: TlsFiles, contents: Contents) -> Certificates:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A connection that is resumed shows no certificate: one that is not accepted any more would go on being so. Of TLS 1.2 Python
        # cannot forbid that.
        context.minimum_version = ssl.TLSVersion.TLSv1_2 if contents.client_ca is None else ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        # Of paths, for Python's ssl takes no bytes.
        context.load_cert_chain(files.certificate, files.key, _no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise BadSettings(
            f"tls_cert_file = '{files.certificate}': is no certificate in PEM, with its key in tls_key_file = '{files.key}': {error}"
        ) from error
    expires_at = _expires_at(files, _leaf(files, contents), context)
    if files.client_ca is not None and contents.client_ca is not None:
        try:
            # The blocks alone: comments may be in any encoding.
            context.load_verify_locations(cadata="\n".join(PEM.findall(contents.client_ca.decode("latin-1"))))
        except (ssl.SSLError, ValueError) as error:
            raise BadSettings(f"tls_client_ca_file = '{files.client_ca}': is no certificate in PEM: {error}") from error
        if not context.get_ca_certs(binary_form=True):
            raise BadSettings(f"tls_client_ca_file = '{files.client_ca}': has 0 certificates of an authority; at least 1 is wanted")
        context.verify_mode = ssl.CERT_REQUIRED
        # As gRPC: whatever is in the file is trusted, not only authorities that signed themselves.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if _read(files) != contents:
        raise BadSettings(f"tls_cert_file = '{files.certificate}': it, or another of the files, changed while it was read")
    return Certificates(contents, expires_at, context)


def _leaf(files: TlsFiles, contents: Contents) -> bytes:
    """The server's own certificate, the first of the file, as DER."""
    found = PEM.search(contents.certificate.decode("latin-1"))
    # OpenSSL takes other kinds of block too.
    if found is None:
        raise BadSettings(f"tls_cert_file = '{files.certificate}': has 0 blocks of BEGIN CERTIFICATE; at least 1 is wanted")
    try:
        leaf = ssl.PEM_cert_to_DER_cert(found[0])
    except ValueError as error:
        raise BadSettings(f"tls_cert_file = '{files.certificate}': is no certificate in PEM: {error}") from error
    if not any(kind in leaf for kind in KEY_KINDS):
        raise BadSettings(
            f"tls_cert_file = '{files.certificate}': its key is neither RSA nor ECDSA on P-256 or P-384; gRPC's clients accept no others"
        )
    return leaf


def _expires_at(files: TlsFiles, leaf: bytes, server: ssl.SSLContext) -> float:
    """By a handshake in memory, with a client that trusts this certificate alone."""
    try:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        client.load_verify_locations(cadata=leaf)
        shown = _handshake(server, client).getpeercert()
        assert shown, "a client that has verified a certificate has one"
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
    raise ssl.SSLError("the handshake does not end")


def _no_password() -> str:
    # Else OpenSSL asks for one at the terminal.
    raise ValueError("the key is encrypted")
