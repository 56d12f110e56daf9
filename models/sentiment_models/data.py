"""Labelled texts: reading files, carving a development split, batches of like length.

Knows nothing of torch or of models.
"""

import csv
import gzip
import hashlib
import io
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentiment_models.errors import BadData

# A field of a .csv may hold a whole review; the csv module's own limit is 128 KiB.
FIELD_CHARACTERS_MAX = 2**24


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text. ``label`` is an index into the label names."""

    text: str
    label: int


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


def read_examples(path: Path, labels: Sequence[str]) -> Iterator[Example]:
    """Read a .tsv, .csv or .jsonl file, optionally .gz, in UTF-8.

    .tsv: ``label<TAB>text`` without a header; .csv: a header with the columns label and text; .jsonl: an object a line with
    the keys label and text. A label is an index into ``labels`` or one of its names.

    Raises:
        BadData: the file cannot be read so; names file and line.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix
    readers = {".tsv": _tsv_pairs, ".csv": _csv_pairs, ".jsonl": _jsonl_pairs}
    if kind not in readers:
        raise BadData(f"{path}: a {kind or 'nameless'} file; .tsv, .csv and .jsonl are read, each optionally .gz")
    names = {name: index for index, name in enumerate(labels)}
    line = 0
    try:
        with _open_text(path) as stream:
            for line, label, text in readers[kind](stream, path):
                index = names.get(label, int(label) if re.fullmatch(r"\d{1,3}", label) else -1)
                if not 0 <= index < len(labels):
                    raise BadData(f"{path}:{line}: label {label[:40]!r}; wanted 0 to {len(labels) - 1} or one of {', '.join(labels)}")
                if not text.strip():
                    raise BadData(f"{path}:{line}: the text is empty")
                yield Example(text, index)
    except UnicodeDecodeError as error:
        raise BadData(f"{path}: not UTF-8 after line {line}: {error.reason}") from error
    except (OSError, EOFError, csv.Error) as error:
        raise BadData(f"{path}: cannot be read after line {line}: {error}") from error
    if line == 0:
        raise BadData(f"{path}: holds no example")


def _open_text(path: Path) -> io.TextIOWrapper:
    stream = gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # noqa: SIM115 - the wrapper closes it
    # A text may hold U+2028 or a carriage return: only a line feed ends a line.
    return io.TextIOWrapper(stream, encoding="utf-8", newline="" if ".csv" in path.suffixes else "\n")


def _tsv_pairs(stream: io.TextIOWrapper, path: Path) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(stream, 1):
        label, tab, text = line.rstrip("\n").partition("\t")
        if not tab:
            raise BadData(f"{path}:{number}: no tab; wanted label<TAB>text")
        yield number, label, text


def _csv_pairs(stream: io.TextIOWrapper, path: Path) -> Iterator[tuple[int, str, str]]:
    csv.field_size_limit(FIELD_CHARACTERS_MAX)
    rows = csv.DictReader(stream)
    missing = {"label", "text"} - set(rows.fieldnames or ())
    if missing:
        raise BadData(f"{path}:1: no column {' and no column '.join(sorted(missing))}; the header is {rows.fieldnames}")
    for row in rows:
        yield rows.line_num, row["label"] or "", row["text"] or ""


def _jsonl_pairs(stream: io.TextIOWrapper, path: Path) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(stream, 1):
        try:
            row = json.loads(line)
            yield number, str(row["label"]), str(row["text"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadData(f"{path}:{number}: not an object with label and text: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Split:
    """Training examples (repeated sources count repeatedly) and the development set carved from them, each text once."""

    train: list[Example]
    dev: list[Example]


def carve(sources: Sequence[tuple[Sequence[Example], float]], dev_fraction: float, seed: int) -> Split:
    """Carve a development set of about ``dev_fraction`` of each source.

    A text goes to one side by a hash of its letters and digits, so that copies that differ in case, spacing or punctuation
    never stand on both sides, whatever file they come from, and the split does not depend on the order of files.

    Raises:
        BadData: a side is empty.
    """
    train: list[Example] = []
    dev: dict[str, Example] = {}
    for examples, times in sources:
        for example in examples:
            key = re.sub(r"[\W_]+", "", example.text.lower())
            if _draw(key, "dev", seed) < dev_fraction:
                dev.setdefault(key, example)
            else:
                train.extend([example] * (int(times) + (_draw(key, "times", seed) < times % 1)))
    for side, rows in (("train", train), ("dev", dev)):
        if not rows:
            raise BadData(f"the {side} split is empty: dev fraction {dev_fraction} of {len(train) + len(dev)} examples")
    return Split(train, list(dev.values()))


def _draw(key: str, purpose: str, seed: int) -> float:
    """A number from 0 to 1 that depends on nothing but its arguments."""
    person = b"" if purpose == "dev" else purpose.encode()
    digest = hashlib.blake2b(key.encode(), digest_size=8, salt=seed.to_bytes(8, "little"), person=person).digest()
    return int.from_bytes(digest, "little") / 2**64


def last_sentences(text: str, words_max: int) -> str:
    """Return the last whole sentences of a text that have at most ``words_max`` words together, at least its last words.

    A review's verdict stands at its end, often in an idiom that a classifier of long texts never has to understand.
    """
    sentences = re.split(r"(?<=[.!?])\s+", re.sub(r"(\s|<br\s*/?>)+", " ", text).strip())
    kept: list[str] = []
    for sentence in reversed(sentences):
        words = sentence.split()
        if kept and len(kept) + len(words) > words_max:
            break
        kept = words + kept
    return " ".join(kept[-words_max:])


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
        group: list[int] = []
        for index in sorted(order[start : start + pool], key=lengths.__getitem__):
            if group and (len(group) == rows_max or (len(group) + 1) * lengths[index] > tokens_max):
                groups.append(group)
                group = []
            group.append(index)
        groups.append(group)
    rng.shuffle(groups)
    return groups
