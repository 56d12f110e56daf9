"""The words that decide an answer: searched by erasing them with the attention mask, tested in two other ways. Pure.

A set that a search found by some way of erasing does well by that way, whatever the model: so it is tested by another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sentiment.explain.methods.erasure import Answers, Enough, Floats, Steps, ranked, without
from sentiment.explain.methods.evidence import RANDOM_SETS_MAX, Verdict, other_word_sets, rank_of, verdict_of
from sentiment.explain.methods.target import Target
from sentiment.model.scores import probabilities

OPERATOR = "mask_token+deletion"
# The search keeps this many sets of each size, and adds words among this many to each.
WIDTH, AMONG = 3, 10
# After this many new rows the set grows by the word that is next in the ranking.
ROWS_BUDGET = 64

Words = tuple[int, ...]


def rows_most(n: int) -> int:
    """How many rows ``search`` and ``compare`` take at most. In the test each set is erased in two ways."""
    return ROWS_BUDGET + WIDTH * AMONG + n // 2 + 2 * (1 + RANDOM_SETS_MAX)


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found. ``words``: the set of a fifth of the words, ascending, whose erasure moves the explained logit most.

    ``changing``: the fewest words found without which the answer changes, with the ``label`` that it is then and its logits; empty and
    None if it does not within half of the words.
    """

    words: Words
    changing: Words = ()
    logits: Floats | None = None


@dataclass(frozen=True, slots=True)
class DecidingWords:
    """A set of words that was searched, and its test: see the proto. ``label``: index of the answer without the ``changing_words``."""

    words: Words
    verdict: Verdict
    comprehensiveness: float
    random_sets: int
    p_value: float
    rank: int
    random_median: float
    random_max: float
    changing_words: Words
    label: int | None
    score: float
    operator: str = OPERATOR


def search(n: int, scores: Floats, target: Target, answers: Answers) -> Steps[Found]:
    """Search for the words whose erasure moves the explained logit most: down if the label wins, otherwise up.

    A beam search: of each size the WIDTH best sets are kept, and each grows by one of the AMONG words ranked first. Sets above a fifth of
    the words grow one at a time, until the answer changes or half of the words are erased.

    Args:
        n: number of words of the text.
        scores: [n], of an attribution; a larger score means more support for the label.
        target: what is explained.
        answers: known logits of this text; the whole text's among them.

    Raises:
        Enough: if thrown before a set of a fifth of the words is found.
    """
    before, whole = answers.rows, answers.known(np.ones((1, n), np.bool_))[0]
    sign = 1 if target.wins(whole) else -1
    answers_label = int(whole.argmax()) == target.label
    # Against another label than the runner-up, what moves the explained logit need not change the answer.
    changes = target.wins(whole) == answers_label
    order, fifth = ranked(sign * scores), -(-n // 5)
    beam: list[Words] = [()]
    words: Words = ()
    changing: tuple[Words, Floats] | None = None
    try:
        for size in range(1, max(fifth, n // 2) + 1):
            few = answers.rows - before >= ROWS_BUDGET
            wider = size <= fifth and not few
            sets = [tuple(sorted((*one, word))) for one in beam for word in _next(order, one, 1 if few else AMONG)]
            sets = list(dict.fromkeys(sets))
            logits = yield from answers.ask(without(n, sets))
            places = np.argsort(sign * target.logit(logits), kind="stable").tolist()
            if changing is None and changes:
                changed = [place for place in places if (int(logits[place].argmax()) == target.label) is not answers_label]
                changing = (sets[changed[0]], logits[changed[0]]) if changed else None
            beam = [sets[place] for place in places[: WIDTH if wider and size < fifth else 1]]
            if size == fifth:
                words = beam[0]
            if size >= fifth and (changing is not None or not changes):
                break
    except Enough:
        if not words:
            raise
    return Found(words, *(changing or ()))


def _next(order: Sequence[int], words: Words, count: int) -> list[int]:
    """The words ranked first that are not in a set."""
    return [word for word in order if word not in words][:count]


def compare(n: int, found: Found, target: Target, temperature: float, known: Answers, answers: Answers, seed: int) -> Steps[DecidingWords]:
    """Test the words found: erased in other ways, they must change the answer more than random sets of as many words.

    The verdicts and their errors are those of ``evidence``; nothing is ranked, so NOT_FAITHFUL says that the median of the random sets is
    better.

    Args:
        n: number of words of the text.
        found: by ``search``.
        target: what is explained.
        temperature: of the calibration.
        known: logits of the text with words erased by the attention mask; that of the whole among them.
        answers: known logits of the text with words erased in the other ways. Its masks are run so.
        seed: of the random sets.

    Raises:
        Enough: if thrown before the logits without the words found are known. Later the result uses the random sets so far.
    """
    whole = known.known(np.ones((1, n), np.bool_))[0]
    masks = without(n, [found.words, *other_word_sets(n, found.words, RANDOM_SETS_MAX, np.random.default_rng(seed))])
    try:
        logits = yield from answers.ask(masks)
    except Enough:
        logits = answers.known(masks)
        if not len(logits):
            raise
    shares = [target.probability(row, temperature) for row in (whole, *logits)]
    text, *rest = shares if target.wins(whole) else [1 - share for share in shares]
    own, *others = [text - value for value in rest]
    rank = rank_of(own, others)
    label = None if found.logits is None else int(found.logits.argmax())
    return DecidingWords(
        words=found.words,
        verdict=verdict_of(own, others),
        comprehensiveness=own,
        random_sets=len(others),
        p_value=rank / (len(others) + 1),
        rank=rank,
        random_median=float(np.median(others)) if others else 0.0,
        random_max=max(others, default=0.0),
        changing_words=found.changing,
        label=label,
        score=0.0 if label is None or found.logits is None else probabilities(found.logits.tolist(), temperature)[label],
    )
