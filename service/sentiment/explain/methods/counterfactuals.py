"""Small sets of words that decide the answer, each verified on the served model. Pure.

A flip: words without which the answer is another (Martens and Provost 2014, "Explaining Data-Driven Document Classifications").
A keep: words that alone give the answer (Carter, Mueller, Jain and Gifford 2019, "What Made You Do This? Understanding Black-Box
Decisions with Sufficient Input Subsets").
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from sentiment.explain.methods.erasure import Answers, Enough, Floats, Masks, Steps, ranked, without
from sentiment.model.scores import probabilities

ROWS_BUDGET = 256
# Pairs are tried among so many words: 66 rows, and all pairs of a short sentence.
PAIR_WORDS = 12
# Of a longer text not every prefix of the ranking is tried: those between cost as much as shrinking and find nothing smaller.
PREFIXES = 32

Words = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """What a search found. Without a find ``words``, ``label`` and ``probability`` are None.

    ``words`` are indices in the order of the text; ``label`` is the answer that they make, ``probability`` its calibrated one.
    ``rows``: masks that the search asked for. ``minimal``: the model has been asked without each single word, and no word can
    be left out. ``exhaustive_below``: no set of fewer words than this does it, all were tried; if that is the size of ``words``,
    none is smaller. ``stopped``: the budget or ``Enough`` ended the search, and more might have been found.
    """

    words: Words | None
    label: int | None
    probability: float | None
    rows: int
    minimal: bool
    exhaustive_below: int
    stopped: bool


def flip(n: int, scores: Floats, label: int, temperature: float, answers: Answers, rows_budget: int = ROWS_BUDGET) -> Steps[Counterfactual]:
    """Look for the fewest words whose removal takes the answer away from ``label``.

    If ``label`` is not the answer, for the fewest whose removal makes it so. Tries the words in order of their scores together,
    leaves out of those what is not needed, then tries every word alone and pairs of the first.

    Args:
        n: words of the text.
        scores: [n], the larger the more a word speaks for the label.
        label: the explained one.
        temperature: of the calibration.
        answers: what is known of this text.
        rows_budget: the most masks it may ask for, at least 1; those that have an answer are free.

    Raises:
        Enough: it was thrown before the whole text had an answer; later the best set so far is the result.
    """
    search = _Search(n, label, answers, rows_budget, erases=True)
    whole = yield from answers.ask(np.ones((1, n), np.bool_))
    search.wanted = int(whole[0].argmax()) != label
    yield from search.run(ranked(-scores if search.wanted else scores))
    return search.result(temperature)


def keep(n: int, scores: Floats, label: int, temperature: float, answers: Answers, rows_budget: int = ROWS_BUDGET) -> Steps[Counterfactual]:
    """Look for the fewest words that alone make ``label`` the answer: none if the empty text does.

    Arguments and way as of ``flip``. Whenever ``Enough`` is thrown, there is a result, if only that nothing was found.
    """
    search = _Search(n, label, answers, rows_budget, erases=False)
    yield from search.run(ranked(scores))
    return search.result(temperature)


class _Search:
    """A search for the smallest set of words that reaches its aim; what it has found is kept when it is stopped.

    A set's words are erased or are all that is kept; the aim is that the label is the answer then (``wanted``), or that it is not.
    """

    def __init__(self, n: int, label: int, answers: Answers, rows_budget: int, erases: bool) -> None:
        self._n = n
        self._label = label
        self._answers = answers
        self._rows_before = answers.rows
        self._rows_budget = rows_budget
        self._erases = erases
        self.wanted = True
        self._best: Words | None = None
        self._minimal = False
        self._exhaustive_below = 0
        self._stopped = False

    def run(self, order: Sequence[int]) -> Steps[None]:
        """Search by a ranking of the words; on ``Enough`` and at the end of the budget keep what there is."""
        try:
            yield from self._grow(order)
            yield from self._shrink()
            yield from self._try_small(order)
        except Enough:
            self._stopped = True

    def result(self, temperature: float) -> Counterfactual:
        """What has been found."""
        rows = self._answers.rows - self._rows_before
        if self._best is None:
            return Counterfactual(None, None, None, rows, self._minimal, self._exhaustive_below, self._stopped)
        words = tuple(sorted(self._best))
        logits = self._answers.known(self._masks([words]))[0]
        label = int(logits.argmax())
        probability = probabilities(logits, temperature)[label]
        return Counterfactual(words, label, probability, rows, self._minimal, self._exhaustive_below, self._stopped)

    def _grow(self, order: Sequence[int]) -> Steps[None]:
        """Take the shortest prefix of the order that reaches the aim, of a long text among PREFIXES of them: what is too much shrinks."""
        sizes = list(range(self._n + 1))
        if self._n >= PREFIXES:
            sizes = [0, *(int(size) for size in np.unique(np.geomspace(1, self._n, PREFIXES - 1).round()))]
        self._best = yield from self._first([tuple(order[:size]) for size in sizes])
        self._exhaustive_below = 0 if self._best == () else 1

    def _shrink(self) -> Steps[None]:
        """Leave words out of the best set, the last of the order first, until not one of them can be."""
        while self._best is not None and not self._minimal:
            best = self._best
            words = best[::-1]
            reached = yield from self._ask([_less(best, {word}) for word in words])
            if len(reached) < len(words):
                raise Enough
            spare = [word for word, reaches in zip(words, reached, strict=True) if reaches]
            self._minimal = not spare
            if spare:
                self._best = _less(best, {spare[0]})
                # What can be left out alone can mostly be left out together: that saves a round for each.
                together = [_less(best, set(spare[:count])) for count in range(len(spare), 1, -1)]
                self._best = (yield from self._first(together)) or self._best

    def _try_small(self, order: Sequence[int]) -> Steps[None]:
        """Try each word, then pairs of the first words, where that would be fewer words than the best set has."""
        for size, among in ((1, order), (2, order[:PAIR_WORDS])):
            if self._best is not None and len(self._best) <= size:
                return
            found = yield from self._first(list(combinations(among, size)))
            if found:
                # All sets of fewer words have failed by now.
                self._best, self._minimal = found, True
                return
            if len(among) == self._n:
                self._exhaustive_below = size + 1

    def _first(self, sets: Sequence[Words]) -> Steps[Words | None]:
        """The first of the sets that reaches the aim, asked for batch by batch."""
        for start in range(0, len(sets), self._answers.rows_max):
            part = sets[start : start + self._answers.rows_max]
            reached = yield from self._ask(part)
            if any(reached):
                return part[reached.index(True)]
            if len(reached) < len(part):
                raise Enough
        return None

    def _ask(self, sets: Sequence[Words]) -> Steps[list[bool]]:
        """Whether sets reach the aim; of the leading ones alone when the budget does not suffice for all."""
        masks = self._masks(sets)
        count = self._answers.affordable(masks, self._rows_budget - (self._answers.rows - self._rows_before))
        if not count:
            return []
        logits = yield from self._answers.ask(masks[:count])
        return [(int(row.argmax()) == self._label) is self.wanted for row in logits]

    def _masks(self, sets: Sequence[Words]) -> Masks:
        masks = without(self._n, sets)
        return masks if self._erases else ~masks


def _less(words: Words, left_out: Set[int]) -> Words:
    return tuple(word for word in words if word not in left_out)
