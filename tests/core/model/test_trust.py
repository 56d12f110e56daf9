"""The section ``explanations`` of the manifest: its content and its checks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentiment.errors import BadBundle
from sentiment.model.bundle import load_bundle
from tests.tiny import make_bundle
from tests.trusted import explanations, method, trust

Section = dict[str, Any]  # plain JSON


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return trust(make_bundle(tmp_path))


def test_a_bundle_has_the_measurements_of_its_explanations(bundle: Path) -> None:
    measured = load_bundle(bundle).manifest.explanations

    assert measured is not None
    assert (measured.default_method, measured.dataset, measured.texts) == ("occlusion", "made/up", 400)
    assert measured.operators == ("attention_mask", "mask_token")
    first, *others = measured.trust
    assert (first.method, first.kind, first.better_than_random, first.tested, first.better_of_tested) == (
        "occlusion",
        "attribution",
        True,
        200,
        0.935,
    )
    assert (first.over_random["mask_token"].low, first.rows, first.ms, first.stability) == (0.185, 23.4, 18.25, {"case": 0.98})
    assert others[-1].better_of_tested is None
    assert measured.model_dump(mode="json", exclude_none=True)["trust"][0] == explanations()["trust"][0]


def test_an_older_bundle_has_no_measurements_and_unknown_fields_are_ignored(tmp_path: Path, bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    manifest["explanations"]["trust"][0]["of_later"] = manifest["explanations"]["of_later"] = {}
    (bundle / "manifest.json").write_text(json.dumps(manifest))

    assert load_bundle(make_bundle(tmp_path / "other")).manifest.explanations is None
    assert load_bundle(bundle).manifest.explanations is not None


DAMAGES: list[tuple[Callable[[Section], object], str]] = [
    (lambda it: it.update(default_method="rollout"), "default_method must be a measured attribution (occlusion, shapley, "),
    (lambda it: it.update(default_method="magic"), "gradient_x_input), got magic"),
    (lambda it: it.update(default_method="Ünsinn"), "explanations.default_method: "),
    (lambda it: it.update(texts=0), "explanations.texts: "),
    (lambda it: it.update(dataset=""), "explanations.dataset: "),
    (lambda it: it.update(operators=[]), "explanations.operators: "),
    (lambda it: it.update(trust=[]), "explanations.trust: "),
    (lambda it: it["trust"].append(it["trust"][0]), "a method is listed twice: occlusion, "),
    (lambda it: it.update(trust=[method(f"m{number}", "baseline", 0.1) for number in range(65)]), "explanations.trust: "),
    (lambda it: it["operators"].pop(), "mask_token and 200 tested texts, but the study has the operators attention_mask and 400 texts"),
    (lambda it: it["trust"][0].update(tested=401), "occlusion: has the operators attention_mask, mask_token and 401 tested texts"),
    (lambda it: it["trust"][0].update(kind="bound"), "explanations.trust.0.kind: "),
    (lambda it: it["trust"][0].update(better_of_tested=1.01), "explanations.trust.0.better_of_tested: "),
    (lambda it: it["trust"][0].update(better_of_tested=None), "occlusion: better_of_tested is None, but tested is 200"),
    (lambda it: it["trust"][6].update(better_of_tested=0.5), "position_first: better_of_tested is 0.5, but tested is 0"),
    (lambda it: it["trust"][0].update(ms=-1), "explanations.trust.0.ms: "),
    (lambda it: it["trust"][0].update(comprehensiveness=1.5), "explanations.trust.0.comprehensiveness: "),
    (lambda it: it["trust"][0]["stability"].update(case=-1.2), "explanations.trust.0.stability.case: "),
    (lambda it: it["trust"][0]["over_random"]["mask_token"].update(low=0.3), "the mean 0.205 is not within its interval, 0.3 to 0.225"),
    (
        lambda it: it["trust"][3].update(better_than_random=True),
        "gradient_x_input: better_than_random is true, but the intervals begin at -0.01 by attention_mask, -0.015 by mask_token",
    ),
]


@pytest.mark.parametrize(("damage", "says"), DAMAGES, ids=range(len(DAMAGES)))
def test_impossible_measurements_are_an_error(bundle: Path, damage: Callable[[Section], object], says: str) -> None:
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    damage(manifest["explanations"])
    (bundle / "manifest.json").write_text(json.dumps(manifest))

    with pytest.raises(BadBundle) as caught:
        load_bundle(bundle)

    assert says in str(caught.value)
