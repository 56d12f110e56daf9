"""Spellings: which misspelled words are read as a word, and everything else unchanged."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sentiment.model.bundle import load_bundle
from sentiment.model.tokenizer import Tokenizer
from sentiment_models.cli import main
from sentiment_models.data.perturb import typos
from sentiment_models.errors import BadCheckpoint, BadData
from sentiment_models.export.examine import examine
from sentiment_models.export.spellings import (
    COUNT_MIN,
    RARER,
    add_spellings,
    count_words,
    find_spellings,
    learn_spellings,
    typos_of,
    without_spellings,
)
from sentiment_models.training.average import average
from sentiment_models.training.emoji import add_emoji
from tests.models import processes
from tests.models.tiny_bert import save_tiny_bert, sentences, write_tsv
from tests.models.tiny_families import TEXTS, TINY, save_tiny

MANY = COUNT_MIN * RARER


def test_a_typo_swaps_two_neighbours_or_leaves_a_letter_out() -> None:
    assert typos_of("good") == {"ogod", "godo", "ood", "god", "goo"}
    assert typos_of("ee") == {"e"}


def test_every_typo_of_training_and_evaluation_is_in_the_set() -> None:
    rng = random.Random(1)
    for word in ("movie", "excellent", "boring", "unwatchable"):
        made = {typos(f"{word} - - - -", rng).split()[0] for _ in range(400)}
        assert made == typos_of(word)


def test_a_spelling_goes_to_the_more_frequent_word_and_no_word_is_one() -> None:
    found = find_spellings(["form", "from", "film", "farm"], Counter(form=MANY, **{"from": 2 * MANY}, film=MANY, farm=COUNT_MIN - 1))

    assert found["fom"] == found["fro"] == "from"
    assert found["flim"] == "film"
    # Not a spelling: existing words, too short ones, and those of a rare word.
    assert not {"form", "from", "film"} & set(found)
    assert all(len(spelling) >= 3 for spelling in found)
    assert "farm" not in found.values()
    assert list(found) == sorted(found)


def test_a_frequent_word_is_not_a_misspelling() -> None:
    counts = Counter(movie=MANY, moive=COUNT_MIN, mvoie=COUNT_MIN + 1)

    found = find_spellings(["movie"], counts)

    assert "moive" in found
    assert "mvoie" not in found


def test_a_spelling_that_other_words_begin_with_is_left_out_and_leaves_none_that_is_shorter() -> None:
    counts = Counter(funny=MANY, fun=MANY, funnier=COUNT_MIN + 1)

    found = find_spellings(["funny", "fun", "##nier"], counts)

    assert "funny" in found.values()
    # Otherwise funnier would be read as funny and ier, then as fny and so on.
    assert not [spelling for spelling in found if "funnier".startswith(spelling)]


def test_words_are_counted_as_the_tokenizer_reads_them(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base")
    tokenizer = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))

    assert count_words(["A Café: café, x1 good_film 2"], tokenizer) == {"a": 1, "cafe": 2}


@pytest.fixture(scope="module")
def spelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with emoji and spellings."""
    folder = tmp_path_factory.mktemp("spelled")
    texts = folder / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text in TEXTS * COUNT_MIN))
    base, checkpoint, bundle = save_tiny(folder / "base", TINY["bert"]), folder / "checkpoint", folder / "spelled" / "1"
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    assert add_emoji(model, tokenizer)
    for part in (model, tokenizer):
        part.save_pretrained(checkpoint)
    assert main(["export", str(checkpoint), "--embeddings", "fp32", "--spellings", str(texts), "--out", str(bundle)]) == 0
    return bundle


