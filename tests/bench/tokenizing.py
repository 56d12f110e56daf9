"""What tokenizing costs, beside the library alone: ``python -m tests.bench.tokenizing FILE...``. A file has a text on each line, or a last
column of texts; it may be compressed by gzip.
"""

import argparse
import gzip
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import tokenizers

from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.tokenizer import Tokenizer

TEXTS = 4_000
MAX_TOKENS = 512


def texts_of(path: Path) -> list[str]:
    """Up to TEXTS texts of a file, in random order."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        texts = [line.rstrip("\n").rpartition("\t")[2] for line in lines]
    random.Random(1).shuffle(texts)
    return texts[:TEXTS]


def each_us(work: Callable[[str], object], texts: Sequence[str]) -> float:
    """CPU time of ``work`` for a text."""
    begun = time.thread_time()
    for text in texts:
        work(text)
    return (time.thread_time() - begun) / len(texts) * 1e6


def rows(paths: Iterable[Path], file: Path) -> Iterable[str]:
    """A row of the table for each file, each with a tokenizer that has seen nothing."""
    for path in paths:
        texts = texts_of(path)
        library, ours = tokenizers.Tokenizer.from_file(str(file)), Tokenizer(file, MAX_TOKENS)
        library.enable_truncation(MAX_TOKENS)
        tokens = sum(len(library.encode(text).ids) for text in texts) / len(texts)
        whole_us = each_us(library.encode, texts)
        half = len(texts) // 2
        first_us, then_us = each_us(ours.encode, texts[:half]), each_us(ours.encode, texts[half:])
        again_us = each_us(ours.encode, texts[-200:])
        yield f"| {path.parent.name}/{path.name} | {tokens:.0f} | {whole_us:.0f} | {first_us:.0f} | {then_us:.0f} | {again_us:.0f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tokenizing", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    print("| texts | tokens | library, us a text | ours, first half | second half | texts seen before |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in rows(parser.parse_args().files, find_bundle("english", bundle_roots([])) / "tokenizer.json"):
        print(row)


if __name__ == "__main__":
    main()
