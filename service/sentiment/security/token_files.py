"""What a file of bearer tokens says: for the server that knows them, and for the client that sends one. Pure."""

import codecs
import re
from collections.abc import Iterator

# The characters of a token.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
CHARACTERS = "a token may have only A-Z a-z 0-9 - . _ ~ + / and = at its end"
# A longer token would leave no room for other headers.
CHARACTERS_MAX = 4096


def tokens_of(name: str, content: bytes, characters_min: int = 1) -> Iterator[str]:
    """Yields the tokens of a file: one a line, but for empty lines and those that begin with #. ``name``: the file's, for messages.

    A byte order mark of UTF-8 at the beginning is not part of a token.

    Raises:
        ValueError: a line is not a token. The message names the line, and does not quote it.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(f"{name} is in UTF-16; save it in UTF-8")
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).decode("latin-1").splitlines(), 1):
        token = line.strip()
        if not token or token.startswith("#"):
            continue
        if not characters_min <= len(token) <= CHARACTERS_MAX:
            limits = f"{characters_min} to {CHARACTERS_MAX} characters"
            raise ValueError(f"line {number} of {name}: a token must have {limits}, got {len(token)}")
        if not TOKEN.fullmatch(token):
            raise ValueError(f"line {number} of {name}: {CHARACTERS}")
        yield token