def _vocabulary(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return found


def _provenance(bundle: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())["provenance"]
    return found


def test_a_misspelled_word_is_one_token_with_the_id_of_the_word_and_shows_what_was_written(spelled: Path) -> None:
    vocabulary = _vocabulary(spelled)
    pairs = ((name, typo) for name in vocabulary for typo in sorted(typos_of(name)))
    word, spelling = next((name, typo) for name, typo in pairs if vocabulary.get(typo) == vocabulary[name])
    tokenizer = Tokenizer(spelled / "tokenizer.json", 32)

    found = tokenizer.encode_explained(f"{spelling.upper()}😍 {spelling}").tokens

    assert [token.piece for token in found if not token.special] == [spelling, "😍", spelling]
    assert tokenizer.encode(f"{spelling}😍 {spelling}").ids == tokenizer.encode(f"{word}😍 {word}").ids
    assert max(tokenizer.encode("😍").ids) < json.loads((spelled / "config.json").read_text())["vocab_size"]


def test_the_bundle_verifies_and_records_the_source_of_its_spellings(spelled: Path) -> None:
    told = _provenance(spelled)["spellings"]

    checks = {one.name: one for one in examine(spelled)}

    assert told["count"] > 50
    assert [file["file"] for file in told["files"]] == ["texts.txt"]
    assert f", {told['count']:,} spellings" in checks["tokenizer"].found
    assert all(one.good for one in checks.values() if one.name not in ("folder", "model card"))


def test_training_from_a_bundle_drops_spellings_and_every_word_keeps_its_id(spelled: Path, tmp_path: Path) -> None:
    data = write_tsv(tmp_path / "data.tsv", sentences(60))
    sizes = ["--max-tokens", "32", "--dev-fraction", "0.2", "--emoji"]

    assert main(["train", "--base", str(spelled), "--data", str(data), "--out", str(tmp_path / "out"), *sizes]) == 0

    before, after = _vocabulary(spelled), _vocabulary(tmp_path / "out" / "best")
    assert len(set(after.values())) == len(after) == len(set(before.values()))
    assert all(before[name] == number for name, number in after.items())
    assert json.loads((tmp_path / "out" / "best" / "config.json").read_text())["vocab_size"] == max(after.values()) + 1
    # transformers reads the bundle as the service does.
    text = "good 😍 " + next(name for name, number in before.items() if name not in after)
    assert AutoTokenizer.from_pretrained(spelled)(text)["input_ids"] == list(Tokenizer(spelled / "tokenizer.json", 32).encode(text).ids)


def test_an_export_of_a_bundle_keeps_its_spellings(spelled: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "plain" / "1"
    assert main(["export", str(spelled), "--embeddings", "fp32", "--out", str(bundle)]) == 0

    assert _vocabulary(bundle) == _vocabulary(spelled)
    recorded = _provenance(bundle)["spellings"]
    assert recorded["count"] == _provenance(spelled)["spellings"]["count"]
    assert recorded["base"].startswith(load_bundle(spelled).id)


def test_a_tokenizer_without_spellings_is_loaded_unchanged(tmp_path: Path) -> None:
    for name in ("bert", "roberta", "albert"):
        file = save_tiny(tmp_path / name, TINY[name]) / "tokenizer.json"
        assert without_spellings(file).to_str() == tokenizers.Tokenizer.from_file(str(file)).to_str()


def test_an_export_without_possible_spellings_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = tmp_path / "few.txt"
    few.write_text("acting\n")
    for name, wanted in (
        ("roberta", "spellings need a WordPiece tokenizer, got BPE"),
        (
            "bert",
            f"{few}: no spelling can be learned: a word must occur at least 20 times, and the most frequent word of the vocabulary with 3 "
            "letters or more occurs 1 times; use more texts",
        ),
    ):
        base = save_tiny(tmp_path / name, TINY[name])
        out = tmp_path / "out" / "1"
        assert main(["export", str(base), "--spellings", str(few), "--out", str(out)]) == 1
        said = capsys.readouterr()
        assert wanted in said.err
        assert "graphs" not in said.out + said.err, "told before the long work"
        assert not out.parent.exists() or not list(out.parent.iterdir())


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    for content in ('{"model"', "[]", '{"model": {"type": "WordPiece", "vocab": 3}}'):
        file.write_text(content)
        with pytest.raises(BadCheckpoint, match=r"tokenizer\.json: not a tokenizer"):
            without_spellings(file)


def test_words_whose_every_typo_is_a_word_are_refused() -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "wwww": 1, "www": 2}, unk_token="[UNK]"))

    with pytest.raises(BadData, match=r"texts\.txt: no spelling can be learned: 1 words of the vocabulary occur at least 20 times, but"):
        learn_spellings(tokenizer, ["wwww"] * COUNT_MIN, "texts.txt")


def test_an_added_token_keeps_its_id_although_it_is_a_typo_of_a_frequent_word(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "flicker": 1}, unk_token="[UNK]"))
    tokenizer.add_tokens(["flickr"])
    tokenizer.save(str(file))

    add_spellings(file, learn_spellings(tokenizer, ["flicker"] * MANY, "texts.txt"))

    read = tokenizers.Tokenizer.from_file(str(file))
    assert [read.encode(word).ids for word in ("flickr", "flicker", "flciker")] == [[2], [1], [1]]


def test_a_mean_of_bundles_with_spellings_has_none_and_every_word_keeps_its_id(spelled: Path, tmp_path: Path) -> None:
    average([spelled, spelled], tmp_path / "mean")

    before, after = _vocabulary(spelled), _vocabulary(tmp_path / "mean")
    assert len(set(after.values())) == len(after) == len(set(before.values()))
    assert all(before[name] == number for name, number in after.items())
    known = {word for text in TEXTS for word in text.split() if word.isalpha() and word in before}
    assert known and known <= after.keys()


def _spell(file: Path, texts: list[str]) -> None:
    add_spellings(file, learn_spellings(tokenizers.Tokenizer.from_file(str(file)), texts, "texts"))


def test_the_same_texts_give_the_same_bytes_in_any_order_and_process(tmp_path: Path) -> None:
    texts = [text for _, text in sentences(600)]
    here, there = (save_tiny_bert(tmp_path / name) / "tokenizer.json" for name in ("here", "there"))

    _spell(here, texts)
    assert processes.run(_spell, (there, texts[::-1])) == [0]

    assert here.read_bytes() == there.read_bytes()
    assert len(_vocabulary(here.parent)) > 50 + len(set(_vocabulary(here.parent).values()))
