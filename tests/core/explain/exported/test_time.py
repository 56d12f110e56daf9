"""Explanations with little time left. A row of the whole text takes a millisecond of a virtual clock, and a shorter one less."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentiment.explain.engine import Explainer
from sentiment.explain.engine.maps import Map, map_tiles
from sentiment.explain.engine.runs import Pace
from sentiment.explain.methods.deciding import rows_most
from sentiment.explain.methods.evidence import Evidence
from sentiment.explain.methods.heads import GatePlan
from sentiment.explain.methods.registry import METHODS
from sentiment.explain.parts import (
    AttentionRequest,
    AttentionTile,
    Attribution,
    Counterfactuals,
    ExplanationRequest,
    Heads,
    Part,
    Summary,
    Without,
)
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.session import ExplainSession, Session
from sentiment.model.tensors import Feeds
from tests.core.explain.explained import all_of, one_of
from tests.trusted import trust

LONG = " ".join(["the film was not good but i liked the end"] * 5)
WORDS = 32  # that are read of it
# Eight.
SENTENCES = " ".join(f"{word} was bad ." for word in ("good", "bad", "end", "not", "film", "all", "it", "i"))
ROW_S = 0.001


class Time:
    """Instants of a clock that only runs while a row is run."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.end_s = 0.0
        # Of the longest row so far: the first run is of the whole text.
        self.tokens = 0
        # By which the next run takes longer.
        self.delay_s = 0.0

    def left_s(self) -> float:
        return self.end_s - self.now_s


Explained = Callable[[ExplanationRequest, float], tuple[list[Part], Summary]]


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr("sentiment.explain.engine.runs.RUN_TOKENS_MAX", 1)
    for session in (Session, ExplainSession):
        real = session.run

        def run(self: Any, feeds: Feeds, *rest: Any, real: Any = real, **named: Any) -> Any:  # of either session
            rows, tokens = feeds["input_ids"].shape
            found.tokens = max(found.tokens, tokens)
            found.now_s += ROW_S * rows * tokens / found.tokens + found.delay_s
            found.delay_s = 0.0
            return real(self, feeds, *rest, **named)

        monkeypatch.setattr(session, "run", run)
    return found


@pytest.fixture
def explained_in(classifier: Classifier, time: Time) -> Explained:
    """Explains in the given number of seconds; returns what comes after the header."""
    explainer = Explainer(classifier, lambda: time.now_s)
    explainer.load()

    def explained(asked: ExplanationRequest, seconds: float) -> tuple[list[Part], Summary]:
        time.end_s = time.now_s + seconds
        _, *parts, summary = explainer.explain(asked, time.left_s)
        assert isinstance(summary, Summary)
        return parts, summary

    return explained


def _noted(notes: tuple[str, ...], about: str) -> str:
    (note,) = [note for note in notes if note.startswith(about)]
    return note


def test_integrated_gradients_take_the_steps_that_fit_in_the_time(explained_in: Explained) -> None:
    asked = ExplanationRequest(LONG, methods=("integrated_gradients",), evidence=False, steps=64)
    taken = {}
    for seconds in (0.007, 0.03, 0.06, 1.0):
        parts, summary = explained_in(asked, seconds)
        found = all_of(parts, Attribution)
        taken[seconds] = found[0].steps if found else 0
        assert summary.complete == (taken[seconds] == 64)
        if not summary.complete:
            what = f"took {taken[seconds]} of 64 steps" if found else "was left out"
            assert f"integrated_gradients {what}: 65 rows take about 0.0" in _noted(summary.notes, "integrated_gradients")
        if found:
            assert (found[0].steps, found[0].steps_asked) == (taken[seconds], 64)
            # No matter how many, the sum is that of the path: only the residual grows.
            assert abs(found[0].residual) < 0.2

    steps = list(taken.values())
    assert steps == sorted(steps)
    assert len(set(steps)) == 4
    assert steps[0] == 0
    assert 4 <= steps[1] < steps[2] < steps[3] == 64


