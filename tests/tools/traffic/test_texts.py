"""Lengths and texts: the built-in ones have the lengths of their data sets, also by the shipped tokenizer."""

import random
import statistics
from pathlib import Path

import pytest
import tokenizers

from sentiment.errors import BadSettings
from sentiment_tools.traffic.lengths import (
    BUILT_IN,
    IMDB,
    MIXED,
    QUANTILES,
    SHORT,
    SST2,
    Lengths,
    estimate_tokens,
    of_lengths,
    parse_lengths,
)
from sentiment_tools.traffic.texts import make_texts, read_pool
from tests.english import ENGLISH

TOKENIZER = ENGLISH / "tokenizer.json"


@pytest.mark.parametrize("law", [SST2, IMDB, MIXED, of_lengths([7]), of_lengths([5, 500])])
def test_draws_have_the_distributions_mean_and_stay_within_it(law: Lengths) -> None:
    rng = random.Random(1)

    drawn = [law.draw(rng) for _ in range(20_000)]

    assert statistics.mean(drawn) == pytest.approx(law.mean, rel=0.03)
    assert max(drawn) <= law.longest
    # Evenly spread, 300 are enough.
    assert statistics.mean(law.spread(300, rng)) == pytest.approx(law.mean, rel=0.01)


def test_the_quantiles_are_the_measured_ones() -> None:
    assert [SST2.at(share) for share in QUANTILES] == list(SHORT)


def test_a_mixture_is_half_of_each() -> None:
    drawn = MIXED.spread(1000, random.Random(1))

    assert MIXED.mean == (SST2.mean + IMDB.mean) / 2
    assert statistics.median(sorted(drawn)[:500]) == pytest.approx(SST2.at(0.5), abs=2)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_texts_have_their_lengths_by_the_shipped_tokenizer(name: str) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    tokenizer.no_truncation()

    texts = read_pool(name)

    counted = statistics.mean(len(tokenizer.encode(text).ids) for text in texts)
    assert counted == pytest.approx(BUILT_IN[name].mean, rel=0.05)
    assert len(set(texts)) > 0.9 * len(texts)


@pytest.mark.parametrize("tokens", [3, 4, 17, 512])
def test_a_generated_text_has_the_given_number_of_words_and_marks(tokens: int) -> None:
    assert [estimate_tokens(text) for text in make_texts(of_lengths([tokens]), 20)] == [tokens] * 20
    assert make_texts(of_lengths([tokens]), 20) == make_texts(of_lengths([tokens]), 20)


def test_a_file_gives_texts_to_send_and_a_distribution_of_lengths(tmp_path: Path) -> None:
    texts, numbers = tmp_path / "texts.csv", tmp_path / "numbers.txt"
    texts.write_text('label,text\n1,good film\n1,\n0,"bad, bad"\n')
    numbers.write_text("10\n30\n")

    assert read_pool(str(texts)) == ["good film", "bad, bad"]
    # Two words; nothing; two words and a mark; each with the two special tokens.
    assert parse_lengths(str(texts)).mean == pytest.approx((2 + 4 + 4 + 5) / 4)
    assert parse_lengths(str(numbers)).mean == 20
    assert parse_lengths("32").spread(3, random.Random(1)) == [32, 32, 32]


def test_a_text_that_is_not_unicode_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "good \\ud83d"}\n')

    with pytest.raises(BadSettings, match="not a valid Unicode character"):
        read_pool(str(file))


@pytest.mark.parametrize("source", ["sst3", "2", "0", "nothing.txt", "empty.txt", "README"])
def test_an_unknown_source_of_texts_is_refused(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").touch()
    Path("README").touch()

    with pytest.raises(BadSettings):
        read_pool(source)
    with pytest.raises(BadSettings):
        parse_lengths(source)
