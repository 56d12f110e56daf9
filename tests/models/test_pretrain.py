"""Pre-training: masks, pairs, learning, and resuming a killed run without a difference."""

import json
import random
import signal
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, BertForPreTraining, BertTokenizerFast

from sentiment_models.cli import main
from sentiment_models.errors import BadCheckpoint, BadData, ModelsError
from sentiment_models.study import pretrain as pretrain_module
from sentiment_models.study.commands.pretrain import PRETRAINING_HELP
from sentiment_models.study.documents import Documents, Frame, pairs, read_documents, segments
from sentiment_models.study.language_model import HEADS, load
from sentiment_models.study.masking import IGNORED, Vocabulary, mask
from sentiment_models.study.pretrain import Masker, pretrain
from sentiment_models.study.recipes import Pretraining
from sentiment_models.training.distributed import Processes
from sentiment_models.training.recipe import Recipe
from sentiment_models.training.train import train
from tests.models import processes
from tests.models.tiny_bert import save_tiny_bert, sentences, write_tsv
from tests.models.tiny_families import TINY

VOCABULARY = Vocabulary.of(1000, 4, [0, 1, 2, 3, 4])


def documents_of(count: int, seed: int = 0) -> list[str]:
    """Documents of 1 to 8 sentences, all different."""
    rng = random.Random(seed)
    return [
        " ".join(f"{text}." for _, text in sentences(rng.randint(1, 8), seed=1000 * seed + number, words_max=9)) + f" end {number}."
        for number in range(count)
    ]


def laid_out(lengths: list[list[int]]) -> Documents:
    """Documents with sentences of the given numbers of tokens; all tokens differ."""
    sentences, starts = [0], [0]
    for document in lengths:
        for length in document:
            sentences.append(sentences[-1] + length)
        starts.append(len(sentences) - 1)
    return Documents(np.arange(sentences[-1]), sentences, starts)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Pretraining:
    """About 20 steps from an untrained model."""
    path = tmp_path_factory.mktemp("documents") / "documents.txt"
    path.write_text("\n".join(documents_of(60)) + "\n", encoding="utf-8")
    return Pretraining(
        (str(path),),
        layers=2,
        heads=2,
        width=32,
        vocabulary=150,
        epochs=2,
        learning_rate=5e-3,
        batch_rows=8,
        max_tokens=32,
        dev_fraction=0.2,
        evaluations_per_epoch=1,
    )


