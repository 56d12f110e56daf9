"""A fictitious section ``explanations`` of a manifest, and bundles that have it."""

import json
from pathlib import Path
from typing import Any

OPERATORS = ["attention_mask", "mask_token"]


def method(name: str, kind: str, mean: float, spread: float = 0.02, **more: object) -> dict[str, Any]:  # plain JSON
    """One method: ``mean`` over random with the first way of erasing, a little less with the other."""
    over = {
        operator: {"mean": round(mean - less, 4), "low": round(mean - less - spread, 4), "high": round(mean - less + spread, 4)}
        for operator, less in zip(OPERATORS, (0.0, 0.005), strict=True)
    }
    return {
        "method": name,
        "kind": kind,
        "over_random": over,
        "better_than_random": mean - 0.005 - spread > 0,
        "comprehensiveness": round(0.1 + mean, 4),
        "sufficiency": 0.2,
        "rows": 4.0,
        "ms": 2.5,
        **more,
    }


def explanations(default: str = "occlusion", words_max: int = 60) -> dict[str, Any]:  # plain JSON
    """The section: attributions, attention and a baseline over 400 texts."""
    return {
        "default_method": default,
        "dataset": "made/up",
        "texts": 400,
        "words_max": words_max,
        "operators": list(OPERATORS),
        "trust": [
            method("occlusion", "attribution", 0.21, tested=200, better_of_tested=0.935, stability={"case": 0.98}, rows=23.4, ms=18.25),
            method("shapley", "attribution", 0.2, tested=200, better_of_tested=0.91),
            method("integrated_gradients", "attribution", 0.12, tested=200, better_of_tested=0.8),
            method("gradient_x_input", "attribution", 0.01, tested=200, better_of_tested=0.31),
            method("attention_last_cls", "attention", 0.05, tested=180, better_of_tested=0.4),
            method("rollout", "attention", -0.03, tested=180, better_of_tested=0.05),
            method("position_first", "baseline", -0.01),
        ],
    }


def trust(bundle: Path, default: str = "occlusion", words_max: int = 60) -> Path:
    """Write the section into a bundle's manifest, which changes its digest."""
    path = bundle / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "explanations": explanations(default, words_max)}))
    return bundle
