"""Labelled texts: reading files, batches of like length.

Knows nothing of torch or of models.
"""

import csv
import io
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sentiment_models.data.text_files import UNREADABLE, bare, check_text, open_text, unreadable
from sentiment_models.errors import BadData

# A field of a .csv may hold a whole review; the csv module's own limit is 128 KiB.
FIELD_CHARACTERS_MAX = 2**24
# Probabilities that were rounded on their way through a file.
TARGET_ERROR_MAX = 1e-3

TextOrPair = str | tuple[str, str]


class Line(NamedTuple):
    """What a line of a file says, with its number."""

    number: int
    label: str
    text: str
    text_pair: str | None = None
    target: tuple[float, ...] | None = None
    domain: str = ""
    teacher: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text. ``label`` is an index into the label names.

    ``target``: how likely each label is, by a teacher or because the text has none of them; None: the label alone.
    ``judged``: the label comes from people, not from ``target``. ``text_pair``: the second text of a pair. ``domain``: what kind of text
    it is, where the file says so. ``teacher``: whose ``target`` it is, likewise.
    """

    text: str
    label: int
    target: tuple[float, ...] | None = None
    judged: bool = True
    text_pair: str | None = None
    domain: str = ""
    teacher: str = ""

    @property
    def whole(self) -> TextOrPair:
        """All that a model reads."""
        return self.text if self.text_pair is None else (self.text, self.text_pair)


@dataclass(frozen=True, slots=True)
class Source:
    """A data file and how many times an epoch shows it; 0.25 shows a random quarter, always the same one."""

    path: Path
    times: float = 1

    @classmethod
    def parse(cls, spec: str) -> "Source":
        """Read ``PATH`` or ``PATH:TIMES`` as the command line takes it.

        Raises:
            BadData: TIMES is not over 0 and at most 100.
        """
        head, colon, tail = spec.rpartition(":")
        if not colon or not re.fullmatch(r"\d+(\.\d+)?", tail):
            return cls(Path(spec))
        times = float(tail) if "." in tail else int(tail)
        if not 0 < times <= 100:
            raise BadData(f"{spec}: shown {tail} times an epoch; the limits are over 0 and 100")
        return cls(Path(head), times)


def read_examples(path: Path, labels: Sequence[str], *, pairs: bool = True) -> Iterator[Example]:
    """Read a .tsv, .csv or .jsonl file, optionally .gz, in UTF-8.

    .tsv: ``label<TAB>text`` without a header; .csv: a header with the columns label and text; .jsonl: an object a line with
    the keys label and text. A column or key text_pair, where there is one, is the second text of a pair, and domain what kind of text it
    is, such as restaurants. A label is an index into
    ``labels`` or one of its names. An object may have ``probabilities``, one a label, as ``sentiment-models label`` writes them with the
    ``teacher`` that they are of; its label may then be missing and is the likeliest one. Without ``pairs`` a second text is refused.

    Raises:
        BadData: the file cannot be read so; names file and line.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix
    readers = {".tsv": _tsv_lines, ".csv": _csv_lines, ".jsonl": _jsonl_lines}
    if kind not in readers:
        raise BadData(f"{path}: a {kind or 'nameless'} file; .tsv, .csv and .jsonl are read, each optionally .gz")
    names = {name: index for index, name in enumerate(labels)}
    line = 0
    try:
        with open_text(path) as stream:
            for line, label, text, text_pair, target, domain, teacher in readers[kind](stream, path):
                if text_pair is not None and not pairs:
                    raise BadData(f"{path}:{line}: has a text_pair; one text is read here (export --pairs makes a bundle that reads two)")
                for each in (text,) if text_pair is None else (text, text_pair):
                    check_text(each, f"{path}:{line}")
                judged = bool(label)
                if target is not None:
                    _check_target(target, labels, f"{path}:{line}")
                    label = label or str(max(range(len(target)), key=target.__getitem__))  # noqa: PLW2901
                index = names.get(label, int(label) if re.fullmatch(r"\d{1,3}", label) else -1)
                if not 0 <= index < len(labels):
                    raise BadData(f"{path}:{line}: {_wrong_label(label, text, line, labels)}")
                yield Example(text, index, target, judged, text_pair, domain, teacher)
    except UNREADABLE as error:
        raise unreadable(path, line, error) from error
    if line == 0:
        raise BadData(f"{path}: holds no example")


def read_undecided(path: Path, labels: Sequence[str]) -> Iterator[Example]:
    """Read texts without sentiment or of other languages, ``kind<TAB>text`` a line of a .tsv, optionally .gz: all labels are as likely.

    Raises:
        BadData: the file cannot be read so; names file and line.
    """
    even = (1 / len(labels),) * len(labels)
    if Path(path.name.removesuffix(".gz")).suffix != ".tsv":
        raise BadData(f"{path}: texts without sentiment come as kind<TAB>text in a .tsv, optionally .gz")
    line = 0
    try:
        with open_text(path) as stream:
            for line, _, text, *_ in _tsv_lines(stream, path):
                check_text(text, f"{path}:{line}")
                yield Example(text, 0, even, judged=False)
    except UNREADABLE as error:
        raise unreadable(path, line, error) from error


