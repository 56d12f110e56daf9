"""Labelled texts: read files, make batches of similar length.

Knows nothing of torch or of models.
"""

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from sentiment.files.decoding import COMPRESSED
from sentiment.files.formats import json_row
from sentiment.files.labels import Labels, WrongLabel
from sentiment.files.reading import FORMATS, Reading, format_of
from sentiment.files.records import OpenQuote, records
from sentiment.files.rows import TEXT, BadLabel, Row, is_missing
from sentiment.observability.journal import ANSWER, FEEDBACK
from sentiment_models.data.text_files import check_text, lines, tabbed, table_of, text_of
from sentiment_models.errors import BadData

# Probabilities in a file are rounded.
TARGET_ERROR_MAX = 1e-3

# The columns, or keys, of a label, of the second text of a pair, and of the kind of text.
LABEL = "label"
PAIR = "text_pair"
DOMAIN = "domain"
EXTRAS = frozenset((DOMAIN, "teacher", "probabilities", "phenomenon"))
# Of each line of a journal.
BEGINNING = '{"journal":"'

TextOrPair = str | tuple[str, str]


class Made(NamedTuple):
    """What a generator says of a text: its phenomenon, what of it was kept from training, the number of its pair, and its register."""

    phenomenon: str
    held_out: str
    pair: str
    register: str = ""

    def row(self) -> dict[str, Any]:
        """Return the keys and values of a .jsonl line."""
        made = {"phenomenon": self.phenomenon, "held_out": self.held_out.split(", ") if self.held_out else [], "pair": self.pair}
        return {**made, "register": self.register} if self.register else made


NOT_MADE = Made("", "", "")
"""Of a text that no generator made."""


class Line(NamedTuple):
    """The content of a row, and where it stands in the file."""

    place: str
    label: str
    text: str
    text_pair: str | None = None
    target: tuple[float, ...] | None = None
    domain: str = ""
    teacher: str = ""
    made: Made | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text. ``label`` is an index into the label names.

    ``target``: probability of each label, from a teacher or equal for a text without an answer; None: only the label counts.
    ``judged``: the label comes from people, not from ``target``. ``text_pair``: the second text of a pair. ``domain``: the kind of text,
    if the file names it. ``teacher``: the model that gave ``target``, if the file names it. ``made``: None unless a generator made the
    text. ``where``: file and line, if it was read.
    """

    text: str
    label: int
    target: tuple[float, ...] | None = None
    judged: bool = True
    text_pair: str | None = None
    domain: str = ""
    teacher: str = ""
    made: Made | None = None
    where: str = field(default="", compare=False)

    @property
    def whole(self) -> TextOrPair:
        """The text or the pair."""
        return self.text if self.text_pair is None else (self.text, self.text_pair)

    def row(self, labels: Sequence[str]) -> dict[str, str]:
        """Return the keys and values of a .jsonl line, without those of a teacher or a generator."""
        label = labels[self.label] if self.judged else None
        found = {TEXT: self.text, PAIR: self.text_pair, LABEL: label, DOMAIN: self.domain or None}
        return {name: value for name, value in found.items() if value is not None}


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:  # Any: JSON
    """Return the content of a .jsonl file."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@dataclass(frozen=True, slots=True)
class LabelledReading(Reading):
    """How files of labelled texts are read. Their columns are fixed, and their names give their formats.

    ``pair``: the column or key of the second text, which every row must then have, or text_pair instead; empty: text_pair if it is there.
    ``journal_model``: whose lines of a journal count, NAME/VERSION, or NAME for all versions; empty: those of the model of the last one.
    """

    pair: str = ""
    journal_model: str = ""

    def place_of_pair(self, names: Iterable[str], where: str) -> str:
        """Which of these columns or keys has the second text.

        Raises:
            BadData: none, or two of them.
        """
        found = {self.pair or PAIR, PAIR}.intersection(names)
        if len(found) != 1:
            both = f"both {self.pair} (--pair) and" if found else f"neither {self.pair} (--pair) nor"
            raise BadData(f"{where}: has {both} {PAIR}; it has {', '.join(names)}")
        return found.pop()


