"""Adaptive effort: a part of a long text is read first, and the whole only if the part's answer does not suffice. Pure.

What suffices depends on the logits of the part and the bundle alone, never on load: on a CPU the same digest and effort give the same
answer.
"""

import math
from collections.abc import Sequence

from pydantic import Field

from sentiment.model.scores import Scored
from sentiment.model.section import Section
from sentiment.model.shown import Shown

FULL, ADAPTIVE = "full", "adaptive"
"""The efforts, as callers and settings name them."""


DIFFER_MAX = 0.01
"""The share of texts that may get another answer than reading in full gives."""

# Who asks for one of these wants an answer to all of the text or none.
_WHOLE = ("refuse", "windows")


class Proven(Section):
    """What the rule does to the texts of one domain, which neither set the rule nor trained the model.

    ``early``: texts that are answered from their part. ``differ``: those of them whose answer (label, abstain, mixed) is not that of the
    full reading. ``bound``: of the share of texts that differ, with 95 % confidence (exact binomial). ``cost``: tokens computed over
    those of full readings.
    """

    texts: int = Field(ge=1)
    early: int = Field(ge=0)
    differ: int = Field(ge=0)
    bound: float = Field(ge=0, le=1)
    cost: float = Field(gt=0)


class EffortSpec(Section):
    """The rule of a bundle. ``head``, ``tail``: the first and last tokens of a text that are its part, special tokens included.

    ``tokens_min``: of texts that are read in parts. ``log_odds``: the least of an answer that suffices: see ``log_odds_of``.
    ``proven``: by domain.
    """

    head: int = Field(ge=1)
    tail: int = Field(ge=1)
    tokens_min: int = Field(ge=3)
    log_odds: float
    proven: dict[Shown, Proven] = Field({})

    @property
    def part_tokens(self) -> int:
        """Tokens of the part of a text."""
        return self.head + self.tail

    def check(self, max_tokens: int) -> None:
        """Check that a part is less than its text. ``max_tokens``: the most that the model reads.

        Raises:
            ValueError: it is not, or no text is read in parts.
        """
        if not self.part_tokens < self.tokens_min <= max_tokens:
            raise ValueError(
                f"effort.tokens_min must be more than the {self.part_tokens} tokens of head and tail, and at most max_tokens "
                f"({max_tokens}), got {self.tokens_min}"
            )


def may_end_early(truncated: bool, asked: str | None, default: str) -> bool:
    """Whether a part of a single text may be enough. A rule is proved for the model's own truncation.

    Args:
        truncated: whether the text has more tokens than the model reads.
        asked: the truncation that the caller asks for; None: ``default``.
        default: the model's.
    """
    return asked not in _WHOLE and (not truncated or (asked in (None, default) and default not in _WHOLE))


def told(scored: Scored) -> tuple[str, bool, bool]:
    """What callers act on of an answer."""
    return scored.label, scored.abstain, scored.mixed


def log_odds_of(logits: Sequence[float], labels: int) -> float:
    """The log odds of the likeliest of the first ``labels`` outputs against all other ones. NaN if a logit is."""
    best = max(range(labels), key=logits.__getitem__)
    others = [logit for output, logit in enumerate(logits) if output != best]
    top = max(others)
    return logits[best] - top - math.log(math.fsum(math.exp(other - top) for other in others))
