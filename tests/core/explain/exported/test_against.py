"""Explanations of one label against another: all parts are about the difference of the two logits."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sentiment.errors import InvalidInput
from sentiment.explain.engine import Explainer
from sentiment.explain.methods.erasure import Answers, run
from sentiment.explain.methods.evidence import Evidence, evidence
from sentiment.explain.methods.registry import METHODS
from sentiment.explain.methods.target import Target, target_of
from sentiment.explain.parts import Aggregation, AttentionRequest, AttentionTile, Attribution, ExplanationRequest, Heads, Part, Without
from sentiment.model.bundle import Mixed
from sentiment.model.classifier import Classifier, load_classifier
from tests.core.explain.explained import TEXT, all_of, explained, logit, one_of
from tests.models.tiny_families import THREE, export_tiny

_text = partial(ExplanationRequest, TEXT)
ASKED = {"methods": METHODS, "heads": True, "attention": AttentionRequest(aggregation=Aggregation.ROLLOUT_GRADIENT)}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explainer]:
    """Of a tiny model with three labels, in fp32."""
    bundle: Path = export_tiny(tmp_path_factory.mktemp("three"), "roberta").bundle
    yield Explainer(load_classifier(bundle, "fp32"))


def values(parts: list[Part]) -> dict[str, np.ndarray]:
    return {part.method: part.words for part in all_of(parts, Attribution)}


def test_of_three_labels_the_answer_is_explained_against_the_runner_up(three: Explainer) -> None:
    header, _, _ = explained(three, _text())

    order = np.argsort(header.scored.scores)[::-1]
    assert (header.target.label, header.target.against) == (order[0], order[1])


def test_another_label_is_explained_against_the_likeliest_other_one() -> None:
    assert target_of(np.array([1.0, 3.0, 2.0]), 2, None) == Target(2, 1)
    assert target_of(np.array([1.0, 3.0, 2.0]), 1, None) == Target(1, 2)
    assert target_of(np.array([2.0, 1.0, 2.0]), 1, None) == Target(1, 0)


@pytest.mark.parametrize("label", [0, 1])
def test_of_two_labels_the_logit_of_one_is_explained(label: int) -> None:
    assert target_of(np.array([1.0, 3.0]), label, None) == Target(label)


# Words share their sentence's value by the gradients of what speaks for the label, which are not those of its opposite.
LINEAR = tuple(method for method in METHODS if method != "two_step_shapley")


@pytest.mark.parametrize("method", LINEAR)
def test_values_against_a_label_are_the_difference_of_the_values_of_both(three: Explainer, method: str) -> None:
    asked = _text(methods=(method,), steps=8, evidence=False)
    found = values(explained(three, replace(asked, label="positive", against="negative"))[1])[method]
    alone = [values(explained(three, replace(asked, label=label, label_alone=True))[1])[method] for label in ("positive", "negative")]

    assert found == pytest.approx(alone[0] - alone[1], abs=1e-4)
    assert np.abs(found - alone[0]).max() > 1e-2


def test_two_labels_swapped_have_opposite_values_and_the_same_evidence(three: Explainer) -> None:
    one, other = (explained(three, _text(methods=METHODS, label=a, against=b))[1] for a, b in (THREE[::2], THREE[2::-2]))

    for method, found in values(one).items():
        if method in LINEAR:
            assert values(other)[method] == pytest.approx(-found, abs=1e-4)
    sentences = [found.sentences for parts in (one, other) for found in all_of(parts, Attribution) if found.sentences]
    assert [part.value for part in sentences[1]] == pytest.approx([-part.value for part in sentences[0]], abs=1e-4)
    for first, second in zip(all_of(one, Evidence), all_of(other, Evidence), strict=True):
        if first.method not in LINEAR:
            continue
        assert (first.verdict, first.rank) == (second.verdict, second.rank)
        assert first.comprehensiveness == pytest.approx(second.comprehensiveness, abs=1e-5)
        assert first.empty_text_logit == pytest.approx(-second.empty_text_logit, abs=1e-5)


def test_the_header_has_the_explained_logit_and_values_sum_to_its_change(three: Explainer) -> None:
    header, parts, _ = explained(three, _text(methods=("shapley",), label="neutral", against="positive"))

    row = three.classifier.tokenizer.encode(TEXT)
    neutral, positive = (logit(three.classifier, row, label) for label in (1, 2))
    assert header.logit == pytest.approx(neutral - positive, abs=1e-5)
    change = header.logit - one_of(parts, Evidence).empty_text_logit
    assert one_of(parts, Attribution).words.sum() == pytest.approx(change, abs=1e-5)


def test_evidence_is_of_the_share_of_the_label_in_what_both_have() -> None:
    weights = np.array([[0.0, 2.0, 0.5], [0.0, -1.0, 3.0], [0.0, 0.5, 0.0]])
    of = {target: run(evidence(3, weights[:, 1] - weights[:, 2], target, 2.0, Answers(), method="m", seed=0),
                      lambda masks: masks @ weights) for target in (Target(1, 2),)}[Target(1, 2)]  # fmt: skip

    def share(kept: list[int]) -> float:
        return float(1 / (1 + np.exp((weights[kept, 1] - weights[kept, 2]).sum() / 2)))

    # The third label wins over the first: the words that count most against the first are erased.
    assert of.comprehensiveness == pytest.approx(share([0, 1, 2]) - share([0, 2]))
    assert of.empty_text_logit == 0


def test_the_effects_of_heads_and_the_gradient_rollout_are_of_the_difference(three: Explainer) -> None:
    compared, *alone = (
        explained(three, _text(label=label, heads=True, attributions=False, **more))[1]
        for label, more in (("positive", {"against": "negative"}), ("positive", {"label_alone": True}), ("negative", {"label_alone": True}))
    )
    found, first, second = (one_of(parts, Heads) for parts in (compared, *alone))

    assert found.first_order == pytest.approx(first.first_order - second.first_order, abs=1e-5)
    assert found.effects and first.effects and second.effects
    assert found.effects.gated == pytest.approx(first.effects.gated - second.effects.gated, abs=1e-5)
    tiles = [
        one_of(explained(three, _text(label="positive", attributions=False, attention=ASKED["attention"], **more))[1], AttentionTile)
        for more in ({"against": "negative"}, {"label_alone": True})
    ]
    assert tiles[0].tile.weights != tiles[1].tile.weights


def test_a_gradient_of_a_difference_runs_the_explain_graph_twice_and_counts_it(three: Explainer) -> None:
    asked = _text(methods=("integrated_gradients",), steps=8, evidence=False)
    alone, compared = (explained(three, replace(asked, label_alone=only))[2].explained_rows for only in (True, False))

    assert (alone, compared) == (10, 20)
    assert three.predict(asked).work_s > three.predict(replace(asked, label_alone=True)).work_s


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"against": "good"}, "is 'good'; the model's labels are negative, neutral, positive"),
        ({"label": "neutral", "against": "neutral"}, "is 'neutral', as label is; it must be another label"),
        ({"against": "neutral", "label_alone": True}, "is 'neutral'; with label_alone it must be unset"),
    ],
)
def test_an_against_that_cannot_be_is_refused(three: Explainer, asked: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        next(iter(three.explain(_text(**asked))))  # type: ignore[arg-type]  # by name

    assert (caught.value.field, caught.value.description) == ("options.against", reason)


def test_the_answer_is_not_explained_against_itself(three: Explainer) -> None:
    answer = explained(three, _text())[0].scored.label

    with pytest.raises(InvalidInput, match=f"options.against: is '{answer}', the answer, which is explained; set label, or another"):
        next(iter(three.explain(_text(against=answer))))


# A model with one more logit, which does not belong to a label


@pytest.fixture(scope="module")
def mixed(three: Explainer) -> Explainer:
    """The same graphs, whose third logit says that a text is mixed."""
    found = three.classifier
    order = ("negative", "neutral")
    golden = tuple(one for one in found.manifest.golden if one.label in order)
    manifest = found.manifest.model_copy(update={"labels": order, "mixed": Mixed(at=0.0), "golden": golden})
    return Explainer(Classifier(replace(found.bundle, manifest=manifest), found.graph, found.tokenizer, found.session))


def test_the_logit_for_mixed_texts_is_said_and_not_explained(three: Explainer, mixed: Explainer) -> None:
    asked = _text(methods=METHODS, heads=True, without=((0,), (1, 2)), counterfactuals=True, label="neutral", label_alone=True, steps=8)
    header, parts, summary = explained(mixed, asked)

    row = mixed.classifier.tokenizer.encode(TEXT)
    assert header.scored == mixed.classifier.score(mixed.classifier.run([row])[0])
    assert header.scored.mixed
    assert len(header.scored.scores) == 2
    assert header.logit == pytest.approx(logit(three.classifier, row, 1))
    assert header.agrees
    assert summary.complete
    alone = values(explained(three, replace(asked, without=(), counterfactuals=False))[1])
    for method, found in values(parts).items():
        assert found == pytest.approx(alone[method], abs=1e-5)
    assert all(part.label in (0, 1) for part in all_of(parts, Without))