@pytest.fixture(scope="module")
def whole(recipe: Pretraining, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's folder after an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole")
    pretrain(recipe, out, checkpoint_steps=2)
    return out


def test_masking_chooses_15_per_cent_and_hides_80_replaces_10_and_keeps_10_per_cent_of_them() -> None:
    rng = np.random.default_rng(7)
    ids = np.concatenate([[2], rng.integers(5, 1000, 2000), [3]])
    hidden = replaced = kept = 0

    for seed in range(50):
        read, labels = mask(ids, VOCABULARY, np.random.default_rng(seed))
        chosen = labels != IGNORED
        assert chosen.sum() == 300
        assert (labels[chosen] == ids[chosen]).all()
        assert (read[~chosen] == ids[~chosen]).all()
        hidden += int((read[chosen] == 4).sum())
        kept += int((read[chosen] == ids[chosen]).sum())
        replaced += int(((read != 4) & (read != ids)).sum())

    assert hidden + replaced + kept == 15_000
    # Five standard deviations of 15,000 draws.
    assert abs(hidden - 12_000) < 250
    assert abs(replaced - 1500) < 185
    assert abs(kept - 1500) < 185


def test_special_tokens_are_never_masked_and_never_replace_others() -> None:
    rng = np.random.default_rng(3)

    for seed in range(300):
        ids = rng.integers(0, 12, 40)
        read, labels = mask(ids, VOCABULARY, np.random.default_rng(seed))
        special = ids < 5
        assert (labels[special] == IGNORED).all()
        assert (read[special] == ids[special]).all()
        assert not np.isin(read[~special], [0, 1, 2, 3]).any()


def test_a_row_of_special_tokens_has_nothing_to_predict_and_one_of_a_single_token_that_one() -> None:
    assert (mask(np.array([2, 3, 3]), VOCABULARY, np.random.default_rng(0))[1] == IGNORED).all()
    assert mask(np.array([2, 77, 3]), VOCABULARY, np.random.default_rng(0))[1].tolist() == [IGNORED, 77, IGNORED]


def test_a_mask_depends_on_seed_epoch_and_row_and_not_on_the_batch(tmp_path: Path) -> None:
    tokenizer = BertTokenizerFast.from_pretrained(save_tiny_bert(tmp_path))
    documents = Documents.encode(documents_of(30), lambda some: tokenizer(some, add_special_tokens=False)["input_ids"], 14)
    rows = pairs(documents, 29, random.Random(1))
    masker = Masker(tokenizer, len(tokenizer), 1, two_segments=True)

    alone = masker.row(documents, rows[5], 0, 5)
    batch = masker.batch(documents, rows, 0, [9, 5, 2])

    length = len(alone[0])
    assert batch["ids"][1, :length].tolist() == alone[0].tolist()
    assert batch["labels"][1, :length].tolist() == alone[2].tolist()
    assert (batch["labels"][1, length:] == IGNORED).all()
    assert batch["attended"].sum(1).tolist() == [len(masker.row(documents, rows[number], 0, number)[0]) for number in (9, 5, 2)]
    assert masker.row(documents, rows[5], 1, 5)[2].tolist() != alone[2].tolist()
    assert Masker(tokenizer, len(tokenizer), 2, two_segments=True).row(documents, rows[5], 0, 5)[2].tolist() != alone[2].tolist()


def test_half_of_the_pairs_follow_and_half_are_of_two_documents() -> None:
    rng = random.Random(5)
    documents = laid_out([[rng.randint(1, 14) for _ in range(rng.randint(1, 9))] for _ in range(2000)])
    bounds = [documents.sentences[start] for start in documents.starts]
    of_token = np.searchsorted(bounds, np.arange(len(documents.tokens)), side="right")

    rows = pairs(documents, 29, random.Random(2))

    for row in rows:
        assert row.a[0] < row.a[1]
        assert row.b[0] < row.b[1]
        assert row.tokens <= 29
        assert of_token[row.a[0]] == of_token[row.a[1] - 1]
        assert of_token[row.b[0]] == of_token[row.b[1] - 1]
        assert (
            (row.a[1] == row.b[0] and of_token[row.a[0]] == of_token[row.b[0]]) if row.follows else of_token[row.a[0]] != of_token[row.b[0]]
        )
    assert len(rows) > 3000
    assert abs(sum(row.follows for row in rows) / len(rows) - 0.5) < 0.04
    # Nearly all tokens are shown: a single last token of a document may be missing.
    shown = {token for row in rows for token in range(*row.a)} | {token for row in rows if row.follows for token in range(*row.b)}
    assert len(shown) > 0.95 * len(documents.tokens)
    assert rows == pairs(documents, 29, random.Random(2))


def test_rows_of_one_segment_hold_every_token_once_and_never_two_documents() -> None:
    rng = random.Random(6)
    documents = laid_out([[rng.randint(1, 30) for _ in range(rng.randint(1, 9))] for _ in range(200)])

    rows = segments(documents, 30)

    assert [token for row in rows for token in range(*row.a)] == list(range(len(documents.tokens)))
    assert max(row.tokens for row in rows) <= 30
    starts = {documents.sentences[start] for start in documents.starts}
    assert all(not starts & set(range(row.a[0] + 1, row.a[1])) for row in rows)


def test_a_sentence_that_is_too_long_is_cut_and_an_empty_document_left_out() -> None:
    encoded = Documents.encode(["aaaaaaa. bb.", "...", "cccc."], lambda some: [[ord(c) for c in one if c != "."] for one in some], 3)

    assert len(encoded) == 2
    assert bytes(encoded.tokens.tolist()).decode() == "aaaaaaabbcccc"
    assert encoded.sentences == [0, 3, 6, 7, 9, 12, 13]
    assert encoded.starts == [0, 4, 6]


def test_the_frame_equals_the_tokenizers_special_tokens(tmp_path: Path) -> None:
    tokenizer = BertTokenizerFast.from_pretrained(save_tiny_bert(tmp_path))
    a, b = (np.array(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in ("the good film", "a story"))

    for given, texts in (([a, b], ["the good film", "a story"]), ([a], ["the good film"])):
        ids, types = Frame.of(tokenizer, len(given)).lay_out(given)
        wanted = tokenizer(*texts)
        assert ids.tolist() == wanted["input_ids"]
        assert types.tolist() == wanted["token_type_ids"]


def test_documents_are_read_from_lines_and_from_labelled_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n two \n")
    (tmp_path / "b.tsv").write_text("1\tone\n0\ttwo\tthree\n")
    (tmp_path / "c.jsonl").write_text('{"text": "one", "label": "whatever"}\n{"text": "two"}\n')

    assert list(read_documents(tmp_path / "a.txt")) == ["one", " two "]
    assert list(read_documents(tmp_path / "b.tsv")) == ["one", "two\tthree"]
    assert list(read_documents(tmp_path / "c.jsonl")) == ["one", "two"]


def test_a_bad_file_of_documents_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"0\tone\ntwo\n")

    with pytest.raises(BadData, match=r"a\.tsv: line 2: expected label<TAB>text, but the line has no tab"):
        list(read_documents(tmp_path / "a.tsv"))


def test_a_run_killed_with_sigkill_and_resumed_ends_with_the_weights_of_an_uninterrupted_one(
    recipe: Pretraining, whole: Path, tmp_path: Path
) -> None:
    assert processes.run(processes.killed_in_step_5, ("pretrain", recipe, tmp_path, torch.get_num_threads())) == [-signal.SIGKILL]
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]["step"] == 4
    pretrain(recipe, tmp_path, checkpoint_steps=2)

    resumed, uninterrupted = (torch.load(out / "checkpoint.pt", weights_only=True)["model"] for out in (tmp_path, whole))
    assert all(torch.equal(resumed[name], tensor) for name, tensor in uninterrupted.items())
    for name in ("model.safetensors", "tokenizer.json", "training.json"):
        assert (tmp_path / "best" / name).read_bytes() == (whole / "best" / name).read_bytes()


