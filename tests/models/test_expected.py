"""Expected accuracy against the true one, and how it holds on a data set that the temperature was not fitted on."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import load_classifier
from sentiment_models.evaluation.evaluate import Dataset, evaluate, record
from sentiment_models.evaluation.expected import CLASS_ROWS_MIN, Answers, expected, leave_one_out
from sentiment_models.evaluation.metrics import probabilities
from sentiment_models.reports.card_figures import weaknesses
from sentiment_models.reports.evaluation_page import as_page, as_text
from tests.tiny import make_bundle

ROWS = 4000
# The temperatures that calibrate short and long texts.
SHORT, LONG = 1.2, 3.0


def drawn(seed: int, long: float, rows: int = ROWS) -> Answers:
    """Answers stated at temperature 1, with labels drawn at the temperature of each text's class; ``long``: the share of class 1."""
    rng = np.random.default_rng(seed)
    logits = np.stack([np.zeros(rows), rng.normal(0, 4, rows)], axis=1).astype(np.float32)
    classes = (rng.random(rows) < long).astype(np.int64)
    true = probabilities((logits / np.where(classes, LONG, SHORT)[:, np.newaxis]).astype(np.float32))
    stated = probabilities(logits)
    return Answers(stated, (rng.random(rows) < true[:, 1]).astype(np.int64), stated.max(axis=1) < 0.55, classes)


def test_it_is_the_mean_probability_with_and_without_the_answers_that_abstain() -> None:
    stated = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]])
    answers = Answers(stated, np.array([0, 0, 1]), np.array([False, True, False]), np.zeros(3, np.int64))

    whole, counted = expected(answers, np.ones(3, np.bool_)), expected(answers, answers.counted)

    assert whole is not None
    assert (whole.rows, whole.accuracy, whole.expected_accuracy, whole.error) == (3, 0.66667, 0.73333, 0.06667)
    assert counted is not None
    assert (counted.rows, counted.accuracy, counted.expected_accuracy, counted.error) == (2, 1.0, 0.8, -0.2)
    assert counted.by_chance[0] < 0.8 < counted.by_chance[1] == 1
    assert expected(answers, np.zeros(3, np.bool_)) is None


def test_a_temperature_refitted_on_other_sets_mends_what_they_have_in_common() -> None:
    sets = {name: drawn(seed, long=1.0) for seed, name in enumerate("abc")}

    found = leave_one_out(sets, temperature=0.5)

    assert found is not None
    assert min(found.as_served.by_set.values()) > 0.05
    # By chance alone, the mean of 4,000 is off by less than 0.02.
    assert max(map(abs, found.refitted.by_set.values())) < 0.02
    assert list(found.temperatures.values()) == pytest.approx([0.5 * LONG] * 3, rel=0.1)
    assert abs(found.as_served.by_set[found.as_served.worst]) == max(map(abs, found.as_served.by_set.values()))
    assert found.as_served.mean_absolute == pytest.approx(np.mean(np.abs(list(found.as_served.by_set.values()))), abs=1e-5)


def test_temperatures_by_length_mend_what_depends_on_it() -> None:
    found = leave_one_out({"short": drawn(1, 0.1), "long": drawn(2, 0.9), "both": drawn(3, 0.5)}, temperature=1.0)

    assert found is not None
    assert abs(found.refitted.by_set["short"]) > 0.02
    assert abs(found.refitted.by_set["long"]) > 0.02
    assert max(map(abs, found.refitted_by_length.by_set.values())) < 0.02


def test_a_sets_own_labels_do_not_touch_its_temperature_and_each_set_weighs_the_same_whatever_its_size() -> None:
    sets = {name: drawn(seed, long, 500) for seed, (name, long) in enumerate({"a": 0.0, "b": 0.5, "c": 1.0}.items())}
    flipped = {**sets, "a": replace(sets["a"], labels=1 - sets["a"].labels)}
    b = sets["b"]
    more = {**sets, "b": Answers(*(np.concatenate([part] * 5) for part in (b.stated, b.labels, b.abstain, b.length_class)))}

    before, after, larger = (leave_one_out(each, 1.0) for each in (sets, flipped, more))

    assert before is not None
    assert after is not None
    assert larger is not None
    assert after.temperatures["a"] == before.temperatures["a"]
    assert after.temperatures["b"] > 1.2 * before.temperatures["b"]
    assert larger.temperatures == pytest.approx(before.temperatures, abs=1e-4)


