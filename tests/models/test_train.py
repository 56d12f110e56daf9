"""Fine-tuning: records, resuming a killed run without a difference, and runs that must not be continued."""

import json
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from sentiment.errors import BadBundle
from sentiment.model.bundle import load_bundle
from sentiment_models.data.corpus import read_corpus
from sentiment_models.data.labelled import read_examples
from sentiment_models.errors import BadCheckpoint, BadData, ModelsError, OtherRun
from sentiment_models.export.export import Exported, export
from sentiment_models.export.folders import locked
from sentiment_models.export.graphs.quantize import INT8, SCALE
from sentiment_models.export.weights import real
from sentiment_models.reports.record_tables import training_stages
from sentiment_models.training.label import label
from sentiment_models.training.recipe import Recipe
from sentiment_models.training.train import Row, _Run, train
from tests.models import processes
from tests.models.events import SPEED, read_scalars
from tests.models.tiny_bert import LABELS, save_tiny_bert, sentences, write_tsv


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """18 steps of 8 rows, with dropout and a moving average; two files of one name."""
    folder = tmp_path_factory.mktemp("training")
    base = save_tiny_bert(folder / "tiny-base")
    (folder / "one").mkdir()
    (folder / "two").mkdir()
    one = write_tsv(folder / "one" / "train.tsv", sentences(60, seed=1))
    two = write_tsv(folder / "two" / "train.tsv", sentences(50, seed=2))
    return Recipe(
        str(base),
        (f"{one}:2", str(two)),
        learning_rate=1e-3,
        ema=0.7,
        batch_rows=8,
        max_tokens=32,
        dev_fraction=0.2,
        evaluations_per_epoch=2,
        patience=100,
    )


@pytest.fixture(scope="module")
def whole(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's folder after an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole")
    train(recipe, out, checkpoint_steps=2)
    return out


def _final_weights(out: Path, kind: str = "model") -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(out / "checkpoint.pt", weights_only=True)[kind]
    return weights


def test_a_run_killed_with_sigkill_and_resumed_ends_with_the_weights_of_an_uninterrupted_one(
    recipe: Recipe, whole: Path, tmp_path: Path
) -> None:
    assert processes.run(processes.killed_in_step_5, ("train", recipe, tmp_path, torch.get_num_threads())) == [-signal.SIGKILL]
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]["step"] == 4
    train(recipe, tmp_path, checkpoint_steps=2)

    for kind in ("model", "average"):
        resumed, uninterrupted = _final_weights(tmp_path, kind), _final_weights(whole, kind)
        assert all(torch.equal(resumed[name], tensor) for name, tensor in uninterrupted.items())
    best, wanted = load_file(tmp_path / "best" / "model.safetensors"), load_file(whole / "best" / "model.safetensors")
    assert all(torch.equal(best[name], tensor) for name, tensor in wanted.items())
    assert (tmp_path / "best" / "training.json").read_bytes() == (whole / "best" / "training.json").read_bytes()
    ours, theirs = read_scalars(tmp_path), read_scalars(whole)
    assert {name: ours[name] for name in ours if name != SPEED} == {name: theirs[name] for name in theirs if name != SPEED}