def test_pre_training_learns_and_records_how(recipe: Pretraining, whole: Path) -> None:
    record = json.loads((whole / "best" / "training.json").read_bytes())

    first, last = record["history"][0], record["history"][-1]
    assert last["dev_loss"] < first["dev_loss"]
    assert last["train_loss"] < first["train_loss"]
    assert last["masked_accuracy"] > 0.1
    assert 0 <= last["next_sentence_accuracy"] <= 1
    assert record["steps"] == last["step"] > 10
    assert [(file["file"], file["documents"]) for file in record["files"]] == [("documents.txt", 60)]
    assert record["train_documents"] + record["dev_documents"] == 60
    assert record["recipe"]["base"] == record["recipe"]["tokenizer"] == ""
    assert str(Path(recipe.sources[0]).parent) not in json.dumps(record)


def test_a_classifier_is_fine_tuned_from_the_encoder(recipe: Pretraining, whole: Path, tmp_path: Path) -> None:
    data = write_tsv(tmp_path / "data.tsv", sentences(40, seed=4))

    best = train(Recipe(str(whole / "best"), (str(data),), max_tokens=recipe.max_tokens, dev_fraction=0.3, batch_rows=16), tmp_path / "run")

    record = json.loads((best / "training.json").read_bytes())
    assert record["base_training"]["recipe"]["layers"] == 2
    with pytest.raises(BadCheckpoint, match=r"best: max_tokens must be at most 32 .*, got 256"):
        train(Recipe(str(whole / "best"), (str(data),), dev_fraction=0.3), tmp_path / "other")


def test_an_encoder_without_a_head_gets_one_tied_to_its_word_embeddings(recipe: Pretraining, tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base")

    loaded = load(str(base), 0.1, 32, next_sentence=False)
    best = pretrain(replace(recipe, base=str(base), next_sentence=False, max_steps=3), tmp_path / "out")

    predictions = loaded.module.cls.predictions
    assert predictions.decoder.weight is loaded.module.bert.embeddings.word_embeddings.weight
    before, after = load_file(base / "model.safetensors"), load_file(best / "model.safetensors")
    assert torch.equal(before["bert.pooler.dense.weight"], after["bert.pooler.dense.weight"])
    assert not torch.equal(before["bert.encoder.layer.0.output.dense.weight"], after["bert.encoder.layer.0.output.dense.weight"])
    again = BertForPreTraining.from_pretrained(best)
    assert torch.equal(again.cls.predictions.decoder.weight, again.bert.embeddings.word_embeddings.weight)
    record = json.loads((best / "training.json").read_bytes())
    assert record["steps"] == 3
    assert record["recipe"]["base"] == "base"
    assert "next_sentence_accuracy" not in record["history"][0]


@pytest.mark.parametrize("family", HEADS)
def test_the_head_at_chosen_positions_equals_the_models_own(family: str) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=50, pad_token_id=1, max_position_embeddings=66, **TINY[family].sizes)
    kind, head = HEADS[family]
    model = kind(config).eval()
    ids = torch.randint(2, 50, (2, 9))

    with torch.no_grad():
        whole = model(input_ids=ids)
        hidden = model.base_model(input_ids=ids)[0]

    logits = whole.prediction_logits if "prediction_logits" in whole else whole.logits
    assert torch.allclose(head(model, hidden[:, 2:4]), logits[:, 2:4], atol=1e-6)