PLAIN = LabelledReading()


@dataclass(frozen=True, slots=True)
class Source:
    """A data file and how many times an epoch reads it; 0.25 reads a random quarter, always the same one."""

    path: Path
    times: float = 1

    @classmethod
    def parse(cls, spec: str) -> "Source":
        """Parse ``PATH`` or ``PATH:TIMES``.

        Raises:
            BadData: TIMES is not over 0 and at most 100.
        """
        head, colon, tail = spec.rpartition(":")
        if not colon or not re.fullmatch(r"\d+(\.\d+)?", tail):
            return cls(Path(spec))
        times = float(tail) if "." in tail else int(tail)
        if not 0 < times <= 100:
            raise BadData(f"{spec}: TIMES must be over 0 and at most 100, got {tail}")
        return cls(Path(head), times)


class UnknownLabel(BadData):
    """The model does not have a label of the file."""


def read_examples(
    path: Path, labels: Sequence[str], *, pairs: bool = True, unjudged: bool = False, reading: LabelledReading = PLAIN
) -> Iterator[Example]:
    """Read labelled texts from a file of any format of ``sentiment.files`` but .txt.

    A table has the columns label and text, and each object of a .jsonl or .json these keys. A .tsv without these in its first line has no
    header: each line is ``label<TAB>text``, and a quote is a part of the text. An optional column or key text_pair is the second text of a
    pair; domain is the kind of text, such as restaurants. What a label means is in ``sentiment.files.labels``. A row may have
    ``probabilities``, one per label, with the ``teacher`` that gave them, as ``sentiment-models label`` writes them. Its label may then be
    missing and is the likeliest one. A row with a ``phenomenon`` is a generated text, as ``sentiment-models cases`` writes them. In the
    journal of a server, lines of feedback with a text are labelled texts; the others, and those of other models, are left out, and their
    number is written to standard error. Without ``pairs``, a second text is refused. With ``unjudged``, a text may have neither label nor
    probabilities: nobody has judged it.

    Raises:
        BadData: the file cannot be used. Names file and line.
    """
    places = Labels(labels)
    for line in _checked(path, pairs, reading, labelled=True):
        where = f"{path}: {line.place}"
        if line.target is not None:
            _check_target(line.target, labels, where)
        if line.target is not None and not line.label:
            place = max(range(len(labels)), key=line.target.__getitem__)
        elif not line.label:
            if not unjudged:
                raise BadData(f"{where}: has no label; add it or delete the row")
            place = 0
        else:
            try:
                place = places.place(line.label, line.place)
            except WrongLabel as error:
                raise UnknownLabel(f"{where}: label {error}, got {line.label[:40]!r}{_hint(path, line)}") from error
        yield Example(line.text, place, line.target, bool(line.label), line.text_pair, line.domain, line.teacher, line.made, where)


def count_labels(paths: Iterable[Path], reading: LabelledReading = PLAIN) -> Counter[str]:
    """Count the texts of files by label, as they name it; "" for texts without one.

    Raises:
        BadData: a file cannot be used. Names file and line.
    """
    # What is left out of a journal is said when its texts are read.
    with redirect_stderr(StringIO()):
        return Counter(line.label for path in paths for line in _checked(path, True, reading, labelled=True))


def wholes(examples: Iterable[Example], *, targets: bool) -> list[Example]:
    """The examples that are answered as a whole. ``targets``: a second text is a target, and the answer is of the text towards it."""
    return [example for example in examples if not targets or example.text_pair is None]


def read_texts(path: Path, *, pairs: bool = True, reading: LabelledReading = PLAIN) -> Iterator[TextOrPair]:
    """Read texts without their labels from a file of any format of ``sentiment.files``.

    .txt: one text a line; empty lines are left out. .tsv: as for ``read_examples``. Other files need no labels. In the journal of a server,
    the answers of one model with a text are texts.

    Raises:
        BadData: the file cannot be used. Names file and line.
    """
    for line in _checked(path, pairs, reading, labelled=False):
        yield line.text if line.text_pair is None else (line.text, line.text_pair)


