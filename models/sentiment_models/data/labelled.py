"""Labelled texts: read files, make batches of similar length.

Knows nothing of torch or of models.
"""

import csv
import io
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sentiment.files.labels import Labels, WrongLabel
from sentiment.observability.journal import ANSWER, FEEDBACK
from sentiment_models.data.text_files import UNREADABLE, bare, check_text, open_text, unreadable
from sentiment_models.errors import BadData

# A field of a .csv may hold a long review; the csv module's default limit is 128 KiB.
FIELD_CHARACTERS_MAX = 2**24
# Probabilities in a file are rounded.
TARGET_ERROR_MAX = 1e-3

# The column, or key, of the second text of a pair.
PAIR = "text_pair"
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


class Line(NamedTuple):
    """The content of a line and its number."""

    number: int
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
    text.
    """

    text: str
    label: int
    target: tuple[float, ...] | None = None
    judged: bool = True
    text_pair: str | None = None
    domain: str = ""
    teacher: str = ""
    made: Made | None = None

    @property
    def whole(self) -> TextOrPair:
        """The text or the pair."""
        return self.text if self.text_pair is None else (self.text, self.text_pair)


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read.

    ``pair``: the column or key of the second text, which every row must then have, or text_pair instead; empty: text_pair if it is there.
    ``journal_model``: whose lines of a journal count, NAME/VERSION, or NAME for all versions; empty: those of the model of the last one.
    """

    pair: str = ""
    journal_model: str = ""

    def place_of_pair(self, names: Iterable[str]) -> str | None:
        """Which of these columns or keys has the second text; None for none.

        Raises:
            ValueError: ``pair`` names one that is missing, or both are there.
        """
        found = {self.pair or PAIR, PAIR} & set(names)
        if len(found) > 1 or (self.pair and not found):
            raise ValueError(f"{'both' if found else 'neither'} {self.pair} (--pair) {'and' if found else 'nor'} {PAIR}")
        return next(iter(found), None)


PLAIN = Reading()


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
    """A label of a file is none of the model's."""


def read_examples(path: Path, labels: Sequence[str], *, pairs: bool = True, reading: Reading = PLAIN) -> Iterator[Example]:
    """Read a .tsv, .csv or .jsonl file, optionally .gz, in UTF-8.

    .tsv: ``label<TAB>text`` without a header; .csv: a header with the columns label and text; .jsonl: one object per line with
    the keys label and text. An optional column or key text_pair is the second text of a pair; domain is the kind of text, such as
    restaurants. What a label means is in ``sentiment.files.labels``. An object may have ``probabilities``, one per label, with the
    ``teacher`` that gave them, as ``sentiment-models label`` writes them. Its label may then be missing and is the likeliest one. An object
    with a ``phenomenon`` is a generated text, as ``sentiment-models cases`` writes them. In the journal of a server, lines of feedback with
    a text are labelled texts; the others, and those of other models, are left out, and their number is written to standard error.
    Without ``pairs``, a second text is refused.

    Raises:
        BadData: the file cannot be used. Names file and line.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix
    readers = {".tsv": _tsv_lines, ".csv": _csv_lines, ".jsonl": _jsonl_lines}
    if kind not in readers:
        raise BadData(f"{path}: labelled texts must be in a .tsv, .csv or .jsonl file, optionally .gz; got {kind or 'no extension'}")
    places = Labels(labels)
    for line in _checked(path, readers[kind], pairs, reading):
        if line.target is not None:
            _check_target(line.target, labels, f"{path}:{line.number}")
        if line.target is not None and not line.label:
            place = max(range(len(labels)), key=line.target.__getitem__)
        else:
            try:
                place = places.place(line.label, f"line {line.number}")
            except WrongLabel as error:
                raise UnknownLabel(f"{path}:{line.number}: label {error}, got {line.label[:40]!r}{_header(line)}") from error
        yield Example(line.text, place, line.target, bool(line.label), line.text_pair, line.domain, line.teacher, line.made)


def read_texts(path: Path, labels: Sequence[str], *, pairs: bool = True, reading: Reading = PLAIN) -> Iterator[TextOrPair]:
    """Read texts without their labels from a .txt, .tsv, .csv or .jsonl file, optionally .gz, in UTF-8.

    .txt: one text a line; empty lines are left out. .jsonl: one object a line with the key text and optionally text_pair; in the journal of
    a server, the answers of one model with a text. Other files: as for ``read_examples``, labels included.

    Raises:
        BadData: the file cannot be used. Names file and line.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix
    readers = {".txt": _txt_lines, ".jsonl": _text_lines}
    if kind not in readers:
        yield from (example.whole for example in read_examples(path, labels, pairs=pairs, reading=reading))
        return
    for line in _checked(path, readers[kind], pairs, reading):
        yield line.text if line.text_pair is None else (line.text, line.text_pair)


