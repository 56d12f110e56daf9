"""What a column of explained texts says together: how many have which label, and which words and phrases speak for each. Pure.

The definition, which the viewer shares:

- A row is a text. Words are compared in lower case, as ``str.lower`` and JavaScript's toLowerCase make it alike; those of punctuation
  alone, and names behind @, are left out.
- An undecided answer counts as undecided, and not for its label.
- A value within two standard errors of zero counts as 0. The value of a word in a row is the sum of what it has there.
- An explanation sets its label against another. A value v counts as v for the first, and as -v for the other. So the values for a label
  are of the rows that explain it, or set another label against it.
- A phrase is 2 to 4 words in a row of one sentence, without punctuation between. It is considered if in at least ROWS_MIN rows its first
  and its last word speak for the same label. Then it counts in every row that has it, with the sum of its words.
- Rows whose evidence is NOT_FAITHFUL or FLAT, and all but the first of rows with the same text, count as answers and not for words.
- For a label the LISTED_MAX words, and phrases, with the largest sums are listed, of those that at least ROWS_MIN rows have and whose sum
  is at least LISTED_SHARE of the largest. Of phrases of which one is within the other, that with the larger sum is.
- The sum is a fact of these rows. The mean has an interval for rows like these, by Student's t over the rows that have the word. As the
  largest of many are chosen, it is widened: n that are chosen of m have intervals of 1 - 0.05 n / m, so that on average 5 % of the
  intervals in a list miss (false coverage rate; Benjamini and Yekutieli 2005). Equal values in all rows give none.

Cases in JSON, for others who compute the same: tests/core/explain/column_cases.json.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from unicodedata import category

from sentiment.explain.methods.student import quantile
from sentiment.explain.wording import ZERO_ERRORS
from sentiment.observability.agreement import wilson

ROWS_MIN = 3
PHRASE_WORDS_MAX = 4
# Of the intervals in a list, on average, that miss.
MISSED = 0.05
LISTED_MAX, LISTED_SHARE = 8, 0.1
EXAMPLES_MAX = 3
# The largest groups; the rows of all others are one.
GROUPS_MAX = 20
# Further words and phrases, texts and groups are not kept, so that memory is bounded: some 100 bytes for each, and some 600 for each word
# and phrase that enough rows have, by label and group.
TERMS_MAX, TEXTS_MAX, GROUPS_SEEN_MAX = 2**20, 2**20, 2**16
# As the explanation's verdicts. Such values are not to be relied on.
NOT_COUNTED = ("NOT_FAITHFUL", "FLAT")


@dataclass(frozen=True, slots=True)
class Explained:
    """A row with its answer and, if it is explained, the values of its words.

    ``towards``: the label that values above 0 speak for, None without an explanation; ``against``: that of those below 0, None if they
    speak for several. ``words``, ``values``, ``errors`` (standard errors, infinite where unknown) and ``sentences`` (numbers) are of one
    length.
    """

    text: str
    label: str
    abstain: bool
    towards: str | None
    against: str | None
    verdict: str
    words: Sequence[str]
    values: Sequence[float]
    errors: Sequence[float]
    sentences: Sequence[int]
    group: str = ""


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A row that has no explanation."""

    group: str = ""


Row = Explained | Unexplained


@dataclass(frozen=True, slots=True)
class Share:
    """How many of the answered rows are decided for a label, and their share with Wilson's 95 % interval."""

    label: str
    rows: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Term:
    """A word or a phrase that speaks for a label, in logits: over the rows that have it the sum, and the mean with its interval.

    ``low`` and ``high`` are None if the values are all equal. ``examples``: the numbers of the rows, from 1, in which it says most.
    """

    text: str
    rows: int
    total: float
    mean: float
    low: float | None
    high: float | None
    examples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reasons:
    """What speaks for a label. ``rows``: explained for or against it. ``words_of``, ``phrases_of``: how many the lists are chosen from."""

    label: str
    rows: int
    words: tuple[Term, ...]
    words_of: int
    phrases: tuple[Term, ...]
    phrases_of: int