def _checked(path: Path, pairs: bool, reading: LabelledReading, labelled: bool) -> Iterator[Line]:
    """The rows of a file, whose texts are fit for a tokenizer."""
    line = None
    for line in _lines(path, reading, labelled):
        where = f"{path}: {line.place}"
        check_text(line.text, where)
        if line.text_pair is not None:
            if not pairs:
                raise BadData(f"{where}: text_pair is not supported here (export --pairs makes a bundle that reads pairs)")
            check_text(line.text_pair, where)
        yield line
    if line is None:
        raise BadData(f"{path}: the file has no example")


def read_undecided(path: Path, labels: Sequence[str], reading: LabelledReading = PLAIN) -> Iterator[Example]:
    """Read texts without sentiment or in other languages, with equal probabilities of all labels.

    The file is a .tsv, compressed or not, with one ``kind<TAB>text`` per line.

    Raises:
        BadData: the file cannot be used. Names file and line.
    """
    even = (1 / len(labels),) * len(labels)
    if format_of(path.name) != "tsv":
        raise BadData(f"{path}: undecided texts must be in a .tsv of kind<TAB>text, optionally {' or '.join(COMPRESSED)}")
    for place, _, text in tabbed(path, "kind", reading):
        check_text(text, f"{path}: {place}")
        yield Example(text, 0, even, judged=False, where=f"{path}: {place}")


def _hint(path: Path, line: Line) -> str:
    """What the wrong label of a line may come from."""
    if (line.label, line.text) == (LABEL, TEXT):
        return "; the header is repeated: delete the line"
    # A header is not a row.
    header = format_of(path.name) == "tsv" and line.place == "line 1"
    return f"; if the line is a header, call its columns {LABEL} and {TEXT}" if header else ""


def _check_target(target: tuple[float, ...], labels: Sequence[str], where: str) -> None:
    if len(target) != len(labels) or not min(target) >= 0 or not abs(sum(target) - 1) <= TARGET_ERROR_MAX:  # NaN fails, too
        raise BadData(f"{where}: expected {len(labels)} probabilities that sum to 1, got {len(target)} that sum to {sum(target):.4f}")


def _lines(path: Path, reading: LabelledReading, labelled: bool) -> Iterator[Line]:
    kind = format_of(path.name)
    if not kind or (labelled and kind == "txt"):
        kinds = ", ".join(ending for ending, found in FORMATS.items() if not labelled or found != "txt")
        what = "labelled texts" if labelled else "texts"
        raise BadData(f"{path}: {what} must be in a file of {kinds} (text also with {' or '.join(COMPRESSED)}), got {path.suffix!r}")
    if kind == "jsonl":
        yield from _of_json_lines(path, reading, labelled)
    elif kind == "txt" or (kind == "tsv" and not _has_header(path, reading)):
        if reading.pair:
            raise BadData(f"{path}: --pair {reading.pair}: the file has no names of columns; use a .csv or .jsonl")
        if kind == "txt":
            yield from (Line(place, "", text) for place, text in lines(path, reading) if text.strip())
        else:
            yield from (Line(*found) for found in tabbed(path, LABEL, reading))
    else:
        with table_of(path, reading) as table:
            if table.columns is not None:
                for name in (TEXT, *([LABEL] if labelled else []), *{reading.pair, PAIR, DOMAIN}.intersection(table.columns)):
                    table.key(name, "")
            yield from (_line(path, row, reading, labelled) for row in table)


def _has_header(path: Path, reading: LabelledReading) -> bool:
    """Whether the first line of a .tsv names the columns of labels and texts."""
    _, first = next(lines(path, reading), ("", ""))
    try:
        header = next(records([first], reading.delimiter or "\t", quotes=reading.quotes))
    except OpenQuote:
        return False
    return {LABEL, TEXT} <= set(header.fields)