def test_the_moving_average_of_the_weights_is_saved(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    kept: list[int] = []
    step, save, begin = _Run._step, _Run._save_best, _Run.__init__

    def remember(run: _Run) -> None:
        seen.append({name: tensor.detach().clone() for name, tensor in run.module.state_dict().items()})

    def begins(run: _Run, *given: Any) -> None:
        begin(run, *given)
        remember(run)

    def steps(run: _Run, rows: Sequence[Row], batch: Sequence[int]) -> float:
        loss = step(run, rows, batch)
        remember(run)
        return loss

    def saves(run: _Run) -> None:
        kept.append(run.progress.step)
        save(run)

    monkeypatch.setattr(_Run, "__init__", begins)
    monkeypatch.setattr(_Run, "_step", steps)
    monkeypatch.setattr(_Run, "_save_best", saves)

    best = train(recipe, tmp_path)

    mean = seen[0]
    for weights in seen[1 : kept[-1] + 1]:
        mean = {name: 0.7 * tensor + 0.3 * weights[name] for name, tensor in mean.items()}
    written = load_file(best / "model.safetensors")
    assert all(torch.allclose(written[name], mean[name], rtol=1e-4, atol=1e-6) for name in written)
    assert not torch.equal(written["classifier.weight"], seen[kept[-1]]["classifier.weight"])


def test_a_run_whose_loss_is_nan_ends_without_a_best_checkpoint(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = _Run._step

    def diverges(run: _Run, rows: Sequence[Row], batch: Sequence[int]) -> float:
        run.module.classifier.bias.data.fill_(torch.nan)
        return step(run, rows, batch)

    monkeypatch.setattr(_Run, "_step", diverges)

    with pytest.raises(ModelsError, match=r"step \d+: the loss on dev is nan; lower the learning rate \(0.001\)"):
        train(recipe, tmp_path)

    assert not (tmp_path / "best").exists()


def test_a_repeated_run_gives_the_same_bytes(recipe: Recipe, whole: Path, tmp_path: Path) -> None:
    again = train(recipe, tmp_path, checkpoint_steps=7)

    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in (whole / "best").iterdir()
    }
    assert (tmp_path / "dev.jsonl").read_bytes() == (whole / "dev.jsonl").read_bytes()


def test_training_changes_the_weights_and_is_recorded_in_full(recipe: Recipe, whole: Path) -> None:
    content = (whole / "best" / "training.json").read_text()
    record = json.loads(content)

    before = load_file(Path(recipe.base) / "model.safetensors")
    after = _final_weights(whole)
    assert not torch.equal(before["bert.encoder.layer.0.output.dense.weight"], after["bert.encoder.layer.0.output.dense.weight"])
    assert [(file["file"], file["rows"], file["times"]) for file in record["files"]] == [("one/train.tsv", 60, 2), ("two/train.tsv", 50, 1)]
    assert record["files"][0]["sha256"] != record["files"][1]["sha256"]
    assert record["steps"] == record["history"][-1]["step"] > 10
    assert 0 <= record["dev_accuracy"] <= 1
    # No path of this machine.
    assert record["recipe"]["base"] == "tiny-base"
    assert str(Path(recipe.base).parent) not in content


def test_a_head_learns_alone_with_its_pooler(recipe: Recipe, tmp_path: Path) -> None:
    best = train(replace(recipe, head_only=True), tmp_path)

    before, after = (load_file(folder / "model.safetensors") for folder in (Path(recipe.base), best))
    learned = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert learned == {f"{module}.{kind}" for module in ("bert.pooler.dense", "classifier") for kind in ("weight", "bias")}


def test_frozen_embeddings_stay_and_all_else_learns(recipe: Recipe, tmp_path: Path) -> None:
    best = train(replace(recipe, freeze_embeddings=True), tmp_path)

    before, after = (load_file(folder / "model.safetensors") for folder in (Path(recipe.base), best))
    kept = {name for name, tensor in before.items() if torch.equal(tensor, after[name])}
    assert kept == {"bert.embeddings.word_embeddings.weight"}


def test_the_development_set_is_written_and_shares_no_text_with_training(whole: Path, recipe: Recipe) -> None:
    record = json.loads((whole / "best" / "training.json").read_bytes())

    dev = list(read_examples(whole / "dev.jsonl", LABELS))

    assert len(dev) == record["dev_examples"]
    everything = [one for source in recipe.sources for one in read_examples(Path(source.removesuffix(":2")), LABELS)]
    labels = {example.text: example.label for example in everything}
    assert all(labels[example.text] == example.label for example in dev)
    trained = {example.text for example in read_corpus(recipe).split.train}
    assert trained
    assert trained.isdisjoint(example.text for example in dev)


def test_no_batch_of_training_or_evaluation_exceeds_the_recipes_tokens(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: dict[bool, list[int]] = {True: [], False: []}
    logits = _Run._logits

    def watched(run: _Run, model: PreTrainedModel, rows: Sequence[Row]) -> torch.Tensor:
        fed[model.training].append(len(rows) * max(len(row.ids) for row in rows))
        return logits(run, model, rows)

    monkeypatch.setattr(_Run, "_logits", watched)

    train(replace(recipe, batch_rows=64, batch_tokens=96), tmp_path)

    assert max(fed[True]) <= 96
    assert max(fed[False]) <= 96


def test_a_model_sees_erased_words_as_masked_ones_or_not_at_all_and_what_a_text_spells_as_a_token(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    logits = _Run._logits

    def watched(run: _Run, model: PreTrainedModel, rows: Sequence[Row]) -> torch.Tensor:
        with monkeypatch.context() as within:
            forward = model.forward

            def fed(*, input_ids: torch.Tensor, attention_mask: torch.Tensor, **others: torch.Tensor) -> Any:
                padding = input_ids == run.tokenizer.pad_token_id
                unseen = ~attention_mask.bool()
                inner = unseen[:, :-1] & ~unseen[:, 1:]
                seen.update(["hole"] * bool(inner.any()), ["mask"] * bool((input_ids == run.tokenizer.mask_token_id).any()))
                seen.update(["spelt"] * bool((padding & ~unseen).any()))
                assert not (unseen & ~padding).any()
                return forward(input_ids=input_ids, attention_mask=attention_mask, **others)

            within.setattr(model, "forward", fed)
            return logits(run, model, rows)

    monkeypatch.setattr(_Run, "_logits", watched)

    train(replace(recipe, erased=recipe.sources[1:]), tmp_path / "erased")
    assert seen == {"hole", "mask"}
    seen.clear()
    spelt = write_tsv(tmp_path / "spelt.tsv", [(label, f"{text} [PAD] \ue0f0 \ue0f1 again") for label, text in sentences(60, seed=3)])

    train(replace(recipe, sources=(str(spelt),)), tmp_path / "spelt")
    assert seen == {"spelt"}


def test_a_finished_run_is_not_trained_again(recipe: Recipe, whole: Path) -> None:
    before = (whole / "checkpoint.pt").read_bytes()

    train(recipe, whole, checkpoint_steps=2)

    assert (whole / "checkpoint.pt").read_bytes() == before
    assert len(list((whole / "logs").iterdir())) == 1


def test_the_log_has_loss_rate_and_speed_of_each_step_and_each_evaluation(recipe: Recipe, whole: Path) -> None:
    record = json.loads((whole / "best" / "training.json").read_bytes())

    scalars = read_scalars(whole)

    assert scalars.keys() == {"train/loss", "train/learning_rate", SPEED, "dev/accuracy", "dev/macro_f1", "dev/loss"}
    for name in ("train/loss", "train/learning_rate", SPEED):
        assert [step for step, _ in scalars[name]] == list(range(1, record["steps"] + 1))
        assert all(value >= 0 for _, value in scalars[name])
    assert max(rate for _, rate in scalars["train/learning_rate"]) == pytest.approx(recipe.learning_rate)
    assert min(speed for _, speed in scalars[SPEED]) > 0
    for name in ("accuracy", "macro_f1", "loss"):
        assert scalars[f"dev/{name}"] == [(entry["step"], pytest.approx(entry[f"dev_{name}"])) for entry in record["history"]]


def test_a_run_of_another_recipe_is_not_continued(recipe: Recipe, whole: Path) -> None:
    dev = (whole / "dev.jsonl").read_bytes()

    with pytest.raises(OtherRun, match="was begun with seed = 1; now it is 2; choose another --output, start over with --restart"):
        train(replace(recipe, seed=2), whole)

    assert (whole / "dev.jsonl").read_bytes() == dev


def test_a_run_is_not_continued_with_other_data_or_another_base_in_the_same_place(recipe: Recipe, tmp_path: Path) -> None:
    base, data = Path(shutil.copytree(recipe.base, tmp_path / "base")), write_tsv(tmp_path / "data.tsv", sentences(40, seed=1))
    changing = replace(recipe, base=str(base), sources=(str(data),), ema=0.0)
    train(changing, tmp_path / "run")

    weights = load_file(base / "model.safetensors")
    save_file({name: 2 * tensor for name, tensor in weights.items()}, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(OtherRun, match="was begun with base = 'base@"):
        train(changing, tmp_path / "run")
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    train(changing, tmp_path / "run")
    with data.open("a") as stream:
        stream.write("0\ta dull film\n")
    with pytest.raises(OtherRun, match=r"was begun with SHA-256 of data\.tsv = "):
        train(changing, tmp_path / "run")


def test_only_one_process_at_a_time_trains_in_a_folder(recipe: Recipe, tmp_path: Path) -> None:
    with locked(tmp_path / "run"), pytest.raises(ModelsError, match="run: another process uses this folder"):
        train(recipe, tmp_path / "run")

    assert not list((tmp_path / "run").iterdir())


def test_a_folder_that_cannot_be_created_is_named(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ModelsError, match=r"file.*: the folder cannot be created: "):
            train(recipe, out)


def test_a_damaged_checkpoint_is_named(recipe: Recipe, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes((whole / "checkpoint.pt").read_bytes()[:5000])

    with pytest.raises(BadCheckpoint, match=r"checkpoint\.pt: damaged .*; delete it to start again"):
        train(recipe, tmp_path)


def test_development_texts_that_the_base_may_have_learned_are_counted_and_said(
    recipe: Recipe, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write_tsv(tmp_path / "new.tsv", sentences(40, seed=4))
    again = replace(recipe, base=str(whole / "best"), sources=(recipe.sources[0], str(new)), epochs=1, dev_fraction=0.3)

    best = train(again, tmp_path / "run")

    record = json.loads((best / "training.json").read_bytes())
    seen, dev = record["dev_of_base"], record["dev_examples"]
    assert 0 < seen < dev
    assert f"{seen} of {dev} development texts may have been trained on by the base (same file)" in capsys.readouterr().err
    assert f"{seen} of them are in files that the base was trained on." in training_stages({"training": record})
    assert json.loads((whole / "best" / "training.json").read_bytes())["dev_of_base"] == 0


def test_a_bundle_is_a_base_and_the_record_keeps_its_training(whole: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "some-folder"
    export(whole / "best", bundle, name="tiny", version=3)
    data = write_tsv(tmp_path / "data.tsv", sentences(40, seed=4))

    recipe = Recipe(str(bundle), (str(data),), learning_rate=0.0, max_tokens=32, dev_fraction=0.3)
    best = train(recipe, tmp_path / "run")

    record = json.loads((best / "training.json").read_bytes())
    assert record["recipe"]["base"] == f"tiny/3@{load_bundle(bundle).digest[:12]}"
    assert record["base_training"] == json.loads((bundle / "manifest.json").read_bytes())["provenance"]["training"]
    assert record["base_training"]["steps"] == 18
    # The head is kept, too: at learning rate 0 all weights are the bundle's, those in int8 at random within what rounds to them.
    stored, weights = load_numpy(bundle / "model.safetensors"), load_numpy(best / "model.safetensors")
    assert weights.keys() == real(stored).keys()
    for name, found in weights.items():
        if name + INT8 in stored:
            steps = found / stored[name + SCALE] - stored[name + INT8]
            assert np.abs(steps).max() <= 0.5001 and 0.25 < steps.std() < 0.3, name
        else:
            assert np.array_equal(found, stored[name].astype(np.float32)), name
    # Another bundle at the same path is another base.
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    manifest["calibration"]["temperature"] = 2.0
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(OtherRun, match="was begun with base = 'tiny/3@"):
        train(recipe, tmp_path / "run")


def test_a_damaged_bundle_is_refused_as_base_and_teacher_before_a_folder_is_made(
    exported: tuple[Path, Exported], recipe: Recipe, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(exported[0], tmp_path / "bundle"))
    weights = bytearray((bundle / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (bundle / "model.safetensors").write_bytes(weights)

    with pytest.raises(BadBundle, match=r"model.safetensors"):
        train(replace(recipe, base=str(bundle)), tmp_path / "out")
    with pytest.raises(BadBundle, match=r"model.safetensors"):
        label(bundle, list(recipe.sources), tmp_path / "told.jsonl", torch.device("cpu"))

    assert {path.name for path in tmp_path.iterdir()} == {"bundle"}


def test_a_missing_base_and_a_missing_file_are_named(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="no checkpoint or bundle in this folder"):
        train(replace(recipe, base=str(tmp_path)), tmp_path / "out")
    with pytest.raises(BadData, match=r"none\.tsv"):
        train(replace(recipe, sources=(str(tmp_path / "none.tsv"),)), tmp_path / "out")