def _checked(path: Path, reader: "_Reader", pairs: bool, reading: Reading) -> Iterator[Line]:
    """The lines of a file, whose texts are fit for a tokenizer."""
    number = 0
    try:
        with open_text(path) as stream:
            for line in reader(stream, path, reading):
                number = line.number
                if line.text_pair is not None and not pairs:
                    raise BadData(f"{path}:{number}: text_pair is not supported here (export --pairs makes a bundle that reads pairs)")
                for each in (line.text,) if line.text_pair is None else (line.text, line.text_pair):
                    check_text(each, f"{path}:{number}")
                yield line
    except UNREADABLE as error:
        raise unreadable(path, number, error) from error
    if number == 0:
        raise BadData(f"{path}: the file has no example")


_Reader = Callable[[io.TextIOWrapper, Path, Reading], Iterator[Line]]


def read_undecided(path: Path, labels: Sequence[str]) -> Iterator[Example]:
    """Read texts without sentiment or in other languages, with equal probabilities of all labels.

    The file is a .tsv, optionally .gz, with one ``kind<TAB>text`` per line.

    Raises:
        BadData: the file cannot be used. Names file and line.
    """
    even = (1 / len(labels),) * len(labels)
    if Path(path.name.removesuffix(".gz")).suffix != ".tsv":
        raise BadData(f"{path}: undecided texts must be in a .tsv of kind<TAB>text, optionally .gz")
    line = 0
    try:
        with open_text(path) as stream:
            for line, _, text, *_ in _tsv_lines(stream, path, PLAIN):
                check_text(text, f"{path}:{line}")
                yield Example(text, 0, even, judged=False)
    except UNREADABLE as error:
        raise unreadable(path, line, error) from error


def _header(line: Line) -> str:
    if (line.label, line.text) != ("label", "text"):
        return ""
    return f"; {'a .tsv has no header' if line.number == 1 else 'the header is repeated'}: delete the line"


def _check_target(target: tuple[float, ...], labels: Sequence[str], where: str) -> None:
    if len(target) != len(labels) or not min(target) >= 0 or not abs(sum(target) - 1) <= TARGET_ERROR_MAX:  # NaN fails, too
        raise BadData(f"{where}: expected {len(labels)} probabilities that sum to 1, got {len(target)} that sum to {sum(target):.4f}")


def _refuse_pair(path: Path, reading: Reading) -> None:
    if reading.pair:
        raise BadData(f"{path}: --pair {reading.pair}: the file has no names of columns; use a .csv or .jsonl")


def _tsv_lines(stream: io.TextIOWrapper, path: Path, reading: Reading) -> Iterator[Line]:
    _refuse_pair(path, reading)
    for number, line in enumerate(stream, 1):
        label, tab, text = bare(line).partition("\t")
        if not tab:
            found = "the line has no tab" if label.strip() else "the line is empty; delete it"
            raise BadData(f"{path}:{number}: expected label<TAB>text, but {found}")
        yield Line(number, label, text)


def _csv_lines(stream: io.TextIOWrapper, path: Path, reading: Reading) -> Iterator[Line]:
    csv.field_size_limit(FIELD_CHARACTERS_MAX)
    # Strict, because otherwise an open quote makes the rest of the file one text.
    rows = csv.reader(stream, strict=True)
    header = next(rows, [])
    missing = {"label", "text"} - set(header)
    if missing:
        raise BadData(f"{path}:1: column {' and column '.join(sorted(missing))} missing; the header is {header}")
    try:
        second = reading.place_of_pair(header)
    except ValueError as error:
        raise BadData(f"{path}:1: has {error}; the header is {header}") from error
    twice = sorted({name for name in header if header.count(name) > 1} & {"label", "text", second, "domain"})
    if twice:
        raise BadData(f"{path}:1: more than one column {' and '.join(twice)}; the header is {header}; rename the others")
    label, text = header.index("label"), header.index("text")
    pair, domain = (header.index(name) if name in header else None for name in (second, "domain"))
    for row in rows:
        if row and len(row) != len(header):
            raise BadData(f"{path}:{rows.line_num}: expected {len(header)} fields, got {len(row)}; put texts that contain commas in quotes")
        if row:
            other, kind = None if pair is None else row[pair], "" if domain is None else sys.intern(row[domain])
            yield Line(rows.line_num, row[label], row[text], other, domain=kind)


def _txt_lines(stream: io.TextIOWrapper, path: Path, reading: Reading) -> Iterator[Line]:
    _refuse_pair(path, reading)
    for number, line in enumerate(stream, 1):
        if line.strip():
            yield Line(number, "", bare(line))


class _Kept(NamedTuple):
    """A line of a journal with a text. ``at``: as RFC 3339 in UTC, to the millisecond; ``key``: of several, the latest counts."""

    at: str
    model: str
    key: tuple[object, ...]
    line: Line


