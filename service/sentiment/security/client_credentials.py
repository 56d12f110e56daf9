"""Credentials of a client, for gRPC and HTTP: TLS, a client certificate and a bearer token."""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from sentiment.addresses import is_loopback
from sentiment.errors import BadSettings
from sentiment.security.secret_files import CHARACTERS, TOKEN, content_of, files_of, no_password, tokens_of

# How long a token is used before its file is read again. The file may change while the client runs.
TOKEN_FRESH_S = 10.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """TLS files in PEM and a bearer token, all optional. TLS is used if ``tls`` is set or one of its files is named.

    Attributes:
        tls: use TLS. Without ``ca_file`` the server's certificate is verified by the authorities that gRPC or Python trusts.
        ca_file: the authorities that verify the server's certificate.
        cert_file: the client's certificate, for mTLS. It is read once; to change it, create a new client.
        key_file: the key of the client's certificate.
        token_file: a file whose first line that is neither empty nor a # comment is sent as token with each call, or a folder of such
            files, as the server reads them. It is read again every 10 s.
        token: the token itself. It is never logged or shown.
    """

    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    token_file: str = ""
    token: str = field(default="", repr=False)

    @property
    def secure(self) -> bool:
        """Whether TLS is used."""
        return bool(self.tls or self.ca_file or self.cert_file or self.key_file)

    @property
    def token_in_clear(self) -> bool:
        """Whether a token is sent without TLS, and so may not leave this machine."""
        return bool(self.token_file or self.token) and not self.secure

    def for_grpc(self) -> grpc.ChannelCredentials | None:
        """Credentials for a gRPC channel; None for plaintext. A token is sent only over TLS or to this machine.

        Raises:
            BadSettings: a file cannot be used.
        """
        self._check()
        channel = None
        if self.secure:
            ca, key, chain = (content_of(Path(path), path) if path else None for path in (self.ca_file, self.key_file, self.cert_file))
            channel = grpc.ssl_channel_credentials(ca, key, chain)
        authorization = self.authorization()
        if authorization is None:
            return channel
        call = grpc.metadata_call_credentials(_Bearer(authorization))
        # Local credentials refuse to connect to another machine.
        return grpc.composite_channel_credentials(channel or grpc.local_channel_credentials(), call)

    def for_http(self) -> ssl.SSLContext | None:
        """The TLS context for an HTTP client; None for plaintext.

        Raises:
            BadSettings: a file cannot be used.
        """
        self._check()
        if not self.secure:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file, no_password)
        except (OSError, ValueError) as error:
            named = " ".join(filter(None, (self.ca_file, self.cert_file, self.key_file)))
            raise BadSettings(f"{named}: cannot be used: {error}") from error
        return context

    def authorization(self) -> Callable[[], str] | None:
        """A function that returns the current authorization header; None if there is no token.

        Raises:
            BadSettings: the token file has no token. The returned function raises it too.
        """
        if not self.token_file:
            header = f"Bearer {self.token}"
            return (lambda: header) if self.token else None
        source = _TokenFile(self.token_file)
        source()
        return source

    def _check(self) -> None:
        if self.token and not TOKEN.fullmatch(self.token):
            raise BadSettings(f"the client's token has other characters: {CHARACTERS}")
        if bool(self.cert_file) is not bool(self.key_file):
            raise BadSettings("a client's certificate needs its key, and a key its certificate; give both or neither")


def may_send_token(url: str) -> bool:
    """Whether nobody can read a token on its way to the URL: over https, or within this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def first_token(path: str) -> str:
    """The first token of a file, or of a folder's files, in the order in which the server reads them.

    Raises:
        BadSettings: a file cannot be read or has an invalid line before the token, or has no token. No message quotes a token.
    """
    try:
        found = next((token for file in files_of(Path(path)) for *_, token in tokens_of(file.name, content_of(file, str(file)))), "")
    except OSError as error:
        raise BadSettings(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise BadSettings(f"{path}: {error}") from error
    if not found:
        raise BadSettings(f"{path}: has no token")
    return found


class _TokenFile:
    """Returns the authorization header with the token of a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read_at = float("-inf")
        self._header = ""

    def __call__(self) -> str:
        now = time.monotonic()
        if now >= self._read_at + TOKEN_FRESH_S:
            self._header, self._read_at = f"Bearer {first_token(self._path)}", now
        return self._header


class _Bearer(grpc.AuthMetadataPlugin):
    """Adds the header to each call, in a thread of gRPC."""

    def __init__(self, authorization: Callable[[], str]) -> None:
        self._authorization = authorization

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:  # noqa: ARG002  # grpc's
        try:
            callback((("authorization", self._authorization()),), None)
        except BadSettings as error:
            callback((), error)
