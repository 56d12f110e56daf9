"""The texts that all servers are asked: made with the load tester's lengths, or the long ones from a file."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sentiment_tools.traffic.lengths import IMDB, SST2
from sentiment_tools.traffic.texts import make_texts, read_pool
from tests.bench.peers.figures import CHECKED_TEXTS, ZIPF_TEXTS

TEXTS = 512


@dataclass(frozen=True, slots=True)
class Texts:
    """Short texts have the lengths of SST-2's sentences, long ones of IMDB's reviews; of mixed ones and those to repeat half are long."""

    short: Sequence[str]
    long: Sequence[str]
    mixed: Sequence[str]
    repeating: Sequence[str]

    @property
    def checked(self) -> Sequence[str]:
        """The texts by which the servers' answers are compared."""
        return (*self.short[:CHECKED_TEXTS], *self.mixed[:CHECKED_TEXTS])


def texts_of(file: Path | None) -> Texts:
    """The texts. ``file``: has the long ones, at best real reviews; what adaptive effort saves depends on what they say.

    Raises:
        BadSettings: the file has no text.
    """
    short = make_texts(SST2, ZIPF_TEXTS // 2)
    long = read_pool(str(file)) if file else make_texts(IMDB, ZIPF_TEXTS // 2)
    mixed = list(itertools.chain.from_iterable(zip(short, long, strict=False)))
    return Texts(short[:TEXTS], long[:TEXTS], mixed[:TEXTS], mixed)