class _Journal:
    """The lines of a file that a server's journal wrote: feedback with a text is a labelled text, and an answer with one is a text.

    Those of one model count: others may have other labels, or answer other texts.
    """

    def __init__(self, kind: str, model: str) -> None:
        """``kind``: of the lines to keep, ANSWER or FEEDBACK; ``model``: as in ``Reading``."""
        self._kind, self._model = kind, model
        self._kept: list[_Kept] = []
        self.lines = self._others = self._without_text = self._torn = 0

    def takes(self, number: int, row: dict[str, Any]) -> bool:  # Any: JSON
        """Read a line; False if it is not a journal's."""
        if row.get("journal") not in (ANSWER, FEEDBACK):
            return False
        self.lines += 1
        text, pair, model = row.get("text"), row.get(PAIR), str(row.get("model", ""))
        if row["journal"] != self._kind:
            self._others += 1
        elif not isinstance(text, str):
            self._without_text += 1
        else:
            # Answers by line: each is a text of its own. Feedback by text, and by request and place if it named them. By text too because
            # callers may use a request id again.
            key = (number,) if self._kind == ANSWER else (row.get("request_id"), row.get("item"), text, pair)
            label = "" if self._kind == ANSWER else str(row["label"])
            self._kept.append(_Kept(str(row.get("time", "")), model, key, Line(number, label, text, pair)))
        return True

    def tears(self, line: str) -> bool:
        """Leave out a line that is no JSON because a killed server did not finish it; False if it is another line."""
        torn = line.startswith(BEGINNING) or (self.lines > 0 and line != "" and BEGINNING.startswith(line))
        self._torn += torn
        return torn

    def rows(self, path: Path) -> Iterator[Line]:
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
            raise BadData(f"{path}: a journal without a {texts} ({left_out}); it needs {needs} (the server's setting journal_texts)")
        # Files that were put together need not be in the order of time. The sort keeps the order of lines of the same time.
        by_time = sorted(self._kept, key=lambda one: one.at)
        wanted = self._model or by_time[-1].model
        counts = Counter(one.model for one in self._kept)
        chosen = {name for name in counts if wanted in (name, name.partition("/")[0])}
        unread = ", ".join(f"{counts[name]} of {name}" for name in sorted(counts.keys() - chosen))
        if not chosen:
            raise BadData(f"{path}: the journal has no {texts} of {wanted} (--journal-model); it has {unread}")
        latest = {one.key: one.line for one in by_time if one.model in chosen}
        rows = sorted(latest.values())
        replaced = sum(counts[name] for name in chosen) - len(rows)
        left_out += f", {replaced} labels that a later one replaced" if replaced else ""
        left_out += f"; of other models: {unread} (choose with --journal-model)" if unread else ""
        model = f" of {', '.join(sorted(chosen))}" if any(chosen) else ""
        sys.stderr.write(f"{path}: {len(rows)} {texts}s{model} of a journal; left out: {left_out}\n")
        yield from rows


def _text_lines(stream: io.TextIOWrapper, path: Path, reading: Reading) -> Iterator[Line]:
    return _jsonl_lines(stream, path, reading, labelled=False)


def _jsonl_lines(stream: io.TextIOWrapper, path: Path, reading: Reading, labelled: bool = True) -> Iterator[Line]:
    journal = _Journal(FEEDBACK if labelled else ANSWER, reading.journal_model)
    for number, line in enumerate(stream, 1):
        try:
            row = json.loads(line)
            if journal.takes(number, row):
                continue
            target = tuple(map(float, row["probabilities"])) if "probabilities" in row else None
            label = row["label"] if labelled and target is None else row.get("label")
            second = reading.place_of_pair(row)
            text, pair = row["text"], None if second is None else row[second]
            # Interned: a file has few different values.
            domain, teacher = (sys.intern("" if row.get(name) is None else str(row[name])) for name in ("domain", "teacher"))
            made = Made(*_made(row)) if row.get("phenomenon") else None
            for name, each in (("text", text), (second, "" if pair is None else pair)):
                if not isinstance(each, str):
                    raise TypeError(f"{name} is {each!r:.40}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, json.JSONDecodeError) and journal.tears(line.rstrip("\n")):
                continue
            found = repr(error) if line.strip() else "the line is empty; delete it"
            raise BadData(f"{path}:{number}: expected a JSON object with {'label and ' if labelled else ''}text: {found}") from error
        yield Line(number, "" if label is None else str(label), text, pair, target, domain, teacher, made)
    yield from journal.rows(path)


def _made(row: dict[str, Any]) -> Iterator[str]:  # Any: JSON
    yield sys.intern(str(row["phenomenon"]))
    yield sys.intern(", ".join(map(str, row.get("held_out") or ())))
    yield str(row.get("pair", ""))
    yield sys.intern(str(row.get("register") or ""))


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