def _line(path: Path, row: Row, reading: LabelledReading, labelled: bool) -> Line:
    text, values = text_of(row, TEXT, path), row.values
    pair = None
    if reading.pair or not is_missing(values.get(PAIR)):
        pair = text_of(row, reading.place_of_pair(values, f"{path}: {row.place}"), path)
    try:
        label = row.label(LABEL) if labelled else ""
    except BadLabel as error:
        raise BadData(f"{path}: {error}") from error
    if EXTRAS.isdisjoint(values):
        return Line(row.place, label, text, pair)
    # Interned: a file has few different values.
    domain, teacher = (sys.intern(_string(values.get(name))) for name in (DOMAIN, "teacher"))
    return Line(row.place, label, text, pair, _target(values, f"{path}: {row.place}"), domain, teacher, _made(values))


def _target(values: Mapping[str, Any], where: str) -> tuple[float, ...] | None:  # Any: JSON
    found = values.get("probabilities")
    # An empty cell of a table is an empty string.
    if is_missing(found) or found == "":
        return None
    if not isinstance(found, list) or not all(isinstance(one, float) or one in (0, 1) for one in found):
        raise BadData(f"{where}: probabilities must be an array of numbers from 0 to 1; write them to a .jsonl")
    return tuple(map(float, found))


def _made(values: Mapping[str, Any]) -> Made | None:  # Any: JSON
    if not values.get("phenomenon"):
        return None
    held_out = values.get("held_out")
    parts = ", ".join(map(str, held_out)) if isinstance(held_out, list) else _string(held_out)
    phenomenon, register = (sys.intern(_string(values.get(name))) for name in ("phenomenon", "register"))
    return Made(phenomenon, sys.intern(parts), _string(values.get("pair")), register)


def _string(value: object) -> str:
    return "" if is_missing(value) else str(value)


class _Kept(NamedTuple):
    """A line of a journal with a text.

    ``number``: among the lines; ``at``: as RFC 3339 in UTC, to the millisecond; ``key``: of several, the latest counts.
    """

    number: int
    at: str
    model: str
    key: tuple[object, ...]
    line: Line


