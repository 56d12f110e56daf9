"""Bearer tokens (RFC 6750): several at once, from files, compared in constant time. They are kept as digests and never shown."""

import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from sentiment.errors import BadSettings
from sentiment.security.reloaded import Reloaded

# What a token is made of. A short one is guessed; a longer one would leave no room for other headers.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
CHARACTERS_MIN, CHARACTERS_MAX = 16, 4096
# Each call is compared with all of them.
TOKENS_MAX = 128
FILES_MAX = 128
FILE_BYTES_MAX = 2**16
SCHEME = "Bearer"
# Of HTTP, and of gRPC as a trailer.
CHALLENGE = ("www-authenticate", SCHEME)
REFUSAL = "wanted is one authorization header with a bearer token that is valid here"


class Tokens:
    """The tokens that are valid now. None at all: nobody has one."""

    def __init__(self, tokens: Collection[str]) -> None:
        self._digests = tuple(_digest(token.encode()) for token in tokens)

    def know(self, authorization: Sequence[str | bytes]) -> bool:
        """Whether the values of a call's authorization headers are one, with one of the tokens.

        More than one is refused: what stands before this server may have looked at another than the one that is valid. Every token is
        compared whatever the others said, by digests, whose comparison tells nothing of how much of a token was right.
        """
        if len(authorization) != 1 or len(authorization[0]) > len(SCHEME) + 1 + CHARACTERS_MAX:
            return False
        (value,) = authorization
        scheme, _, token = (value if isinstance(value, bytes) else value.encode(errors="surrogateescape")).partition(b" ")
        said = _digest(token)
        known = [hmac.compare_digest(said, digest) for digest in self._digests]
        return scheme.lower() == SCHEME.lower().encode() and any(known)


class Guard:
    """Decides about calls, of gRPC and of HTTP alike: each needs a token, except what is named.

    One for a server, shared by its gRPC, its HTTP and any further port. To guard another server, such as one for administration::

        guard = secured.guard_of(path, "admin_tokens", open_to_all=())  # security.secured, which keeps its tokens fresh
        grpc.aio.server(interceptors=[GrpcGuard(guard)])                # rpc.guard
        web.Application(middlewares=[http_guard(guard)])                # web.guard
    """

    def __init__(self, tokens: Callable[[], Tokens], open_to_all: Collection[str], refused: Callable[[str], None]) -> None:
        """Stand at the door.

        Args:
            tokens: those that are valid now; asked at each call.
            open_to_all: what needs none: methods as /package.Service/Method and HTTP routes as /path.
            refused: counts a refusal; called in the event loop with grpc or http.
        """
        self._tokens = tokens
        self._open = frozenset(open_to_all)
        self.refused = refused

    def lets_in(self, name: str, authorization: Sequence[str | bytes]) -> bool:
        """Whether a call of a method or route with these authorization headers may go on."""
        return name in self._open or self._tokens().know(authorization)


def reloaded_tokens(path: Path, setting: str) -> Reloaded[dict[str, bytes], Tokens]:
    """The tokens of a file, or of a folder's files: one a line; empty lines and those that begin with # do not count.

    Of a folder neither what begins with a dot is read, as in mounted secrets, nor folders in it. A token that has gone from the files is
    refused from the next look on. Files without any are valid, and let nobody in; files that are not there leave the last tokens valid.

    Args:
        path: of the file or folder.
        setting: that names it, for messages.

    Raises:
        BadSettings: it cannot be read, or a line is no token; no message quotes one.
    """

    def wrong(what: str) -> BadSettings:
        return BadSettings(f"{setting} = '{path}': {what}")

    def read() -> dict[str, bytes]:
        try:
            folder = path.is_dir()
            files = sorted(file for file in path.iterdir() if file.name[0] != "." and file.is_file()) if folder else [path]
            if len(files) > FILES_MAX:
                raise wrong(f"the folder has {len(files)} files; the limit is {FILES_MAX}")
            return {file.name: _head(file) for file in files}
        except OSError as error:
            raise wrong(f"cannot be read: {error.strerror or error}") from error

    def make(files: dict[str, bytes]) -> Tokens:
        found: set[str] = set()
        for name, content in files.items():
            if len(content) > FILE_BYTES_MAX:
                raise wrong(f"the file {name} has more bytes than the limit of {FILE_BYTES_MAX}")
            for number, line in enumerate(content.decode("latin-1").splitlines(), 1):
                token = line.strip()
                if not token or token.startswith("#"):
                    continue
                if not CHARACTERS_MIN <= len(token) <= CHARACTERS_MAX:
                    limits = f"the limits are {CHARACTERS_MIN} and {CHARACTERS_MAX}"
                    raise wrong(f"line {number} of {name} has {len(token)} characters; {limits}")
                if not TOKEN.fullmatch(token):
                    raise wrong(f"line {number} of {name} has other characters than A-Z a-z 0-9 - . _ ~ + / and = at its end")
                found.add(token)
        if len(found) > TOKENS_MAX:
            raise wrong(f"has {len(found)} tokens; the limit is {TOKENS_MAX}")
        return Tokens(found)

    return Reloaded("tokens", read, make)


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(FILE_BYTES_MAX + 1)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