def _wrong_label(label: str, text: str, line: int, labels: Sequence[str]) -> str:
    header = (label, text) == ("label", "text")
    fix = f"; {'a .tsv has no header' if line == 1 else 'the header stands again'}: delete the line" if header else ""
    return f"label {label[:40]!r}; wanted 0 to {len(labels) - 1} or one of {', '.join(labels)}{fix}"


def _check_target(target: tuple[float, ...], labels: Sequence[str], where: str) -> None:
    if len(target) != len(labels) or not min(target) >= 0 or not abs(sum(target) - 1) <= TARGET_ERROR_MAX:  # NaN fails, too
        raise BadData(f"{where}: {len(target)} probabilities that sum to {sum(target):.4f}; wanted {len(labels)} that sum to 1")


def _tsv_lines(stream: io.TextIOWrapper, path: Path) -> Iterator[Line]:
    for number, line in enumerate(stream, 1):
        label, tab, text = bare(line).partition("\t")
        if not tab:
            fix = "" if label.strip() else "an empty line; delete it: "
            raise BadData(f"{path}:{number}: {fix}no tab; wanted label<TAB>text")
        yield Line(number, label, text)


def _csv_lines(stream: io.TextIOWrapper, path: Path) -> Iterator[Line]:
    csv.field_size_limit(FIELD_CHARACTERS_MAX)
    # Strict: an open quote would otherwise take the rest of the file for one text.
    rows = csv.reader(stream, strict=True)
    header = next(rows, [])
    missing = {"label", "text"} - set(header)
    if missing:
        raise BadData(f"{path}:1: no column {' and no column '.join(sorted(missing))}; the header is {header}")
    twice = sorted({name for name in header if header.count(name) > 1} & {"label", "text", "text_pair", "domain"})
    if twice:
        raise BadData(f"{path}:1: more than one column {' and '.join(twice)}; the header is {header}: name the others otherwise")
    label, text = header.index("label"), header.index("text")
    pair, domain = (header.index(name) if name in header else None for name in ("text_pair", "domain"))
    for row in rows:
        if row and len(row) != len(header):
            raise BadData(f"{path}:{rows.line_num}: {len(row)} fields; the header has {len(header)}: put a text with commas in quotes")
        if row:
            second, kind = None if pair is None else row[pair], "" if domain is None else sys.intern(row[domain])
            yield Line(rows.line_num, row[label], row[text], second, domain=kind)


def _jsonl_lines(stream: io.TextIOWrapper, path: Path) -> Iterator[Line]:
    for number, line in enumerate(stream, 1):
        try:
            row = json.loads(line)
            target = tuple(map(float, row["probabilities"])) if "probabilities" in row else None
            label = row["label"] if target is None else row.get("label", "")
            text, pair = row["text"], row.get("text_pair")
            # The same few in all lines.
            domain, teacher = (sys.intern("" if row.get(name) is None else str(row[name])) for name in ("domain", "teacher"))
            for name, each in (("text", text), ("text_pair", "" if pair is None else pair)):
                if not isinstance(each, str):
                    raise TypeError(f"{name} is {each!r:.40}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            fix = "" if line.strip() else "an empty line; delete it: "
            raise BadData(f"{path}:{number}: {fix}not an object with label and text: {error!r}") from error
        yield Line(number, str(label), text, pair, target, domain, teacher)


def batches(lengths: Sequence[int], rows_max: int, tokens_max: int, rng: random.Random) -> list[list[int]]:
    """Group indices into batches of like length, in random order.

    Each batch has at most ``rows_max`` rows and, padded to its longest, at most ``tokens_max`` tokens (a single longer row
    stands alone). Rows are sorted by length within random pools of 64 batches, so that batches differ from epoch to epoch.
    """
    order = list(range(len(lengths)))
    rng.shuffle(order)
    groups: list[list[int]] = []
    pool = 64 * rows_max
    for start in range(0, len(order), pool):
        groups += alike(sorted(order[start : start + pool], key=lengths.__getitem__), lengths, rows_max, tokens_max)
    rng.shuffle(groups)
    return groups


def alike(order: Iterable[int], lengths: Sequence[int], rows_max: int, tokens_max: int) -> Iterator[list[int]]:
    """Cut indices that are sorted by length, either way, into batches of at most so many rows and padded tokens; one row may have more."""
    group: list[int] = []
    for index in order:
        if group and (len(group) == rows_max or (len(group) + 1) * max(lengths[group[0]], lengths[index]) > tokens_max):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def evaluation_steps(batches_per_epoch: Sequence[int], evaluations: int) -> set[int]:
    """Return after which steps to evaluate: ``evaluations`` times an epoch in like distances, each epoch's end among them."""
    steps, done = set(), 0
    for count in batches_per_epoch:
        steps |= {done + max(1, count * number // evaluations) for number in range(1, evaluations + 1)}
        done += count
    return steps
