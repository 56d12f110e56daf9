"""Texts in another language or script are distinguished from English ones by their fragments."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import sentiment_models
from sentiment.model.foreign import TOKENS_READ, Fragments
from sentiment.model.foreign import is_foreign as tells
from sentiment.model.tokenizer import Tokenizer
from sentiment_models.evaluation.probes import read_kinds
from tests.english import ENGLISH

TEXTS = Path(sentiment_models.__file__).parent / "texts"
TOKENS = ("[UNK]", "good", "film", "a", "##s", "##ly", "##1", "\u00e9", "\u4e2d", "!", "42")
IDS = {token: number for number, token in enumerate(TOKENS)}


def is_foreign(*tokens: str) -> bool:
    return tells(*Fragments(dict(enumerate(TOKENS)).get, IDS["[UNK]"], "##").count([IDS[token] for token in tokens]))


@pytest.mark.parametrize("fragment", ["[UNK]", "##ly", "\u00e9", "\u4e2d"])
def test_fragments_count_against_words(fragment: str) -> None:
    assert is_foreign(*[fragment] * 2)
    assert is_foreign("good", "film", *[fragment] * 3)
    assert not is_foreign(fragment)
    assert not is_foreign("good", "film", fragment, fragment)


def test_numbers_marks_and_single_letters_count_for_nothing() -> None:
    assert not is_foreign(*["##1", "!", "42", "a"] * 9)
    assert is_foreign("##s", "##ly", *["##1", "!", "42", "a"] * 9)


def test_only_the_beginning_is_read() -> None:
    assert not is_foreign(*["good"] * TOKENS_READ, *["##ly"] * 1000)


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    yield Tokenizer(ENGLISH / "tokenizer.json", 512)


@pytest.mark.parametrize(("name", "found_min", "alarms_max"), [("undecided.tsv", 0.9, 0.02), ("undecided_test.tsv", 0.9, 0.05)])
def test_the_default_model_tells_the_written_texts_apart(tokenizer: Tokenizer, name: str, found_min: float, alarms_max: float) -> None:
    """docs/operate/observability.md states the shares that this prints (``pytest -s``)."""
    kinds = read_kinds(TEXTS / name)
    english = kinds.pop("en")
    foreign = [text for texts in kinds.values() for text in texts]

    found, alarms = (sum(map(tokenizer.is_foreign, tokenizer.encode_many(texts))) / len(texts) for texts in (foreign, english))
    print(f"{name}: found {found:.1%} of {len(foreign)} foreign texts; false alarms in {alarms:.1%} of {len(english)} English ones")

    assert found >= found_min
    assert alarms <= alarms_max
