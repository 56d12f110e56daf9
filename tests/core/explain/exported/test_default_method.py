"""The default method: the one that the bundle's study names."""

import json
import shutil
from pathlib import Path

import pytest

from sentiment.explain.engine import Explainer
from sentiment.explain.methods.registry import ERASURE_METHODS, METHODS
from sentiment.explain.parts import Attribution, Evidence, ExplanationRequest
from sentiment.model.classifier import load_classifier
from tests.core.explain.explained import TEXT, all_of, explained, one_of
from tests.trusted import explanations, trust


def explainer_of(bundle: Path, to: Path, default: str, *, graph: bool = True, words_max: int = 60) -> Explainer:
    """An explainer of a copy of the bundle whose study names a default; ``graph``: whether it keeps its explain graph."""
    copied = trust(Path(shutil.copytree(bundle, to / "copy")), default, words_max)
    if not graph:
        manifest = json.loads((copied / "manifest.json").read_bytes())
        del manifest["graphs"]["explain"]
        (copied / "manifest.json").write_text(json.dumps(manifest))
    return Explainer(load_classifier(copied, "fp32"))


@pytest.mark.parametrize("default", [found["method"] for found in explanations()["trust"] if found["kind"] == "attribution"])
def test_the_studys_default_is_the_first_method(bundle: Path, tmp_path: Path, default: str) -> None:
    explainer = explainer_of(bundle, tmp_path, default)

    assert explainer.methods == (default, *(method for method in METHODS if method != default))


def test_the_default_is_used_if_the_request_names_no_method(bundle: Path, tmp_path: Path) -> None:
    explainer = explainer_of(bundle, tmp_path, "shapley")

    _, parts, _ = explained(explainer, ExplanationRequest(TEXT, counterfactuals=True))
    _, chosen, _ = explained(explainer, ExplanationRequest(TEXT, methods=("occlusion",)))

    assert [one_of(parts, Attribution).method, one_of(parts, Evidence).method] == ["shapley", "shapley"]
    assert [part.method for part in all_of(chosen, Attribution)] == ["occlusion"]


def test_a_text_longer_than_any_studied_gets_another_method_and_a_note(bundle: Path, tmp_path: Path) -> None:
    explainer = explainer_of(bundle, tmp_path, "shapley", words_max=11)
    longer = TEXT + " a lot"

    _, studied, whole = explained(explainer, ExplanationRequest(" ".join(TEXT.split()[:11]), evidence=False))
    _, parts, summary = explained(explainer, ExplanationRequest(longer, evidence=False))
    _, chosen, silent = explained(explainer, ExplanationRequest(longer, evidence=False, methods=("shapley",)))
    _, other, still = explained(explainer, ExplanationRequest(longer, attributions=False, heads=True))

    assert [one_of(found, Attribution).method for found in (studied, parts, chosen)] == ["shapley", "two_step_shapley", "shapley"]
    remark = "the method is two_step_shapley: shapley was studied on texts of up to 11 words, and of this text 15 are read"
    assert remark in summary.notes
    assert summary.complete
    assert not any("was studied" in note for note in (*whole.notes, *silent.notes, *still.notes))
    assert all_of(other, Attribution) == []


def test_a_default_that_needs_a_missing_graph_is_skipped(bundle: Path, tmp_path: Path) -> None:
    without = explainer_of(bundle, tmp_path / "without", "integrated_gradients", graph=False)
    possible = explainer_of(bundle, tmp_path / "possible", "shapley", graph=False)
    failed = explainer_of(bundle, tmp_path / "failed", "gradient_x_input")
    failed.failure = "it failed its check"

    assert without.methods == failed.methods == ERASURE_METHODS
    assert possible.methods == ("shapley", "occlusion", "two_step_shapley")


def test_an_unknown_default_is_skipped(bundle: Path, tmp_path: Path) -> None:
    later = trust(Path(shutil.copytree(bundle, tmp_path / "later")))
    section = explanations()
    section["default_method"] = section["trust"][0]["method"] = "of_later"
    manifest = json.loads((later / "manifest.json").read_bytes())
    (later / "manifest.json").write_text(json.dumps({**manifest, "explanations": section}))

    assert Explainer(load_classifier(later, "fp32")).methods == METHODS