def test_time_for_evidence_is_reserved_if_enough_steps_are_left(explained_in: Explained) -> None:
    asked = ExplanationRequest(LONG, methods=("integrated_gradients",), steps=64)
    parts, summary = explained_in(asked, 0.09)

    assert 4 <= one_of(parts, Attribution).steps < 64
    assert one_of(parts, Evidence).random_sets == 19
    assert one_of(parts, Evidence).agreement is None
    assert "rows take about" in _noted(summary.notes, "the agreement of integrated_gradients with occlusion was left out")


def test_evidence_takes_fewer_random_sets_or_is_left_out(explained_in: Explained) -> None:
    found = set()
    for milliseconds in range(4, 60, 4):
        parts, summary = explained_in(ExplanationRequest(LONG, methods=("gradient_x_input",)), milliseconds / 1000)
        sets = [part.random_sets for part in all_of(parts, Evidence)]
        assert one_of(parts, Attribution).method == "gradient_x_input"
        if not sets:
            assert "rows take about" in _noted(summary.notes, "the evidence of gradient_x_input was left out")
        elif sets[0] < 19:
            assert f"with {sets[0]} of 19 other word sets" in _noted(summary.notes, "the evidence of gradient_x_input compares")
        # The agreement, which takes a row for each word, comes second.
        assert all(part.agreement is None or part.random_sets == 19 for part in all_of(parts, Evidence))
        found.add(sets[0] if sets else None)

    assert None in found
    assert 19 in found
    assert len(found) > 3


@pytest.mark.parametrize("seconds", [0.02, 0.12, 0.5, 5.0])
def test_shapley_samples_fewer_orders_or_is_left_out(explained_in: Explained, seconds: float) -> None:
    parts, summary = explained_in(ExplanationRequest(LONG, methods=("shapley",), evidence=False, steps=20), seconds)
    found = all_of(parts, Attribution)

    if seconds == 0.02:
        assert found == []
        pair = 2 * (WORDS - 1)
        assert f"left out: {pair} rows for a pair of orders take about 0." in _noted(summary.notes, "shapley")
        return
    orders = {0.12: 2, 0.5: found[0].steps, 5.0: 20}[seconds]
    assert (found[0].steps, found[0].steps_asked) == (orders, 20)
    assert orders % 2 == 0
    assert np.isinf(found[0].standard_errors).all() == (orders == 2)
    assert summary.complete == (orders == 20)
    if orders < 20:
        assert f"sampled {orders} of 20 orders" in _noted(summary.notes, "shapley")


@pytest.mark.parametrize(("seconds", "steps"), [(0.08, [2]), (0.3, [0, 2])])
def test_an_estimate_takes_no_time_from_a_pair_of_orders(explained_in: Explained, seconds: float, steps: list[int]) -> None:
    asked = ExplanationRequest(LONG, methods=("shapley",), steps=2, evidence=False, estimates=True)

    assert [one.steps for one in all_of(explained_in(asked, seconds)[0], Attribution)] == steps


