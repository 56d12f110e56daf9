"""The answer to one text, whatever way it came. Pure."""

from dataclasses import dataclass

from sentiment.errors import RequestError
from sentiment.model.classifier import Parts
from sentiment.model.scores import Scored


@dataclass(slots=True)
class Answer:
    """The answer to a text and its times in seconds. With several rows, queue, run and batch are those of the last one.

    ``tokens``: of the whole, or with ``early`` of the part that sufficed. ``truncated``: of the whole. ``language_suspect``: the text seems
    to be in another language or script than the vocabulary.
    ``parts``: None unless they were asked for.
    """

    scored: Scored
    tokens: int
    truncated: bool
    language_suspect: bool
    total_s: float
    tokenize_s: float
    queue_s: float
    run_s: float
    batch_rows: int
    parts: Parts | None = None
    early: bool = False


Outcome = Answer | RequestError