class _Journal:
    """The lines of a file that a server's journal wrote: feedback with a text is a labelled text, and an answer with one is a text.

    Those of one model count: others may have other labels, or answer other texts.
    """

    def __init__(self, path: Path, kind: str, model: str) -> None:
        """``kind``: of the lines to keep, ANSWER or FEEDBACK; ``model``: as in ``LabelledReading``."""
        self._path, self._kind, self._model = path, kind, model
        self._kept: list[_Kept] = []
        self.lines = self._others = self._without_text = self._torn = 0

    def takes(self, row: Row) -> bool:
        """Read a line; False if it is not a journal's.

        Raises:
            BadData: its text or label is invalid.
        """
        found: Mapping[str, Any] = row.values  # Any: JSON
        if found.get("journal") not in (ANSWER, FEEDBACK):
            return False
        self.lines += 1
        if found["journal"] != self._kind:
            self._others += 1
        elif not isinstance(found.get(TEXT), str):
            self._without_text += 1
        else:
            # Answers by line: each is a text of its own. Feedback by text, and by request, place and caller if it has them. By text too
            # because callers may use a request id again.
            line = _line(self._path, row, PLAIN, self._kind == FEEDBACK)
            asked = (found.get("request_id"), found.get("item"), found.get("caller"), line.text, line.text_pair)
            key = (self.lines,) if self._kind == ANSWER else asked
            self._kept.append(_Kept(self.lines, str(found.get("time", "")), str(found.get("model", "")), key, line))
        return True

    def tears(self, line: str) -> bool:
        """Leave out a line that is not JSON because a killed server did not finish it; False if it is another line."""
        torn = line.startswith(BEGINNING) or (self.lines > 0 and line != "" and BEGINNING.startswith(line))
        self._torn += torn
        return torn

    def rows(self) -> Iterator[Line]:
        """The texts of one model; says on standard error which that is, and how many lines were left out.

        Raises:
            BadData: there is none.
        """
        if not self.lines:
            return
        texts, others, kept, needs = (
            ("text", "labels", "answers", "texts")
            if self._kind == ANSWER
            else ("labelled text", "answers", "labels", "feedback, and texts")
        )
        left_out = f"{self._others} {others}, {self._without_text} {kept} without a text, {self._torn} torn lines"
        if not self._kept:
            raise BadData(f"{self._path}: a journal without a {texts} ({left_out}); it needs {needs} (the server's setting journal_texts)")
        # Files that were put together need not be in the order of time. The sort keeps the order of lines of the same time.
        by_time = sorted(self._kept, key=lambda one: one.at)
        wanted = self._model or by_time[-1].model
        counts = Counter(one.model for one in self._kept)
        chosen = {name for name in counts if wanted in (name, name.partition("/")[0])}
        unread = ", ".join(f"{counts[name]} of {name}" for name in sorted(counts.keys() - chosen))
        if not chosen:
            raise BadData(f"{self._path}: the journal has no {texts} of {wanted} (--journal-model); it has {unread}")
        latest = {one.key: one for one in by_time if one.model in chosen}
        replaced = sum(counts[name] for name in chosen) - len(latest)
        # Feedback that no label is right takes back the labels before it.
        rows = [one.line for one in sorted(latest.values(), key=lambda one: one.number) if one.line.label or self._kind == ANSWER]
        unlabelled = len(latest) - len(rows)
        left_out += f", {replaced} labels that a later one replaced" if replaced else ""
        left_out += f", {unlabelled} texts of which no label is right" if unlabelled else ""
        left_out += f"; of other models: {unread} (choose with --journal-model)" if unread else ""
        model = f" of {', '.join(sorted(chosen))}" if any(chosen) else ""
        if not rows:
            raise BadData(f"{self._path}: a journal without a {texts}{model} ({left_out})")
        sys.stderr.write(f"{self._path}: {len(rows)} {texts}s{model} of a journal; left out: {left_out}\n")
        yield from rows


def _of_json_lines(path: Path, reading: LabelledReading, labelled: bool) -> Iterator[Line]:
    journal = _Journal(path, FEEDBACK if labelled else ANSWER, reading.journal_model)
    for place, content in lines(path, reading):
        row = json_row(place, content)
        if not (row.error and journal.tears(content)) and not journal.takes(row):
            yield _line(path, row, reading, labelled)
    yield from journal.rows()


def batches(lengths: Sequence[int], rows_max: int, tokens_max: int, rng: random.Random) -> list[list[int]]:
    """Group indices into batches of similar length, in random order.

    Each batch has at most ``rows_max`` rows and, padded to its longest row, at most ``tokens_max`` tokens. A single longer row is a batch
    of its own. Rows are sorted by length within random pools of 64 batches, so that batches differ from epoch to epoch.
    """
    order = list(range(len(lengths)))
    rng.shuffle(order)
    groups: list[list[int]] = []
    pool = 64 * rows_max
    for start in range(0, len(order), pool):
        groups += cut_sorted(sorted(order[start : start + pool], key=lengths.__getitem__), lengths, rows_max, tokens_max)
    rng.shuffle(groups)
    return groups


def cut_sorted(order: Iterable[int], lengths: Sequence[int], rows_max: int, tokens_max: int) -> Iterator[list[int]]:
    """Cut indices that are sorted by length, up or down, into batches within the limits of ``batches``."""
    group: list[int] = []
    for index in order:
        if group and (len(group) == rows_max or (len(group) + 1) * max(lengths[group[0]], lengths[index]) > tokens_max):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def evaluation_steps(batches_per_epoch: Sequence[int], evaluations: int) -> set[int]:
    """Return the steps to evaluate after: ``evaluations`` per epoch at equal distances, the last at the epoch's end."""
    steps, done = set(), 0
    for count in batches_per_epoch:
        steps |= {done + max(1, count * number // evaluations) for number in range(1, evaluations + 1)}
        done += count
    return steps
