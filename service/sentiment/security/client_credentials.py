"""How a client shows who it is, and checks who answers: TLS and bearer tokens, for gRPC and HTTP alike."""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from sentiment.errors import BadSettings

# A file of a token is looked at so often: it may be exchanged while the client runs.
TOKEN_FRESH_S = 10.0
FILE_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True)
class Credentials:
    """Of files in PEM and a token, all optional. TLS is spoken if ``tls`` says so or one of its files is named.

    Attributes:
        tls: speak TLS; without ``ca_file`` the server is checked by the authorities that gRPC, or Python, trusts.
        ca_file: of the authorities that the server is checked by.
        cert_file: the client's certificate, for mTLS. Read once: gRPC's channels cannot exchange it, make a new one.
        key_file: its key.
        token_file: whose first line that is not empty and does not begin with # is sent with each call; read again every 10 s.
        token: the same, from elsewhere; never shown.
    """

    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    token_file: str = ""
    token: str = field(default="", repr=False)

    @property
    def secure(self) -> bool:
        """Whether TLS is spoken."""
        return bool(self.tls or self.ca_file or self.cert_file or self.key_file)

    def for_grpc(self) -> grpc.ChannelCredentials | None:
        """Credentials of a channel; None for a plaintext one. A token goes over TLS, or to this machine, and nowhere else.

        Raises:
            BadSettings: a file cannot be used.
        """
        self._check()
        channel = None
        if self.secure:
            ca, key, chain = (_read(path) if path else None for path in (self.ca_file, self.key_file, self.cert_file))
            channel = grpc.ssl_channel_credentials(ca, key, chain)
        authorization = self.authorization()
        if authorization is None:
            return channel
        call = grpc.metadata_call_credentials(_Bearer(authorization))
        # Local ones refuse to connect to another machine.
        return grpc.composite_channel_credentials(channel or grpc.local_channel_credentials(), call)

    def for_http(self) -> ssl.SSLContext | None:
        """Of an HTTP client; None for plaintext.

        Raises:
            BadSettings: a file cannot be used.
        """
        self._check()
        if not self.secure:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file, _no_password)
        except (OSError, ValueError) as error:
            named = " ".join(filter(None, (self.ca_file, self.cert_file, self.key_file)))
            raise BadSettings(f"{named}: cannot be used: {error}") from error
        return context

    def authorization(self) -> Callable[[], str] | None:
        """What gives the authorization header of a call that is made now; None if there is no token.

        Raises:
            BadSettings: the file has none, now or when it is read again.
        """
        if not self.token_file:
            header = f"Bearer {self.token}"
            return (lambda: header) if self.token else None
        source = _TokenFile(self.token_file)
        source()
        return source

    def _check(self) -> None:
        if bool(self.cert_file) is not bool(self.key_file):
            raise BadSettings("a client's certificate and its key go together; one of the two is not given")


def may_send_token(url: str) -> bool:
    """Whether a token stays unread on the way to a URL: by https, or within this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        return parts.scheme == "https" or host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class _TokenFile:
    """The header of a file's token."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read_at = float("-inf")
        self._header = ""

    def __call__(self) -> str:
        now = time.monotonic()
        if now >= self._read_at + TOKEN_FRESH_S:
            lines = (line.strip() for line in _read(self._path).decode("latin-1").splitlines())
            token = next((line for line in lines if line and not line.startswith("#")), "")
            if not token:
                raise BadSettings(f"{self._path}: has no token")
            self._header, self._read_at = f"Bearer {token}", now
        return self._header


class _Bearer(grpc.AuthMetadataPlugin):
    """Puts the header to each call, in a thread of gRPC."""

    def __init__(self, authorization: Callable[[], str]) -> None:
        self._authorization = authorization

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:  # noqa: ARG002  # grpc's
        try:
            callback((("authorization", self._authorization()),), None)
        except BadSettings as error:
            callback((), error)


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadSettings(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > FILE_BYTES_MAX:
        raise BadSettings(f"{path}: has more bytes than the limit of {FILE_BYTES_MAX}")
    return content


def _no_password() -> str:
    # Else OpenSSL asks for one at the terminal.
    raise ValueError("the key is encrypted")
