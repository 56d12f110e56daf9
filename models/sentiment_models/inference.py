"""Run many texts through a graph with the service's own tokenizer, padding and session, on every core that is granted.

The service's modules and no others, so that what is measured here is what is served.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from sentiment.model.cores import cores_granted
from sentiment.model.session import Session
from sentiment.model.tensors import Feeds, pad
from sentiment.model.tokenizer import Row, Tokenizer
from sentiment_models.metrics import Logits

# On a CPU more rows a batch gain nothing, and 4 rows of 512 tokens already take 200 MB of attention scores.
BATCH_ROWS_MAX = 16
BATCH_TOKENS_MAX = 2048
# Texts are tokenized and sorted by length in pools: memory stays bounded, and a pool has many batches of each length.
POOL_TEXTS = 2048


@dataclass(frozen=True, slots=True)
class Graph:
    """A session with the tokenizer that feeds it. All methods may be called from several threads."""

    tokenizer: Tokenizer
    session: Session
    pads_left: bool = False

    def feeds(self, rows: Sequence[Row], length: int = 0) -> Feeds:
        """Pad rows to the longest of them, or to ``length`` tokens if that is more."""
        feeds = pad(rows, self.session.inputs, self.tokenizer.pad_id, self.pads_left)
        extra = max(0, length - max(row.tokens for row in rows))
        widths = ((0, 0), (extra, 0) if self.pads_left else (0, extra))
        fill = {"input_ids": self.tokenizer.pad_id}
        return {name: np.pad(array, widths, constant_values=fill.get(name, 0)) for name, array in feeds.items()}

    def logits(self, rows: Sequence[Row], length: int = 0) -> Logits:
        """Run rows as one batch in the calling thread; the answer is in their order."""
        return self.session.run(self.feeds(rows, length))


@dataclass(frozen=True, slots=True)
class Answers:
    """Raw logits in the order of the texts, and what was read to get them."""

    logits: Logits
    tokens: int
    truncated: int


def answer(graph: Graph, texts: Sequence[str], title: str = "texts", threads: int = 0) -> Answers:
    """Run every text, batched by length, with a progress bar.

    Args:
        graph: what to run.
        texts: at least one; each is truncated to what the graph reads.
        title: the progress bar's.
        threads: how many share the session; 0: as many as cores are granted.
    """
    logits: list[Logits | None] = [None] * len(texts)
    tokens = truncated = 0
    with ThreadPoolExecutor(threads or cores_granted()) as pool, tqdm(total=len(texts), desc=title, unit="text", mininterval=1) as bar:
        for start in range(0, len(texts), POOL_TEXTS):
            rows = graph.tokenizer.encode_many(texts[start : start + POOL_TEXTS])
            tokens += sum(row.tokens for row in rows)
            truncated += sum(row.truncated for row in rows)
            groups = list(by_length(rows))
            for group, found in zip(groups, pool.map(graph.logits, ([rows[index] for index in group] for group in groups)), strict=True):
                for index, row_logits in zip(group, found, strict=True):
                    logits[start + index] = row_logits
                bar.update(len(group))
    return Answers(np.stack([row for row in logits if row is not None]), tokens, truncated)


def by_length(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Group indices of rows of like length, the longest first, so that the last batches, which end unevenly, are short."""
    group: list[int] = []
    for index in sorted(range(len(rows)), key=lambda index: -rows[index].tokens):
        if group and (len(group) == BATCH_ROWS_MAX or (len(group) + 1) * rows[group[0]].tokens > BATCH_TOKENS_MAX):
            yield group
            group = []
        group.append(index)
    if group:
        yield group