def test_a_class_of_length_with_too_few_texts_in_the_other_sets_has_the_temperature_of_all() -> None:
    few = {"a": drawn(1, 0.5, CLASS_ROWS_MIN - 1), "b": drawn(2, 0.5, CLASS_ROWS_MIN - 1)}
    enough = {"a": few["a"], "b": drawn(2, 0.5, 4 * CLASS_ROWS_MIN)}

    without, with_classes = leave_one_out(few, 1.0), leave_one_out(enough, 1.0)

    assert without is not None
    assert with_classes is not None
    assert without.refitted_by_length == without.refitted
    assert with_classes.refitted_by_length.by_set["a"] != with_classes.refitted.by_set["a"]
    assert with_classes.refitted_by_length.by_set["b"] == with_classes.refitted.by_set["b"]


def test_one_set_and_sets_that_abstain_throughout_have_nothing_to_be_left_out_of() -> None:
    one = drawn(1, 0.5, 300)

    assert leave_one_out({"a": one}, 1.0) is None
    assert leave_one_out({"a": one, "b": replace(one, abstain=np.ones(300, np.bool_))}, 1.0) is None


def test_it_is_measured_shown_and_recorded_as_the_server_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentiment_models.evaluation.evaluate.behave", lambda classifier, threads: [])
    bundle = make_bundle(tmp_path)
    texts = {"reviews/dev": ["good film", "the awful film", "film", "great"], "shop": ["bad", "good good", "w-1", "great and great"]}
    labels = {"reviews/dev": [1, 0, 1, 0], "shop": [0, 1, 1, 1]}
    datasets = []
    for name, some in texts.items():
        path = tmp_path / f"{name.partition('/')[0]}.tsv"
        path.write_text("".join(f"{label}\t{text}\n" for label, text in zip(labels[name], some, strict=True)))
        datasets.append(Dataset(name, path))

    found = evaluate(bundle, datasets, threads=1)
    record(bundle, found)

    classifier = load_classifier(bundle)
    recorded = json.loads((bundle / "manifest.json").read_bytes())["accuracy"]
    errors = []
    for name, some in texts.items():
        scored = [classifier.score(classifier.run([classifier.tokenizer.encode(text)])[0]) for text in some]
        right = [one.label == classifier.manifest.labels[label] for one, label in zip(scored, labels[name], strict=True)]
        counted = [(one.score, ok) for one, ok in zip(scored, right, strict=True) if not one.abstain]
        mean, accuracy = (sum(part) / len(counted) for part in zip(*counted, strict=True))
        errors.append(mean - accuracy)
        assert len(counted) == 3
        assert found.datasets[name].expected.expected_accuracy == pytest.approx(sum(one.score for one in scored) / 4, abs=1e-5)
        assert recorded[name]["without_abstentions"] == pytest.approx(
            {"rows": 3, "accuracy": accuracy, "expected_accuracy": mean}, abs=1e-5
        )
        assert recorded[name]["rows"] == 4
    assert found.leave_one_out is not None
    assert list(found.leave_one_out.as_served.by_set.values()) == pytest.approx(errors, abs=2e-5)
    assert "without_abstentions" not in recorded["made-up"]
    manifest = load_bundle(bundle).manifest
    assert manifest.expected_accuracy_error == pytest.approx(max(map(abs, errors)), abs=2e-5)
    assert math.isnan(manifest.model_copy(update={"accuracy": {}}).expected_accuracy_error)
    text, page = as_text(found), as_page(found)
    for title in ("Expected accuracy", "Expected accuracy, each set left out"):
        assert f"\n{title}\n" in text
        assert f"<h2>{title}</h2>" in page
    assert max(map(len, text.splitlines())) <= 140
    assert "mean absolute error" in text
    assert "Expected accuracy is furthest from the true one on reviews/dev: 0.948, true 0.667" in weaknesses(manifest, [found])