def test_an_estimate_without_time_for_better_is_the_attribution(
    explained_in: Explained, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_s = time.now_s
    # After the first estimate, of two rows a word, something else has taken the time.
    monkeypatch.setattr(time, "left_s", lambda: 0.3 if time.now_s - begun_s < (2 * WORDS + 2.5) * ROW_S else 0.0)
    parts, summary = explained_in(ExplanationRequest(LONG, methods=("shapley",), steps=2, evidence=False, estimates=True), 0.3)

    estimate, last = all_of(parts, Attribution)
    assert (estimate.steps, last.steps, last.left_s) == (0, 0, None)
    assert last.words.tolist() == estimate.words.tolist()
    assert "sampled 0 of 2 orders" in _noted(summary.notes, "shapley")


@pytest.mark.parametrize(
    ("seconds", "rows", "notes"),
    [
        # Not even for the sentences alone; for them; for some rows; for all rows; and for the gradient too.
        (0.0015, None, ["was left out: the sentences alone take about 0.0"]),
        (0.004, 0, ["ran 0 of 32 rows: 32 rows take about 0.0"]),
        (0.009, 16, ["of 32 rows: 32 rows take about 0.0"]),
        (0.1, 32, []),
    ],
)
def test_two_step_shapley_runs_fewer_rows_or_is_left_out(
    explained_in: Explained, monkeypatch: pytest.MonkeyPatch, seconds: float, rows: int | None, notes: list[str]
) -> None:
    monkeypatch.setattr("sentiment.explain.methods.two_step.SENTENCE_WORDS_MIN", 2)
    asked = ExplanationRequest(SENTENCES, methods=("two_step_shapley",), evidence=False)
    parts, summary = explained_in(asked, seconds)

    found = all_of(parts, Attribution)
    assert [one.steps_asked for one in found] == ([] if rows is None else [32])
    assert all(one.steps == rows or 0 < one.steps < 32 == 2 * (rows or 0) for one in found), [one.steps for one in found]
    assert all(one.residual == pytest.approx(0, abs=1e-6) for one in found)
    assert [note in one for note, one in zip(notes, summary.notes, strict=False)] == [True] * len(notes)
    assert summary.complete is not bool(notes)


@pytest.mark.parametrize(
    ("method", "words_max", "text", "times"),
    [
        ("shapley", 60, LONG, {0.03: "integrated_gradients", 0.3: "shapley"}),
        # A row of the gradient, for the words, takes as much as the whole text.
        ("two_step_shapley", 2, " ".join(f"{word} film." for word in ("good", "bad", "not") * 5), {0.03: "two_step_shapley"}),
    ],
    ids=["usual texts", "long texts"],
)
def test_a_default_without_enough_time_is_replaced(
    classifier: Classifier, time: Time, tmp_path: Path, method: str, words_max: int, text: str, times: dict[float, str]
) -> None:
    bundle = trust(Path(shutil.copytree(classifier.bundle.path, tmp_path / "studied")), "shapley", words_max=words_max)
    explainer = Explainer(load_classifier(bundle, "fp32"), lambda: time.now_s)
    explainer.load()
    for seconds, given in times.items():
        time.end_s = time.now_s + seconds
        _, *parts, summary = explainer.explain(ExplanationRequest(text, evidence=False, counterfactuals=True), time.left_s)

        assert one_of(parts, Attribution).method == given
        assert isinstance(summary, Summary)
        assert not summary.complete or method == "two_step_shapley"
        assert sum(note.startswith(f"{method} was left out") for note in summary.notes) == (given != method)


def test_shapley_reserves_time_for_evidence_after_its_first_pair_of_orders(explained_in: Explained) -> None:
    asked = ExplanationRequest(LONG, methods=("shapley",))
    (parts, _), (hurried, summary) = explained_in(asked, 0.165), explained_in(asked, 0.08)

    assert (one_of(parts, Attribution).steps, one_of(parts, Evidence).random_sets) == (2, 19)
    assert one_of(hurried, Attribution).steps == 2
    assert [part.random_sets for part in all_of(hurried, Evidence)] != [19]
    _noted(summary.notes, "the evidence of shapley")


def test_occlusion_is_left_out_without_time_for_every_word(explained_in: Explained) -> None:
    parts, summary = explained_in(ExplanationRequest(LONG, methods=("occlusion",), evidence=False), 0.03)

    assert parts == []
    assert f"occlusion was left out: {WORDS} rows take about" in _noted(summary.notes, "occlusion")
    assert not summary.complete


def test_occlusion_computed_for_an_agreement_is_reused(explained_in: Explained) -> None:
    methods = ("gradient_x_input", "occlusion")
    parts, summary = explained_in(ExplanationRequest(LONG, methods=methods), 0.4)

    assert [part.method for part in all_of(parts, Attribution)] == list(methods)
    assert summary.complete
    # Each set of words is erased once: the text, each word, no word, those of two rankings and of no other, the random ones,
    # and those of the search.
    assert summary.served_rows <= 1 + WORDS + 1 + 2 * (2 + 19) + rows_most(WORDS)
    # The text, and integrated gradients, with which occlusion is compared: 8 steps and the baseline.
    assert summary.explained_rows == 1 + 8 + 1


def test_the_effects_of_heads_are_estimated_without_time_to_measure_them(explained_in: Explained) -> None:
    asked = ExplanationRequest(LONG, attributions=False, heads=True)
    parts, summary = explained_in(asked, 0.02)

    found = one_of(parts, Heads)
    assert found.effects is None
    assert np.abs(found.first_order).max() > 0
    rows = GatePlan(2, 4, 1).rows
    assert f"are estimated, not measured: {rows} rows take about 0.0" in _noted(summary.notes, "the effects of heads")
    assert one_of(explained_in(asked, 1.0)[0], Heads).effects is not None


def test_attention_maps_are_returned_as_long_as_there_is_time(explained_in: Explained, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(one: Map, asked: AttentionRequest) -> Iterator[AttentionTile]:
        time.now_s += 0.001
        return map_tiles(one, asked)

    monkeypatch.setattr("sentiment.explain.engine.explainer.map_tiles", slow)
    parts, summary = explained_in(ExplanationRequest(LONG, attributions=False, attention=AttentionRequest()), 0.007)

    assert [(part.layer, part.head) for part in all_of(parts, AttentionTile)] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert summary.notes == ("4 of 8 attention maps were returned: one takes about 0.00 s, and 0.00 s were left",)
    assert not summary.complete


def test_stopped_counterfactual_searches_are_noted(explained_in: Explained) -> None:
    asked = ExplanationRequest(LONG, methods=("gradient_x_input",), evidence=False, counterfactuals=True)
    parts, summary = explained_in(asked, 0.003)

    found = one_of(parts, Counterfactuals)
    assert found.flip.stopped
    assert "the search for words that flip the answer was stopped: no time was left" in summary.notes


def test_counterfactuals_without_an_attribution_are_left_out(explained_in: Explained) -> None:
    parts, summary = explained_in(ExplanationRequest(LONG, methods=("occlusion",), counterfactuals=True), 0.02)

    assert parts == []
    assert [note.split(" were")[0].split(" was")[0] for note in summary.notes] == ["occlusion", "counterfactuals"]


def test_answers_without_words_are_returned_as_long_as_there_is_time(explained_in: Explained) -> None:
    sets = tuple((word,) for word in range(10))
    parts, summary = explained_in(ExplanationRequest(LONG, attributions=False, without=sets), 0.0075)

    # The served text and the explained one are run before.
    assert [part.words for part in all_of(parts, Without)] == [(0,), (1,), (2,), (3,), (4,)]
    assert summary.notes == ("5 of 10 answers without words were left out: no time was left",)
    assert not summary.complete


@pytest.mark.parametrize("milliseconds", [0, 3, 7, 15, 40, 100, 400])
def test_every_omission_is_noted_and_the_deadline_is_kept(explained_in: Explained, time: Time, milliseconds: int) -> None:
    asked = ExplanationRequest(LONG, methods=METHODS, counterfactuals=True, heads=True, attention=AttentionRequest(heads=(1,)))
    parts, summary = explained_in(asked, milliseconds / 1000)

    missing = {name for name in METHODS if name not in [part.method for part in all_of(parts, Attribution)]}
    for name in missing:
        assert "left out" in _noted(summary.notes, f"{name} was")
    # The first served and explained row are needed for the header; after them a run begins only if it is predicted to end in time.
    assert time.left_s() >= min(0, milliseconds / 1000 - 2 * ROW_S) - 1e-9
    assert len(summary.notes) == len(set(summary.notes))
    assert all(len(note) < 256 for note in summary.notes)


@pytest.mark.parametrize("method", ["occlusion", "shapley", "two_step_shapley"])
def test_a_delayed_first_run_leaves_nothing_out(explained_in: Explained, time: Time, method: str) -> None:
    time.delay_s = 0.1

    parts, summary = explained_in(ExplanationRequest(LONG, methods=(method,), evidence=False, steps=2), 1.0)

    assert one_of(parts, Attribution).method == method
    assert summary.complete


def test_one_delayed_run_does_not_change_the_predicted_time() -> None:
    pace = Pace(usual_s=0.01)

    pace.record(2, 10.0)
    assert pace.row_s == 0.02
    pace.record(2, 0.02)
    pace.record(2, 0.02)
    assert pace.row_s == 0.01
    assert (pace.rows, pace.seconds(3), pace.rows_in(1.2 * 0.05)) == (6, pytest.approx(0.03), 5)
    assert (pace.rows_in(-1.0), pace.rows_in(float("inf")) > 10**6, Pace().rows_in(1.0) > 10**6) == (0, True, True)
    # What lasts is believed.
    pace.record(1, 1.0)
    pace.record(1, 1.0)
    assert pace.row_s == 1.0
