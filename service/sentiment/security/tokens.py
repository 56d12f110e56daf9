"""Bearer tokens (RFC 6750) from files. They are kept as digests, compared in constant time, and never logged."""

import hashlib
import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from sentiment.errors import BadSettings
from sentiment.security.reloaded import Reloaded
from sentiment.security.secret_files import CHARACTERS_MAX, files_of, tokens_of

# A shorter token could be guessed.
CHARACTERS_MIN = 16
# The token of each call is compared with all valid tokens.
TOKENS_MAX = 128
FILES_MAX = 128
FILE_BYTES_MAX = 2**16
SCHEME = "Bearer"
# Sent as a header over HTTP and as a trailer over gRPC.
CHALLENGE = ("www-authenticate", SCHEME)
REFUSAL = "the call needs exactly one authorization header, with a valid bearer token"


class Tokens:
    """The valid tokens."""

    def __init__(self, tokens: Mapping[str, str], weights: Mapping[str, float]) -> None:
        """``tokens``: each with its name, which is empty if it has none. ``weights``: of each name."""
        self._names = {_digest(token.encode()): name for token, name in tokens.items()}
        self.weights = weights

    def name_of(self, authorization: Sequence[str | bytes]) -> str | None:
        """The name of the token of a call that has exactly one authorization header and a valid token in it; None for other calls.

        More than one header is refused, because a proxy may have checked another one. Every valid token is compared, whatever the other
        comparisons returned. Digests are compared, so that the time does not reveal how much of a token was right.
        """
        if len(authorization) != 1 or len(authorization[0]) > len(SCHEME) + 1 + CHARACTERS_MAX:
            return None
        (value,) = authorization
        scheme, _, token = (value if isinstance(value, bytes) else value.encode(errors="surrogateescape")).partition(b" ")
        sent = _digest(token)
        matches = [hmac.compare_digest(sent, digest) for digest in self._names]
        return self._names[sent] if scheme.lower() == SCHEME.lower().encode() and any(matches) else None


class Guard:
    """Authenticates calls over gRPC and HTTP: each needs a valid token, except exempt methods and routes.

    The gRPC and HTTP ports of a server share one guard. To guard another server, such as the admin port::

        guard = secured.guard_of(path, "admin_tokens", exempt=())  # security.secured, which reloads its tokens
        grpc.aio.server(interceptors=[GrpcGuard(guard)])           # doors.grpc.server
        web.Application(middlewares=[http_guard(guard)])           # doors.http.screening
    """

    def __init__(self, tokens: Callable[[], Tokens], exempt: Collection[str], refused: Callable[[str], None]) -> None:
        """Create a guard.

        Args:
            tokens: returns the valid tokens; called for each call.
            exempt: methods as /package.Service/Method, and HTTP routes as /path, that need no token.
            refused: counts a refused call; called in the event loop with grpc or http.
        """
        self._tokens = tokens
        self._exempt = frozenset(exempt)
        self.refused = refused

    def admits(self, name: str, authorization: Sequence[str | bytes]) -> bool:
        """Whether a call to this method or route, with these authorization headers, is allowed."""
        return name in self._exempt or self.name_of(authorization) is not None

    def name_of(self, authorization: Sequence[str | bytes]) -> str | None:
        """See ``Tokens.name_of``."""
        return self._tokens().name_of(authorization)

    @property
    def weights(self) -> Mapping[str, float]:
        """The names of the valid tokens, each with its weight."""
        return self._tokens().weights


def reloaded_tokens(path: Path, setting: str) -> Reloaded[dict[str, bytes], Tokens]:
    """The tokens of a file, or of all files in a folder: one per line, as TOKEN, NAME:TOKEN or NAME*WEIGHT:TOKEN.

    Empty lines and lines that begin with # are ignored. Several tokens may have one name, with one weight, but no token two.

    In a folder, subfolders and names that begin with a dot are skipped, as mounted secrets have them. A token that is removed from the
    files is refused from the next reload on. If there is no file or no token, the last tokens stay valid: a file may be read while it is
    written.

    Args:
        path: the file or folder.
        setting: the setting that names it, for messages.

    Raises:
        BadSettings: a file cannot be read, a line is not a token, or there is none. No message quotes a token.
    """

    def wrong(what: str) -> BadSettings:
        return BadSettings(f"{setting} = '{path}': {what}")

    def read() -> dict[str, bytes]:
        try:
            files = files_of(path)
            if len(files) > FILES_MAX:
                raise wrong(f"the folder has {len(files)} files; the limit is {FILES_MAX}")
            return {file.name: _head(file) for file in files}
        except OSError as error:
            raise wrong(f"cannot be read: {error.strerror or error}") from error

    def make(files: dict[str, bytes]) -> Tokens:
        found: dict[str, str] = {}
        weights: dict[str, float] = {}
        for name, content in files.items():
            if len(content) > FILE_BYTES_MAX:
                raise wrong(f"the file {name} has more bytes than the limit of {FILE_BYTES_MAX}")
            try:
                for named, weight, token in tokens_of(name, content, CHARACTERS_MIN):
                    if named and weights.setdefault(named, weight) != weight:
                        raise wrong(f"the file {name} gives {named} the weight {weight:g}; a line before gives it {weights[named]:g}")
                    if found.setdefault(token, named) != named:
                        raise wrong(f"the file {name} gives a token another name than it has in a line before")
            except ValueError as error:
                raise wrong(str(error)) from error
        if not found:
            raise wrong("has no token")
        if len(found) > TOKENS_MAX:
            raise wrong(f"has {len(found)} tokens; the limit is {TOKENS_MAX}")
        return Tokens(found, weights)

    return Reloaded("tokens", read, make)


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(FILE_BYTES_MAX + 1)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