@dataclass(frozen=True, slots=True)
class Part:
    """The file, or a group of its rows.

    ``answered`` and ``failed`` rows are all. Of the answered ones ``undecided`` have an answer that abstains. These have no say in
    ``reasons``: ``not_faithful`` and ``flat`` by their evidence, and ``repeated``, whose text an earlier row has.
    """

    name: str
    answered: int
    failed: int
    undecided: int
    not_faithful: int
    flat: int
    repeated: int
    shares: tuple[Share, ...]
    reasons: tuple[Reasons, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """The whole file and the groups of its rows, the largest first. ``lumped``: how many further groups are one, which has no name.

    ``limited``: there were more words, phrases, texts or groups than are kept. Further words and groups are left out, and further
    repeated texts count.
    """

    whole: Part
    groups: tuple[Part, ...]
    lumped: int
    limited: bool


def column(rows: Callable[[], Iterable[Row]], labels: Sequence[str], *, grouped: bool = False) -> Column:
    """Sum up the rows.

    Args:
        rows: gives all rows in order; it is called twice.
        labels: of the model, in the order in which they are to be shown. Others that the rows name follow.
        grouped: whether to sum up the rows of each ``Row.group`` too.
    """
    candidates, sizes, limited = _candidates(rows())
    groups = {name: _Sums() for name, _ in sizes.most_common(GROUPS_MAX)} if grouped else {}
    whole, others, texts = _Sums(), _Sums(), _Texts()
    for number, row in enumerate(rows(), 1):
        standing = texts.standing(row)
        terms = _terms(row, candidates) if isinstance(row, Explained) and standing is _COUNTED else {}
        for sums in (whole, groups.get(row.group, others)) if grouped else (whole,):
            sums.add(number, row, standing, terms)
    found = [sums.part(name, labels) for name, sums in groups.items()]
    lumped = len(sizes) - len(groups) if grouped else 0
    return Column(whole.part("", labels), (*found, *([others.part("", labels)] if lumped else [])), lumped, limited)


# How a row stands to the words: the field of Part that counts it, if it has no say.
_COUNTED, _FAILED, _REPEATED = "", "failed", "repeated"


class _Texts:
    """The texts so far, by their hashes."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self.full = False

    def standing(self, row: Row) -> str:
        """How a row stands to the words. Each row once, in order."""
        if isinstance(row, Unexplained):
            return _FAILED
        found = hash(" ".join(row.text.split()).lower())
        if found in self._seen:
            return _REPEATED
        self.full = self.full or len(self._seen) >= TEXTS_MAX
        if not self.full:
            self._seen.add(found)
        return row.verdict.lower() if row.verdict in NOT_COUNTED else _COUNTED


def _candidates(rows: Iterable[Row]) -> tuple[frozenset[str], Counter[str], bool]:
    """The words and phrases that enough rows have, the number of rows of each group, and whether a limit was reached."""
    found: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    texts, full = _Texts(), False
    for row in rows:
        if row.group in sizes or len(sizes) < GROUPS_SEEN_MAX:
            sizes[row.group] += 1
        else:
            full = True
        if texts.standing(row) is _COUNTED and isinstance(row, Explained):
            values = _clear(row)
            terms = {term for term, first, last in _spans(row) if first == last or values[first] * values[last] > 0}
            full = full or len(found) + len(terms) > TERMS_MAX
            found.update(terms & found.keys() if full else terms)
    return frozenset(term for term, count in found.items() if count >= ROWS_MIN), sizes, full or texts.full


def _terms(row: Explained, candidates: frozenset[str]) -> dict[str, float]:
    """The values of the candidates that a row has."""
    found: dict[str, float] = defaultdict(float)
    values = _clear(row)
    for term, first, last in _spans(row):
        if term in candidates:
            found[term] += sum(values[first : last + 1])
    return found


def _clear(row: Explained) -> list[float]:
    return [value if abs(value) > ZERO_ERRORS * error else 0.0 for value, error in zip(row.values, row.errors, strict=True)]


def _spans(row: Explained) -> Iterator[tuple[str, int, int]]:
    """The words and phrases of a row, each with the places of its first and its last word."""
    lower = [word.lower() for word in row.words]
    marks = [all(category(sign)[0] == "P" for sign in word) for word in lower]
    marks = [mark or word.startswith("@") or before == "@" for mark, word, before in zip(marks, lower, ["", *lower], strict=False)]
    for first in range(len(lower)):
        for last in range(first, min(first + PHRASE_WORDS_MAX, len(lower))):
            if marks[last] or row.sentences[last] != row.sentences[first]:
                break
            yield " ".join(lower[first : last + 1]), first, last


@dataclass(slots=True)
class _Sum:
    """The values of a word or a phrase for a label. ``most``: the largest and their rows, a heap."""

    rows: int = 0
    total: float = 0.0
    squares: float = 0.0
    most: list[tuple[float, int]] = field(default_factory=list)

    def add(self, number: int, value: float) -> None:
        self.rows += 1
        self.total += value
        self.squares += value * value
        # Of equal values the first row.
        (heapq.heappush if len(self.most) < EXAMPLES_MAX else heapq.heappushpop)(self.most, (value, -number))

    @property
    def mean(self) -> float:
        return self.total / self.rows

    @property
    def error(self) -> float:
        """The standard error of the mean; 0 if all values are equal."""
        spread = self.squares - self.total * self.mean
        return math.sqrt(spread / (self.rows - 1) / self.rows) if spread > 1e-9 * self.squares else 0.0

    def term(self, text: str, outside: float) -> Term:
        half = self.error * quantile(outside, self.rows - 1)
        low, high = (self.mean - half, self.mean + half) if half else (None, None)
        examples = tuple(-number for value, number in sorted(self.most, reverse=True) if value > 0)
        return Term(text, self.rows, self.total, self.mean, low, high, examples)


class _Sums:
    """Sums up the rows of a part."""

    def __init__(self) -> None:
        self._standing: Counter[str] = Counter()
        self._labels: Counter[str] = Counter()
        self._answered = 0
        self._rows: Counter[str] = Counter()
        self._terms: dict[str, dict[str, _Sum]] = defaultdict(lambda: defaultdict(_Sum))

    def add(self, number: int, row: Row, standing: str, terms: Mapping[str, float]) -> None:
        """Add a row. ``number``: from 1. ``terms``: the values of its words and phrases."""
        self._standing[standing] += 1
        if isinstance(row, Unexplained):
            return
        self._answered += 1
        self._labels[row.label] += not row.abstain
        if standing is not _COUNTED:
            return
        for label, sign in ((row.towards, 1), (row.against, -1)):
            if label is not None:
                self._rows[label] += 1
                for term, value in terms.items():
                    self._terms[label][term].add(number, sign * value)

    def part(self, name: str, labels: Sequence[str]) -> Part:
        """What they are together."""
        labels = list(dict.fromkeys([*labels, *self._labels, *self._rows]))
        answered = self._answered
        shares = [
            Share(label, rows, rows / answered, *wilson(rows, answered)) if answered else Share(label, 0, 0.0, 0.0, 1.0)
            for label in labels
            for rows in (self._labels[label],)
        ]
        counts = {name: self._standing[name] for name in (_FAILED, "not_faithful", "flat", _REPEATED)}
        reasons = [self._reasons(label) for label in labels]
        return Part(name, answered, undecided=answered - self._labels.total(), **counts, shares=tuple(shares), reasons=tuple(reasons))

    def _reasons(self, label: str) -> Reasons:
        enough = {term: found for term, found in self._terms[label].items() if found.rows >= ROWS_MIN}
        words, phrases = ({term: found for term, found in enough.items() if (" " in term) == several} for several in (False, True))
        return Reasons(label, self._rows[label], _listed(words), len(words), _listed(phrases), len(phrases))


def _listed(terms: Mapping[str, _Sum]) -> tuple[Term, ...]:
    """Those with the largest sums, and none within another."""
    chosen: list[str] = []
    least = LISTED_SHARE * max((found.total for found in terms.values()), default=0.0)
    for term in sorted(terms, key=lambda one: (-terms[one].total, one)):
        if terms[term].total <= 0 or terms[term].total < least or len(chosen) == LISTED_MAX:
            break
        if not any(f" {term} " in f" {other} " or f" {other} " in f" {term} " for other in chosen):
            chosen.append(term)
    return tuple(terms[term].term(term, MISSED * len(chosen) / len(terms)) for term in chosen)
