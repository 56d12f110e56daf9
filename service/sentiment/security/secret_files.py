"""Files of tokens, certificates and keys: for the server that knows the tokens, and for the client that sends one."""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from sentiment.errors import BadSettings

# A certificate chain has a few kilobytes; all authorities of the web together have 250 kB.
FILE_BYTES_MAX = 2**20

# The characters of a token, and of the name before it. Names are shown: of a line in the wrong order the token should be too long for one.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
WEIGHT = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3})?")
WEIGHT_MIN, WEIGHT_MAX = 0.1, 100.0
CHARACTERS = "a token may have only A-Z a-z 0-9 - . _ ~ + / and = at its end"
# A longer token would leave no room for other headers.
CHARACTERS_MAX = 4096


def content_of(path: Path, named: str) -> bytes:
    """The content of a small file. ``named``: the file in messages.

    Raises:
        BadSettings: it cannot be read, or is too large.
    """
    try:
        with path.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadSettings(f"{named}: cannot be read: {error.strerror or error}") from error
    if len(content) > FILE_BYTES_MAX:
        raise BadSettings(f"{named}: has more bytes than the limit of {FILE_BYTES_MAX}")
    return content


def files_of(path: Path) -> list[Path]:
    """The file, or those of a folder, sorted. Subfolders and names that begin with a dot are skipped, as mounted secrets have them."""
    return sorted(file for file in path.iterdir() if file.name[0] != "." and file.is_file()) if path.is_dir() else [path]


def no_password() -> str:
    """Refuse an encrypted key. Without this callback OpenSSL would prompt for a password on the terminal."""
    raise ValueError("the key is encrypted")


def tokens_of(name: str, content: bytes, characters_min: int = 1) -> Iterator[tuple[str, float, str]]:
    """Yields the tokens of a file, each with its name and weight: one a line, as TOKEN, NAME:TOKEN or NAME*WEIGHT:TOKEN.

    Empty lines and those that begin with # are left out.

    ``name``: the file's, for messages. The name of a token without one is empty. A byte order mark of UTF-8 at the beginning is not part of
    a token.

    Raises:
        ValueError: a line is not a token. The message names the line, and does not quote it.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(f"{name} is in UTF-16; save it in UTF-8")
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).decode("latin-1").splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        # No token has a colon.
        before, colon, token = stripped.rpartition(":")
        named, star, weighs = before.partition("*")
        if colon and not NAME.fullmatch(named):
            raise ValueError(
                f"line {number} of {name}: the name before a token has 1 to 32 of A-Z a-z 0-9 . _ - and begins with a letter or digit"
            )
        weight = float(weighs) if WEIGHT.fullmatch(weighs) else 0.0 if star else 1.0
        if not WEIGHT_MIN <= weight <= WEIGHT_MAX:
            raise ValueError(f"line {number} of {name}: the weight after * is a number from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}")
        if not characters_min <= len(token) <= CHARACTERS_MAX:
            limits = f"{characters_min} to {CHARACTERS_MAX} characters"
            raise ValueError(f"line {number} of {name}: a token must have {limits}, got {len(token)}")
        if not TOKEN.fullmatch(token):
            raise ValueError(f"line {number} of {name}: {CHARACTERS}")
        yield named, weight, token
