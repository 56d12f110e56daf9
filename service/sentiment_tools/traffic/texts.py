"""Texts to send: generated sentences with lengths of a distribution, or the texts of a file."""

import random
from collections.abc import Iterator

from sentiment.errors import BadSettings
from sentiment_tools.traffic.lengths import SPECIAL_TOKENS, Lengths, count_words, first_words, parse_built_in, texts_of_file

# Enough to represent a distribution with its tail. Each process of a load test holds all of them in memory.
BUILT_IN_TEXTS = 1024
FILE_TEXTS_MAX = 20_000
FILE_BYTES_MAX = 32 * 2**20

SUBJECTS = ("the film", "this story", "the lead actor", "her performance", "the script", "every scene", "the director", "the second half")
VERBS = ("delivers", "wastes", "carries", "ruins", "celebrates", "forgets", "rescues", "drowns in", "finds", "misses")
OBJECTS = (
    "a quiet kind of joy that stays with you",
    "two hours of my life I will never get back",
    "its own clumsy jokes and borrowed ideas",
    "moments of real tenderness between strangers",
    "the patience of anyone who paid for a ticket",
    "an honest look at growing old in a small town",
    "more noise than the thin plot can bear",
    "the best soundtrack of the year",
)
SYLLABLES = ("ba", "den", "fi", "gol", "ka", "lur", "mi", "nos", "per", "qui", "ra", "sel", "to", "ven", "wa", "zor")
JOINTS = (", and", ", but", "; still,", ". Then", ". Worse,", ". Better still,", ", while", " because")


def clauses(rng: random.Random) -> Iterator[str]:
    """Endless pieces that can be joined to a text of any length."""
    yield _clause(rng).capitalize()
    while True:
        clause = _clause(rng)
        yield f"{rng.choice(JOINTS)} {clause}"


def _clause(rng: random.Random) -> str:
    return f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}"


def with_new_words(text: str, rng: random.Random) -> str:
    """The text with another made-up word for one in 20, as many as are new to a reader of many film reviews."""
    words = text.split(" ")
    for place in range(rng.randrange(20), len(words), 20):
        words[place] = "".join(rng.choices(SYLLABLES, k=4))
    return " ".join(words)


def make_texts(lengths: Lengths, count: int, seed: int = 1) -> list[str]:
    """Generate ``count`` texts with these lengths, counted without a tokenizer. The same seed gives the same texts."""
    rng = random.Random(seed)
    return [_text_of(tokens, rng) for tokens in lengths.spread(count, rng)]


def _text_of(tokens: int, rng: random.Random) -> str:
    pieces, found, wanted = [], 0, max(1, tokens - SPECIAL_TOKENS)
    for piece in clauses(rng):
        pieces.append(piece)
        found += count_words(piece)
        if found >= wanted:
            break
    return first_words("".join(pieces), wanted)


def read_pool(source: str, column: str = "text") -> list[str]:
    """The texts to choose from: generated for ``sst2``, ``imdb``, ``mixed`` or a number of tokens, else read from a file.

    At most FILE_TEXTS_MAX texts, and FILE_BYTES_MAX bytes of UTF-8, are read from a file.

    Raises:
        BadSettings: the source is unknown, the file has no text, or a text is not valid Unicode.
    """
    lengths = parse_built_in(source)
    if lengths is not None:
        return make_texts(lengths, BUILT_IN_TEXTS)
    texts: list[str] = []
    size = 0
    try:
        for text in texts_of_file(source, column, "texts"):
            size += len(text.encode())
            if len(texts) == FILE_TEXTS_MAX or size > FILE_BYTES_MAX:
                break
            if text.strip():
                texts.append(text)
    except UnicodeEncodeError as error:
        raise BadSettings(f"{source}: a text has {error.object[error.start]!r}, which is not a valid Unicode character") from error
    if not texts:
        raise BadSettings(f"{source}: the file has no text")
    return texts
