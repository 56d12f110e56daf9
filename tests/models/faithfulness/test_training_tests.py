"""The four tests of training at a tiny size: what they find, how they go on, what they say."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from sentiment_models.cli import main
from sentiment_models.errors import BadData, ModelsError, OtherRun
from sentiment_models.explanations.findings import Difference
from sentiment_models.explanations.training_findings import TrainingFindings
from sentiment_models.explanations.training_page import as_page, as_text, curve_png, tables
from sentiment_models.stored import stored
from sentiment_models.study import training_tests as module
from sentiment_models.study.commands.attention_tests import SETTINGS_HELP
from sentiment_models.study.training_settings import Settings
from sentiment_models.study.training_tests import RESULTS, TESTS, attention_tests, draw
from tests.models.tiny_bert import sentences, write_tsv

# fmt: off
TINY = Settings(
    train_texts=80, heldout_texts=40, heldout_fraction=0.3, words_min=3, max_tokens=16, vocabulary=120, seeds=2,
    heads=2, width=16, dropout=0.1, epochs=4, learning_rate=1e-2, batch_rows=16,
    adversary_epochs=4, adversary_weights=(1.0, 0.001), bag_epochs=4, bag_learning_rate=2e-2,
)
# fmt: on


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tsv(tmp_path_factory.mktemp("data") / "films.tsv", sentences(240, seed=8, words_max=10))


@pytest.fixture(scope="module")
def found(data: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingFindings:
    """All tests, done in one go."""
    return attention_tests([data], TINY, tmp_path_factory.mktemp("tests"), say=lambda line: None)


def test_every_test_is_done_and_counts_its_texts(found: TrainingFindings) -> None:
    assert None not in [getattr(found, name) for name in TESTS]
    assert found.seconds.keys() == set(TESTS)
    assert (found.train_texts, found.heldout_texts) == (80, 40)
    assert list(found.files) == ["films.tsv"]
    assert found.parameters > found.vocabulary * 16


def test_two_seeds_show_how_much_attention_differs_by_chance(found: TrainingFindings) -> None:
    assert found.seeds is not None
    assert [(pair.first, pair.second) for pair in found.seeds.pairs] == [(1, 2)]
    assert 0 < found.seeds.divergence == found.seeds.pairs[0].divergence < 0.6932
    assert 0 < found.seeds.on_words < 1
    assert len(found.seeds.accuracy.seeds) == 2


def test_uniform_attention_is_another_model_on_the_same_texts(found: TrainingFindings) -> None:
    assert found.seeds is not None
    assert found.uniform is not None
    assert found.uniform.learned == found.seeds.accuracy
    assert found.uniform.all_loss.mean == pytest.approx(found.uniform.learned.mean - found.uniform.all_layers.mean)
    assert found.uniform.last_loss.texts == 40


def test_an_adversary_with_a_larger_weight_finds_attention_farther_away(found: TrainingFindings) -> None:
    assert found.adversaries is not None
    little, much = found.adversaries.curve

    assert (little.weight, much.weight) == (0.001, 1.0)
    assert much.divergence > little.divergence + 0.05
    assert much.kl > little.kl
    assert little.output_change < 0.1
    keeps = [one for one in (little, much) if one.output_change <= found.adversaries.allowed]
    assert found.adversaries.chosen == (max(keeps, key=lambda one: one.divergence).weight if keeps else little.weight)


def test_bags_are_compared_on_the_same_texts(found: TrainingFindings) -> None:
    assert found.frozen is not None
    accuracy, over = found.frozen.accuracy, found.frozen.over_uniform

    assert accuracy.keys() == {"uniform", "learned", "attention", "adversary"}
    for name in ("learned", "attention", "adversary"):
        assert over[name].mean == pytest.approx(accuracy[name].mean - accuracy["uniform"].mean)
    lead = accuracy["attention"].mean - accuracy["adversary"].mean
    assert found.frozen.attention_over_adversary.mean == pytest.approx(lead)


def test_each_seed_s_bag_gets_the_attention_of_that_seed_s_encoder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, list[object]] = {}
    train = module.bags.train_bag

    def kept(bag: object, texts: object, weights: object, course: object, title: str) -> None:
        given.setdefault(title.partition(" weights")[0], []).append(weights)
        train(bag, texts, weights, course, title)  # type: ignore[arg-type]

    monkeypatch.setattr(module.bags, "train_bag", kept)
    small = replace(TINY, epochs=1, adversary_epochs=1, bag_epochs=1, adversary_weights=(0.01,))
    attention_tests([data], small, tmp_path, say=lambda line: None)

    first, second = given["bag, attention"]
    assert np.abs(np.subtract(first, second)).max() > 1e-3
    one, other = given["bag, adversary"]
    assert np.array_equal(one, other)


def test_a_run_that_was_interrupted_goes_on_and_finds_the_same(
    data: Path, found: TrainingFindings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[str] = []

    def dies_at_the_first_adversary(*given: object) -> None:
        fitted.append(str(given[-1]))
        if fitted[-1].startswith("adversary"):
            raise KeyboardInterrupt
        fit(*given)

    fit = module.fit
    monkeypatch.setattr(module, "fit", dies_at_the_first_adversary)
    with pytest.raises(KeyboardInterrupt):
        attention_tests([data], TINY, tmp_path, say=lambda line: None)
    before = stored(tmp_path / RESULTS, TrainingFindings, "attention-tests")
    monkeypatch.setattr(module, "fit", lambda *given: (fitted.append(str(given[-1])), fit(*given)))
    said: list[str] = []
    after = attention_tests([data], TINY, tmp_path, said.append)

    trained = [f"{kind}-{seed}" for kind in ("learned", "uniform-last", "uniform-all") for seed in (1, 2)]
    assert fitted == [*trained, "adversary-0.001", "adversary-0.001", "adversary-1"]
    assert before is not None
    assert (before.uniform, before.adversaries) == (after.uniform, None)
    assert said[:2] == ["seeds: already done", "uniform: already done"]
    assert after.model_copy(update={"seconds": {}}) == found.model_copy(update={"seconds": {}})


def test_results_of_other_settings_or_none_are_refused(data: Path, found: TrainingFindings, tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text(found.model_dump_json())

    assert attention_tests([data], TINY, tmp_path, say=lambda line: None) == found
    with pytest.raises(OtherRun, match="belongs to tests with other settings, data or code"):
        attention_tests([data], replace(TINY, epochs=2), tmp_path, say=lambda line: None)
    (tmp_path / RESULTS).write_text("{}")
    with pytest.raises(ModelsError, match=r"not written by attention-tests of this version: .*; delete it to start again"):
        attention_tests([data], TINY, tmp_path, say=lambda line: None)


def test_no_heldout_sentence_or_phrase_of_it_is_trained_on(tmp_path: Path) -> None:
    numbered = [(number % 2, f"film{number} was not story{number} it was{number}") for number in range(200)]
    rows = [row for label, text in numbered for row in ((label, text), (label, " ".join(text.split()[:4])))]
    data = write_tsv(tmp_path / "d.tsv", rows)

    train, heldout, _ = draw([data], replace(TINY, train_texts=400, heldout_texts=400))

    assert len(heldout) > 20
    whole = {f" {example.text} " for example in heldout}
    assert not [one.text for one in train if any(f" {one.text} " in text for text in whole)]
    assert min(len(example.text.split()) for example in (*train, *heldout)) == 4


def test_texts_that_are_all_too_short_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="none of 170 texts has at least 99 words"):
        attention_tests([data], replace(TINY, words_min=99), tmp_path / "out", say=lambda line: None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"seeds": 1}, "seeds must be from 2 to 7, got 1"),
        ({"adversary_weights": (0.1, -0.1)}, "adversary weights must be at least one number, each at least 0"),
        ({"heads": 3}, "width must be a multiple of heads"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, int], told: str) -> None:
    with pytest.raises(ModelsError, match=told):
        replace(TINY, **wrong)


def test_the_command_writes_figures_curve_and_page(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    given = {field.name: getattr(TINY, field.name) for field in fields(Settings)} | {"epochs": 1, "adversary_epochs": 1, "bag_epochs": 1}
    shown = {name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value) for name, value in given.items()}
    flags = [part for name, value in shown.items() for part in (f"--{name.replace('_', '-')}", value)]

    assert main(["attention-tests", "--data", str(data), "--out", str(out), *flags]) == 0

    printed = capsys.readouterr().out
    kept = TrainingFindings.model_validate_json((out / RESULTS).read_bytes())
    page = (out / "report.html").read_text()
    assert printed.index("Uniform attention") < printed.index("Other seeds") < printed.index("Weights in a bag")
    assert kept.settings["epochs"] == 1
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert page.count("<img ") == 1
    assert str(tmp_path) not in json.dumps(kept.model_dump(mode="json")) + re.sub(r'"data:[^"]*"', "", page)


def test_every_setting_is_a_flag_and_wrong_ones_are_wrong_usage(tmp_path: Path) -> None:
    assert list(SETTINGS_HELP) == [field.name for field in fields(Settings)]
    assert main(["attention-tests", "--data", "d.tsv", "--out", str(tmp_path), "--adversary-weights", "much"]) == 2


def test_conclusions_follow_from_the_figures(found: TrainingFindings) -> None:
    assert found.uniform is not None
    assert found.frozen is not None
    loss = Difference(mean=0.05, low=0.02, high=0.08, texts=40)
    chance = Difference(mean=0.01, low=-0.02, high=0.04, texts=40)

    def told(title: str, **parts: object) -> str:
        return next(one.note for one in tables(found.model_copy(update=parts)) if one.title.startswith(title))

    assert "Attention is needed here" in told("Uniform", uniform=found.uniform.model_copy(update={"all_loss": loss}))
    gains_nothing = told("Uniform", uniform=found.uniform.model_copy(update={"all_loss": chance}))
    assert "such encoders gain little from attention on these texts (at most 0.040 of accuracy)" in gains_nothing
    helps = found.frozen.model_copy(update={"over_uniform": {**found.frozen.over_uniform, "attention": loss}})
    unclear = {"over_uniform": {**found.frozen.over_uniform, "attention": chance}, "attention_over_adversary": chance}
    not_clear, over_adversary = (found.frozen.model_copy(update=unclear | more) for more in ({}, {"attention_over_adversary": loss}))
    assert "the encoders' attention is better than uniform weights" in told("Weights", frozen=helps)
    assert "the encoders' attention shows which words matter" in told("Weights", frozen=helps)
    assert "attention is not clearly better or worse than uniform weights" in told("Weights", frozen=not_clear)
    assert "it is not shown that" in told("Weights", frozen=not_clear)
    assert "no more than uniform weights" in told("Weights", frozen=over_adversary)
    worse = {**found.frozen.over_uniform, "attention": Difference(mean=-0.05, low=-0.08, high=-0.02, texts=40)}
    below = over_adversary.model_copy(update={"over_uniform": worse})
    assert "less than uniform weights" in told("Weights", frozen=below)


def test_adversaries_are_held_against_other_seeds(found: TrainingFindings) -> None:
    assert found.adversaries is not None
    assert found.seeds is not None
    near, far = (found.adversaries.curve[0].model_copy(update={"output_change": 0.01, "divergence": d}) for d in (0.001, 0.6))
    seeds = found.seeds.model_copy(update={"divergence": 0.1})

    def told(one: object, allowed: float) -> str:
        adversaries = found.adversaries.model_copy(update={"curve": (one,), "chosen": 0.001, "allowed": allowed})
        return [*tables(found.model_copy(update={"adversaries": adversaries, "seeds": seeds}))][-1].note

    assert "it is not the only explanation of an answer" in told(far, 0.02)
    assert "was not changed by more than chance" in told(near, 0.02)
    assert "No adversary changes the answer by at most as much as another seed (0.005)" in told(far, 0.005)


def test_tests_that_are_not_done_are_left_out_and_names_are_escaped(found: TrainingFindings) -> None:
    early = found.model_copy(update={"uniform": None, "adversaries": None, "frozen": None})
    odd = found.model_copy(update={"files": {"<b>.tsv": "0" * 64}})

    assert as_text(early).count("\n\n") == 1
    assert "Other seeds" in as_text(early)
    with pytest.raises(ValueError, match="the plot needs the results of both adversaries and seeds"):
        curve_png(early)
    assert "<b>" not in as_page(odd, curve_png(odd))
    assert curve_png(found) == curve_png(found)
