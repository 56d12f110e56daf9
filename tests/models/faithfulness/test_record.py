"""What a study found goes into the manifest of the bundle that was studied, and of no other."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sentiment.explain.engine import Explainer
from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import load_classifier
from sentiment_models.errors import ModelsError
from sentiment_models.explanations.findings import KINDS, Findings
from sentiment_models.explanations.record import record_findings
from sentiment_models.export.copying import copy
from tests.models.faithfulness.found import findings


def test_the_study_of_the_first_data_set_is_recorded_and_the_bundle_stays_valid(bundle: Path) -> None:
    before = load_bundle(bundle)

    record_findings(bundle, findings(bundle))

    after = load_bundle(bundle)
    measured = after.manifest.explanations
    assert measured is not None
    assert after.digest != before.digest
    assert after.manifest.model_copy(update={"explanations": None}) == before.manifest
    assert (measured.default_method, measured.dataset, measured.texts) == ("integrated_gradients", "made/dev", 40)
    trust = {found.method: found for found in measured.trust}
    # All are compared with random orders; a search for the best order and a control are not methods.
    assert list(trust) == [name for name in KINDS if name not in ("random", "greedy", "default_unsigned")]
    one = trust["integrated_gradients"]
    assert one.over_random["mask_token"].model_dump() == pytest.approx({"mean": 0.3, "low": 0.285, "high": 0.315})
    assert (one.kind, one.tested, one.better_of_tested, one.rows, one.ms) == ("attribution", 36, 0.85, 24.0, 12.5)
    assert (one.comprehensiveness, one.sufficiency) == pytest.approx((0.4, 0.15))
    # Attention is better than random by the attention mask alone.
    assert [name for name, found in trust.items() if found.better_than_random] == [
        *("integrated_gradients", "gradient_x_input", "occlusion", "shapley", "two_step_shapley"),
        *("position_last", "inverse_frequency", "lexicon"),
    ]
    assert (trust["position_first"].tested, trust["position_first"].better_of_tested) == (0, None)
    assert trust["occlusion"].stability == {"stop": 0.91}


def test_another_default_can_be_chosen_and_is_served_and_recording_again_is_possible(bundle: Path) -> None:
    found = findings(bundle)

    record_findings(bundle, found)
    record_findings(bundle, _with_default(found, "occlusion"))

    measured = load_bundle(bundle).manifest.explanations
    assert measured is not None
    assert measured.default_method == measured.trust[0].method == "occlusion"
    assert Explainer(load_classifier(bundle)).methods[0] == "occlusion"


def test_findings_hold_for_another_version_with_the_same_graph(bundle: Path, tmp_path: Path) -> None:
    found = findings(bundle)
    copy(bundle, 2, tmp_path / "2")

    record_findings(tmp_path / "2", found)

    assert load_bundle(tmp_path / "2").manifest.explanations is not None


def _with_default(found: Findings, method: str) -> Findings:
    return found.model_copy(update={"default_method": method})


def _without(found: Findings, method: str) -> Findings:
    name, dataset = next(iter(found.datasets.items()))
    methods = {key: one for key, one in dataset.methods.items() if key != method}
    return found.model_copy(update={"datasets": {name: dataset.model_copy(update={"methods": methods})}})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda one: one.model_copy(update={"bundle": "other/1"}), "the findings belong to bundle other/1; this bundle is bert/1"),
        (
            lambda one: one.model_copy(update={"graph_sha256": "0" * 64}),
            "measured on int8.onnx with SHA-256 000000000000; the",
        ),
        (lambda one: one.model_copy(update={"graph": "fp16.onnx"}), "the bundle has no fp16.onnx"),
        (lambda one: _with_default(one, "rollout"), "unknown default method 'rollout'; the service has integrated_gradients, "),
        (
            lambda one: _with_default(_without(one, "shapley"), "shapley"),
            "default_method must be a measured attribution (",
        ),
    ],
)
def test_findings_that_do_not_fit_the_bundle_are_refused(bundle: Path, change: Callable[[Findings], Findings], says: str) -> None:
    before = (bundle / "manifest.json").read_bytes()

    with pytest.raises(ModelsError) as caught:
        record_findings(bundle, change(findings(bundle)))

    assert says in str(caught.value)
    assert (bundle / "manifest.json").read_bytes() == before


def test_findings_of_a_graph_that_is_not_served_first_are_refused(bundle: Path) -> None:
    files = json.loads((bundle / "manifest.json").read_bytes())["files"]
    other = findings(bundle).model_copy(update={"graph": "fp32.onnx", "graph_sha256": files["fp32.onnx"]["sha256"]})

    with pytest.raises(
        ModelsError, match=r"^the findings were measured on fp32.onnx; the manifest records only those of the served graph, int8.onnx$"
    ):
        record_findings(bundle, other)
