"""Emoji as tokens: the vocabulary, the words that they touch and their offsets."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sentiment.model.tokenizer import Tokenizer
from sentiment_models.cli import main
from sentiment_models.training.emoji import EMOJI, add_emoji
from tests.models.tiny_bert import save_tiny_bert, sentences, write_tsv
from tests.models.tiny_families import TINY, save_tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that was fine-tuned with ``--emoji``."""
    folder = tmp_path_factory.mktemp("emoji")
    data = write_tsv(folder / "data.tsv", sentences(80))
    base = save_tiny_bert(folder / "base")
    sizes = ["--max-tokens", "32", "--dev-fraction", "0.2"]
    assert main(["train", "--base", str(base), "--data", str(data), "--out", str(folder / "out"), "--emoji", *sizes]) == 0
    return folder / "out"


def test_the_blocks_hold_common_emoji() -> None:
    assert set("😍😡👍👎❤💔😭🔥💩🙄✨⭐🎉🥱🏽🫠🐶🇺⏰🩷🅰\ufe0f\u20e3") <= set(EMOJI)
    assert not set("aé中1©\u200d") & set(EMOJI)


def test_a_word_that_an_emoji_touches_is_still_read(trained: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "emoji" / "1"
    assert main(["export", str(trained / "best"), "--dev", str(trained / "dev.jsonl"), "--out", str(bundle)]) == 0
    text = "good😍film ❤️ 👍🏽👎 it🇺🇸"

    found = Tokenizer(bundle / "tokenizer.json", 32).encode_explained(text)

    read = [(token.piece, text[token.start : token.end]) for token in found.tokens if not token.special]
    assert [piece for piece, _ in read] == ["good", "😍", "film", "❤", "👍", "🏽", "👎", "it", "🇺", "🇸"]
    assert all(piece == there for piece, there in read)
    assert not any(token.unknown for token in found.tokens)
    assert json.loads((trained / "best" / "training.json").read_text())["recipe"]["emoji"] is True


def test_the_embedding_of_an_emoji_starts_as_the_mean_of_its_name(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base")
    model = AutoModelForSequenceClassification.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    before = model.get_input_embeddings().weight.detach().clone()

    added = add_emoji(model, tokenizer)

    after = model.get_input_embeddings().weight.detach()
    assert added == len(after) - len(before) == model.config.vocab_size - len(before)
    assert after[: len(before)].equal(before)
    name = tokenizer("smiling face with heart-shaped eyes", add_special_tokens=False)["input_ids"]
    assert after[tokenizer.convert_tokens_to_ids("😍")].allclose(before[name].mean(0))


@pytest.mark.parametrize("name", ["bert", "albert", "xlnet", "mpnet", "roberta"])
def test_every_kind_of_tokenizer_reads_emoji_after_one_call(name: str, tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base", TINY[name])
    model = AutoModelForSequenceClassification.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)

    added = add_emoji(model, tokenizer)

    # Byte-level tokenizers read every emoji already.
    assert (added == 0) == (name == "roberta")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "added")
    again = AutoTokenizer.from_pretrained(tmp_path / "added")
    assert "😍" in again.decode(again("good😍film", add_special_tokens=False)["input_ids"])
    assert add_emoji(AutoModelForSequenceClassification.from_pretrained(tmp_path / "added"), again) == 0


def test_a_known_emoji_keeps_its_id_and_is_split_from_words(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base", known=("♥",))
    model = AutoModelForSequenceClassification.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    heart = tokenizer.convert_tokens_to_ids("♥")
    assert tokenizer.tokenize("♥good") != ["♥", "good"]

    add_emoji(model, tokenizer)

    assert tokenizer.tokenize("♥good") == ["♥", "good"]
    assert tokenizer.convert_tokens_to_ids("♥") == heart