def test_invalid_pre_training_is_refused_with_the_reason(recipe: Pretraining, tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base")
    roberta = tmp_path / "roberta"
    AutoConfig.for_model("roberta").save_pretrained(roberta)
    lone = tmp_path / "lone.txt"
    lone.write_text("\n".join(["good film. bad film."] * 5))

    with pytest.raises(BadCheckpoint, match=r"max_tokens must be at most 64 .*, got 65"):
        pretrain(replace(recipe, base=str(base), max_tokens=65), tmp_path / "out")
    with pytest.raises(BadCheckpoint, match="next-sentence prediction needs bert, got roberta; add --no-nsp"):
        pretrain(replace(recipe, base=str(roberta)), tmp_path / "out")
    with pytest.raises(BadCheckpoint, match="no checkpoint or bundle in this folder"):
        pretrain(replace(recipe, base=str(tmp_path)), tmp_path / "out")
    with pytest.raises(BadCheckpoint, match="the tokenizer cannot be loaded"):
        pretrain(replace(recipe, tokenizer=str(tmp_path)), tmp_path / "out")
    with pytest.raises(ModelsError, match="which has its own tokenizer"):
        replace(recipe, base=str(base), tokenizer=str(base))
    with pytest.raises(BadData, match=r"vocabulary must be at least \d+ for the \d+ characters of the texts, got 20"):
        pretrain(replace(recipe, vocabulary=20), tmp_path / "out")
    with pytest.raises(BadData, match="split is empty"):
        pretrain(replace(recipe, sources=(str(lone),)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change", [lambda run: run.model.tokenizer.add_tokens(["another"]), lambda run: run.plan.pop()], ids=["vocabulary", "steps"]
)
def test_processes_with_different_plans_or_vocabularies_do_not_train(
    recipe: Pretraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], object]
) -> None:
    class First(Processes):
        def check_same(self, _what: str, value: object) -> None:
            said.append(value)
            raise ModelsError("enough")

    class Second(Processes):
        def agree(self, _value: Any) -> Any:
            return said[0]

    class Changed(pretrain_module._Run):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            change(self)

    said: list[Any] = []
    monkeypatch.setattr(pretrain_module, "join", lambda _device: First())
    with pytest.raises(ModelsError, match="enough"):
        pretrain(recipe, tmp_path / "out")
    monkeypatch.setattr(pretrain_module, "join", lambda _device: Second())
    monkeypatch.setattr(pretrain_module, "_Run", Changed)
    with pytest.raises(ModelsError, match=r"run, step, steps and vocabulary .*; all processes must see the same files"):
        pretrain(recipe, tmp_path / "out")


def test_the_command_takes_a_tokenizer_and_every_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = save_tiny_bert(tmp_path / "base")
    (tmp_path / "documents.txt").write_text("\n".join(documents_of(20)))
    sizes = ["--layers", "1", "--heads", "2", "--width", "16", "--max-tokens", "24", "--max-steps", "2", "--dev-fraction", "0.3"]

    assert (
        main(["pretrain", "--data", str(tmp_path / "documents.txt"), "--tokenizer", str(base), "--out", str(tmp_path / "out"), *sizes]) == 0
    )

    assert "best: the best checkpoint; next: sentiment-models train --base" in capsys.readouterr().out
    assert (tmp_path / "out/best/vocab.txt").read_bytes() == (base / "vocab.txt").read_bytes()
    own = {"sources", "base", "tokenizer", "next_sentence"}
    assert {field.name for field in fields(Pretraining)} == own | PRETRAINING_HELP.keys()
