"""How many tokens a model reads: one rule, whichever command asks."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sentiment.model.bundle import load_bundle
from sentiment_models.cli import main
from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.checkpoint import Checkpoint, base_tokenizer
from sentiment_models.export.positions import Reads, positions_of, tokens_of
from sentiment_models.training.label import answers_of
from sentiment_models.training.resume import replace_checkpoint
from tests.models.tiny_bert import save_tiny_bert

BERT = {"model_type": "bert", "max_position_embeddings": 512}
POSITIONS, SETTINGS, TRUNCATION = (
    "the positions of config.json",
    "model_max_length of tokenizer_config.json",
    "the truncation of tokenizer.json",
)


def _tokenizer(folder: Path, settings: dict[str, object], truncation: object = None) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(json.dumps({"truncation": truncation}))
    return folder


def _cut(own: Path, tokens: int) -> None:
    """Leave the truncation of training in a checkpoint, as transformers does when it saves a tokenizer that cut texts."""
    tokenizer = AutoTokenizer.from_pretrained(own)
    tokenizer("a", truncation=True, max_length=tokens)
    tokenizer.save_pretrained(own)


def _limit(own: Path, tokens: int) -> None:
    settings = json.loads((own / "tokenizer_config.json").read_bytes())
    (own / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": tokens}))


@pytest.mark.parametrize(
    ("config", "settings", "truncation", "most", "by"),
    [
        (BERT, {}, None, 512, POSITIONS),
        (BERT, {"model_max_length": 512}, None, 512, POSITIONS),
        (BERT, {"model_max_length": int(1e30)}, None, 512, POSITIONS),
        (BERT, {"model_max_length": 1e30}, None, 512, POSITIONS),
        (BERT, {"model_max_length": 128}, None, 128, SETTINGS),
        (BERT, {"max_len": 128}, None, 128, SETTINGS),
        # A truncation is what training read, not what the model can.
        (BERT, {"model_max_length": 256}, {"max_length": 128}, 256, SETTINGS),
        (BERT, {"model_max_length": None}, {"max_length": 128}, 512, POSITIONS),
        ({}, {"model_max_length": 1e30}, {"max_length": 128}, 128, TRUNCATION),
        ({"model_type": "modernbert", "max_position_embeddings": 16_384}, {}, None, 8192, "the service"),
        ({"model_type": "xlnet"}, {"model_max_length": 1024}, None, 512, POSITIONS),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, {"model_max_length": 514}, None, 512, POSITIONS),
        ({}, {"model_max_length": 256}, None, 256, SETTINGS),
    ],
)
def test_a_model_reads_the_least_of_its_limits(
    config: dict[str, object], settings: dict[str, object], truncation: object, most: int, by: str, tmp_path: Path
) -> None:
    folder = _tokenizer(tmp_path, settings, truncation)

    assert tokens_of(config, folder) == Reads(most, most, by)
    assert tokens_of(config, folder, 16) == Reads(16, most, by)
    for given in (7, most + 1):
        with pytest.raises(BadCheckpoint, match=rf"max_tokens must be from 8 to {most}, got {given} \(limited by {by}\)"):
            tokens_of(config, folder, given)


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"model_type": "roberta", "max_position_embeddings": 514}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": None}, 513),
        ({"model_type": "xlm-roberta-xl", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "longformer", "max_position_embeddings": 4098, "pad_token_id": 1}, 4096),
        ({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 0}, 512),
        ({"model_type": "unheard-of", "max_position_embeddings": 100}, 100),
        ({"model_type": "unheard-of"}, None),
    ],
)
def test_families_of_roberta_have_no_room_for_the_positions_up_to_the_paddings(config: dict[str, object], tokens: int | None) -> None:
    assert positions_of(config) == tokens


def test_a_tokenizer_that_cuts_texts_to_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"max_tokens must be from 8 to 4, got 4 \(limited by the truncation of tokenizer\.json\)"):
        tokens_of({}, _tokenizer(tmp_path, {}, {"max_length": 4}))


def test_an_import_reads_no_more_than_the_tokenizer_allows_and_says_which_limit_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, out = save_tiny_bert(tmp_path / "own"), tmp_path / "mine" / "1"
    _cut(own, 16)
    _limit(own, 32)

    assert main(["import", str(own), "--output", str(out), "--max-tokens", "33"]) == 1
    said = capsys.readouterr().err
    assert "max_tokens must be from 8 to 32, got 33 (limited by model_max_length of tokenizer_config.json)" in said
    assert main(["import", str(own), "--output", str(out)]) == 0

    assert "reads 32 tokens of a text (limited to 32 by model_max_length of tokenizer_config.json)" in capsys.readouterr().err.splitlines()
    assert load_bundle(out).manifest.max_tokens == 32
    assert main(["verify", str(out)]) == 0


def test_a_teacher_is_given_no_more_than_it_reads(tmp_path: Path) -> None:
    own = save_tiny_bert(tmp_path / "own")
    texts = ["good " * 30, "good " * 30 + "bad bad bad"]

    whole = answers_of(own, 1.0, texts, torch.device("cpu"), 512)
    _limit(own, 32)
    cut = answers_of(own, 1.0, texts, torch.device("cpu"), 512)

    assert whole[0] != pytest.approx(whole[1])
    assert cut[0] == pytest.approx(cut[1])


def test_a_checkpoint_of_train_reads_as_many_tokens_as_it_has_positions_whatever_its_bases_tokenizer_was_used_for(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base")
    _cut(base, 32)
    _limit(base, 16)

    replace_checkpoint(tmp_path / "best", AutoModelForSequenceClassification.from_pretrained(base), base_tokenizer(str(base)))

    assert Checkpoint(base).max_tokens == 16
    assert Checkpoint(tmp_path / "best").max_tokens == 64
