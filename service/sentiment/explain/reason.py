"""The sentence with which an explanation begins: the answer, and the phrases of the text that decide it. Pure."""

import math
from collections.abc import Sequence
from itertools import pairwise
from unicodedata import category

from sentiment.explain.methods.erasure import Floats
from sentiment.explain.methods.evidence import Verdict
from sentiment.explain.methods.phrases import SENTENCES_MAX, phrases
from sentiment.explain.methods.sentences import sentence_words
from sentiment.explain.methods.target import Target
from sentiment.explain.parts import Attribution
from sentiment.model.scores import Scored
from sentiment.model.words import Encoded

# Characters of a phrase that is quoted, and what may stand around it.
QUOTED_MAX, AROUND_BYTES_MAX = 80, 20
# A reason takes at most these bytes, besides the labels that it names.
BYTES_MAX = (SENTENCES_MAX + 2) * (4 * QUOTED_MAX + AROUND_BYTES_MAX) + 100
LABELS_MAX = 2
# Words without which the answer changes are quoted if they are no more.
CHANGING_NAMED = 2


def reason(
    texts: Sequence[str],
    encoded: Encoded,
    scored: Scored,
    labels: Sequence[str],
    target: Target,
    found: Attribution,
    verdict: Verdict,
    changing: Sequence[int] = (),
    changed: str | None = None,
    about: str | None = None,
) -> str:
    """The sentence of an explanation.

    It names the phrases that say most for the explained label, at most two of at most eight words together, or three sentences of a long
    text, if they hold at least half of all that speaks for it; and what most speaks against it. Values within two standard errors of
    zero count as zero. It names none if the evidence is FLAT or NOT_FAITHFUL.

    Args:
        texts: the text, or both texts of a pair.
        encoded: what the model read of them.
        scored: the answer.
        labels: of the model.
        target: what is explained.
        found: the first attribution.
        verdict: of its evidence.
        changing: words found by a search without which the answer is another one; empty if it found none.
        changed: that other label.
        about: what the answer is towards; None: the answer is to the whole text.
    """
    answer, explained = scored.label, labels[target.label]
    if scored.abstain:
        answer = f"undecided, most likely {scored.label}"
    answer = f"Towards {_cut(about)}: {answer}" if about is not None else answer[:1].upper() + answer[1:]
    if verdict is Verdict.FLAT:
        return f"{answer}; {'its words together hardly move' if len(encoded.words) > 1 else 'its one word hardly moves'} that."
    if verdict is Verdict.NOT_FAITHFUL:
        return f"{answer}; which words decide that cannot be told."
    sentences = [one.words for one in found.sentences] or sentence_words(encoded, texts)
    said = phrases(found.words, found.standard_errors, sentences, _blank(texts, encoded), math.isfinite(found.residual))
    sides = (said.towards, found.words), (said.against, -found.words)
    towards, against = (" and ".join(_quoted(texts, encoded, one, values) for one in side) for side, values in sides)
    if explained != scored.label:
        other = f"for {explained}: {towards}" if towards else f"no single phrase speaks for {explained}"
        return f"{answer}; {other}{f'; against it: {against}' if against else ''}."
    because = f"mostly because of {towards}" if towards else "but no single phrase decides that"
    if not towards and changed is not None:
        every = [_quoted(texts, encoded, range(word, word + 1), found.words) for word in changing]
        few = len(every) <= CHANGING_NAMED
        without = " and ".join(every) if few else f"{len(every)} of its {len(encoded.words)} words"
        because = f"{'and' if few else f'{because};'} without {without} it would be {changed}"
    return f"{answer}, {because}{f'; {against} speaks against it' if against else ''}."


def _blank(texts: Sequence[str], encoded: Encoded) -> list[int]:
    """The punctuation marks that stand alone: not emoji, and not several in a row, such as emoticons."""
    words = encoded.words
    marks = [all(category(sign)[0] == "P" for sign in texts[word.pair][word.start : word.end]) for word in words]
    # Of each word, whether it and the next one are marks without a space between them.
    joined = [*map(all, zip(marks, marks[1:], (one.end == two.start for one, two in pairwise(words)), strict=False))]
    rows = zip(words, marks, [False, *joined], [*joined, False], strict=False)
    return [place for place, (word, mark, before, behind) in enumerate(rows) if mark and word.end - word.start == 1 and not before | behind]


def _quoted(texts: Sequence[str], encoded: Encoded, words: range, values: Floats) -> str:
    """Quote words; of too many those that follow each other and say most. ``values``: [n]."""

    def written(start: int, end: int) -> str:
        first, last = encoded.words[words[start]], encoded.words[words[end - 1]]
        said = " ".join(texts[first.pair][first.start : last.end].split())
        return f"{'…' * (start > 0)}{said}{'…' * (end < len(words))}"

    # By its start, the end of each part that fits and cannot be longer.
    start, parts = 0, {}
    for end in range(1, len(words) + 1):
        while start < end - 1 and len(written(start, end)) > QUOTED_MAX:
            start += 1
        parts[start] = end
    return _cut(written(*max(parts.items(), key=lambda part: float(values[[*words[slice(*part)]]].sum()))))


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return f"“{text if len(text) <= QUOTED_MAX else text[: QUOTED_MAX - 1].rstrip() + '…'}”"
