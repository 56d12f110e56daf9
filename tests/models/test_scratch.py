"""Models from scratch, and the experiment that compares them with fine-tuned models."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from sentiment_models.cli import main
from sentiment_models.data.labelled import evaluation_steps, read_examples
from sentiment_models.errors import BadData, ModelsError, OtherRun
from sentiment_models.reports.plots import panels
from sentiment_models.study import experiment as module
from sentiment_models.study.experiment import Outcome, Point, accuracy, conduct, parameters, sample
from sentiment_models.study.experiment_page import HEADER, curves_png, report, rows
from sentiment_models.study.recipes import Experiment
from sentiment_models.training.recipe import Recipe, Shape
from sentiment_models.training.scratch import SPECIAL_TOKENS, train_tokenizer
from sentiment_models.training.train import train
from sentiment_tools.reports.html_report import plain
from tests.models.tiny_bert import LABELS, save_tiny_bert, sentences, write_tsv

TEXTS = [text for _, text in sentences(200, seed=9)]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """One tiny model from scratch and one fine-tuned, on 60 sentences."""
    folder = tmp_path_factory.mktemp("experiment")
    return Experiment(
        data=str(write_tsv(folder / "data.tsv", sentences(120, seed=1))),
        test=str(write_tsv(folder / "test.tsv", sentences(30, seed=2))),
        bases=(("tiny", str(save_tiny_bert(folder / "tiny-base"))),),
        grid=((2, 1),),
        reviews=60,
        max_tokens=24,
        epochs=2,
        width=16,
        vocabulary=120,
        learning_rate=1e-2,
        batch_rows=16,
        dev_fraction=0.2,
    )


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """Invented figures of six runs."""

    def one(name: str, base: str, high: float) -> Outcome:
        curve = tuple(Point(epoch, high - 0.3 / epoch, high - 0.4 / epoch) for epoch in range(1, 6))
        return Outcome(name, base, 6_000_000, high, high - 0.1, high - 0.11, 12.3, resumed=name == "16x6", curve=curve)

    names = ("8x6", "8x12", "16x6", "16x12")
    return [
        *(one(name, "", 0.86 + 0.01 * place) for place, name in enumerate(names)),
        one("MiniLM-L6", "model", 0.97),
        one("t<b>", "t", 0.99),
    ]


def test_equal_texts_give_equal_tokenizers_whatever_their_order() -> None:
    first, second = train_tokenizer(TEXTS, 120, 32), train_tokenizer(TEXTS[::-1], 120, 32)

    assert first.get_vocab() == second.get_vocab()
    assert first.convert_ids_to_tokens(range(5)) == list(SPECIAL_TOKENS)


def test_a_learned_tokenizer_is_berts_and_survives_saving(tmp_path: Path) -> None:
    tokenizer = train_tokenizer([*TEXTS, "Naïve"], 400, 32)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)

    text = "The LOVELY naive\ue000 film, vxq"
    assert loaded.tokenize(text) == tokenizer.tokenize(text)
    assert loaded.tokenize(text)[:2] == ["the", "lovely"]
    assert loaded.tokenize("vt") == ["v", "##t"]
    assert loaded("a", "b")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert loaded.model_max_length == 32
    assert loaded.mask_token_id == 4


def test_a_vocabulary_that_cannot_hold_the_characters_is_refused() -> None:
    with pytest.raises(BadData, match="vocabulary must be at least 13 for the 4 characters of the texts, got 11"):
        train_tokenizer(["ab cd"], 11, 32)
    assert len(train_tokenizer(["ab cd"], 13, 32)) == 13


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((6, 0, 256), "layers, heads and width must be at least 1, got 6, 0 and 256"),
        ((6, 7, 256), r"width must be a multiple of heads \(7\), got 256; use 252 or 259"),
    ],
)
def test_an_impossible_shape_is_refused(shape: tuple[int, int, int], told: str) -> None:
    with pytest.raises(ModelsError, match=told):
        Shape(*shape)


def test_training_from_scratch_makes_the_recipes_shape_and_learns(tmp_path: Path) -> None:
    data = write_tsv(tmp_path / "data.tsv", sentences(400, seed=3, words_max=4))
    small = Recipe("", (str(data),), layers=2, heads=2, width=32, vocabulary=150, max_tokens=16, batch_rows=32, dropout=0.0)
    recipe = replace(small, epochs=4, learning_rate=1e-2, dev_fraction=0.2, evaluations_per_epoch=1)

    best = train(recipe, tmp_path / "run")

    config = json.loads((best / "config.json").read_bytes())
    record = json.loads((best / "training.json").read_bytes())
    shape = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings")
    assert tuple(config[name] for name in shape) == (2, 2, 32, 16)
    assert config["id2label"] == {"0": "negative", "1": "positive"}
    assert record["recipe"]["base"] == ""
    assert record["base_training"] is None
    assert [one["epoch"] for one in record["history"]] == pytest.approx([1, 2, 3, 4], abs=0.1)
    assert record["history"][-1]["train_accuracy"] > 0.9
    assert accuracy(best, list(read_examples(tmp_path / "run/dev.jsonl", LABELS)), 16, "cpu", "dev") == record["dev_accuracy"] > 0.9
    # Embeddings of words, positions and segments, two layers, the pooler and the head.
    layer = 4 * (32 * 32 + 32) + 2 * 32 * 128 + 128 + 32 + 4 * 32
    embeddings = (config["vocab_size"] + 16 + 2 + 2) * 32
    assert parameters(best) == embeddings + 2 * layer + 32 * 32 + 32 + 2 * 32 + 2


def test_each_epochs_end_is_evaluated_however_many_batches_it_has() -> None:
    assert evaluation_steps([10, 11], 2) == {5, 10, 15, 21}
    assert evaluation_steps([7, 8, 7], 1) == {7, 15, 22}
    assert evaluation_steps([2], 4) == {1, 2}


def test_a_sample_is_balanced_by_label_and_too_few_reviews_are_refused(experiment: Experiment) -> None:
    drawn = sample(Path(experiment.data), LABELS, 41, 1)

    assert sorted(example.label for example in drawn) == [0] * 21 + [1] * 20
    assert drawn == sample(Path(experiment.data), LABELS, 41, 1) != sample(Path(experiment.data), LABELS, 41, 2)
    assert len(sample(Path(experiment.data), LABELS, 0, 1)) == 120
    with pytest.raises(BadData, match=r"data\.tsv: 1000 reviews need 500 with the label negative; the file has \d+"):
        sample(Path(experiment.data), LABELS, 1000, 1)


def test_an_interrupted_experiment_continues_with_the_missing_runs(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def dies_at_the_second(recipe: Recipe, out: Path, device: str) -> Path:
        if trained:
            raise KeyboardInterrupt
        trained.append(out.name)
        return train(recipe, out, device)

    monkeypatch.setattr(module, "train", dies_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        conduct(experiment, tmp_path, "cpu", say=lambda line: None)
    first = json.loads((tmp_path / "results.json").read_bytes())["runs"]
    monkeypatch.undo()
    said: list[str] = []
    outcomes = conduct(experiment, tmp_path, "cpu", said.append)

    assert trained == ["2x1"]
    assert [one["name"] for one in first] == ["2x1"]
    assert said == ["2x1: already measured", "tiny: run 2 of 2"]
    assert [one.name for one in outcomes] == ["2x1", "tiny"]
    assert [len(one.curve) for one in outcomes] == [2, 2]
    assert outcomes[0].from_scratch
    assert outcomes[1].base == "tiny-base"
    kept = json.loads((tmp_path / "results.json").read_bytes())
    assert kept["runs"][0] == first[0]
    assert (kept["train_reviews"], kept["test_reviews"]) == (60, 30)
    assert str(tmp_path.parent) not in json.dumps(kept)
    with pytest.raises(OtherRun, match="belongs to an experiment with other settings or other data"):
        conduct(replace(experiment, seed=2), tmp_path, "cpu", said.append)


def test_the_command_prints_the_table_and_writes_picture_and_page(
    experiment: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    small = {"reviews": 60, "max-tokens": 24, "epochs": 1, "width": 16, "vocabulary": 120, "grid": "2x1", "dev-fraction": 0.2}
    flags = [part for name, value in small.items() for part in (f"--{name}", str(value))]

    assert main(["scratch", "--data", experiment.data, "--test", experiment.test, "--out", str(out), *flags]) == 0

    lines = capsys.readouterr().out.splitlines()[-4:]
    assert lines[0].split() == ["run", "parameters", "train", "valid", "test", "minutes", "published", "test"]
    assert lines[1].startswith("2x1 from scratch ")
    assert lines[2].split() == ["BERT-base,", "fine-tuned", "(published)", "0.93"]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "report.html").read_text().count("<img ") == 1


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({"bases": (("a", "x"), ("a", "y"))}, "two runs are called a; give them different names"),
        ({"grid": ()}, "no run: give --grid or --base"),
        ({"bases": (("../a", "x"),)}, r"run name must consist of letters, .* got '\.\./a'"),
    ],
)
def test_runs_without_distinct_usable_names_are_refused(runs: dict[str, tuple[tuple[str, str], ...]], message: str) -> None:
    with pytest.raises(ModelsError, match=message):
        Experiment("d", "t", **runs)


def test_the_published_figure_is_shown_for_each_run_of_its_shape(outcomes: list[Outcome]) -> None:
    lines = plain(HEADER, rows(outcomes)).splitlines()

    assert all(line.endswith("0.76") and "from scratch" in line for line in lines[1:5])
    assert lines[3].split()[-2:] == ["12.3", "0.76"]
    assert "over 12.3" in lines[3]
    assert lines[5].split() == ["MiniLM-L6", "fine-tuned", "6,000,000", "0.9700", "0.8700", "0.8600", "12.3"]


def test_the_page_holds_every_figure_and_escapes_names_and_equal_curves_give_equal_pictures(outcomes: list[Outcome]) -> None:
    png = curves_png(outcomes)

    html = report(Experiment("/x/d.tsv", "/x/t.tsv"), outcomes, png)

    assert "t&lt;b&gt; fine-tuned" in html
    assert "<b>" not in html
    assert "/x/" not in re.sub(r'"data:[^"]*"', "", html)
    assert html.count("data:image/png;base64,") == 1
    assert "16x12 from scratch" in html
    assert curves_png(outcomes) == png


def test_too_many_curves_are_refused() -> None:
    with pytest.raises(ValueError, match="29 curves; the limit is 28"):
        panels({"a": {str(number): [(0, 0)] for number in range(29)}}, "x", "y")
