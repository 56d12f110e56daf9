"""Test corpora: the same rows in every format."""

import csv
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow
from pyarrow import parquet

KINDS = (".txt", ".tsv", ".csv", ".jsonl", ".parquet")
WORDS = ("good", "great", "bad", "awful", "film", "w-9", "w3", "caf\u00e9", "\U0001f600")


def make_texts(count: int, words: int = 12, seed: int = 1) -> list[str]:
    """Texts of up to ``words`` words of the tiny bundle."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, words))) for _ in range(count)]


def write(path: Path, texts: Sequence[str], end: str = "\n") -> Path:
    """Write a file in the format of its suffix. All formats but .txt have a column ``id``."""
    rows = list(enumerate(texts))
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.table({"id": [number for number, _ in rows], "text": list(texts)}), path, row_group_size=700)
        return path
    if path.suffix == ".csv":
        stream = io.StringIO()
        csv.writer(stream, lineterminator=end).writerows([("id", "text"), *rows])
        content = stream.getvalue()
    elif path.suffix == ".tsv":
        content = "".join(f"{first}\t{second}{end}" for first, second in [("id", "text"), *rows])
    elif path.suffix == ".jsonl":
        content = "".join(json.dumps({"id": number, "text": text}, ensure_ascii=False) + end for number, text in rows)
    else:
        content = "".join(text + end for text in texts)
    path.write_bytes(content.encode())
    return path
