"""The version of the code that made the records of a long run. Records of another version are refused: their values may differ."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from sentiment import explain

FOLDER = Path(__file__).parents[1]
# Modules of this package by the records that they determine; modules that only present results are in none.
OF_SCORES = ("explanations/subject", "explanations/rankings", "explanations/findings")
OF_STUDY = (
    *OF_SCORES,
    *(f"explanations/{name}" for name in ("study", "one_text", "measures", "stability", "drawing", "intervals", "corpus_heads")),
    *(f"study/{name}" for name in ("attention_tests", "adversarial", "weight_erasure", "last_layer", "randomisation")),
)
OF_RATIONALES = (*OF_SCORES, "explanations/plausibility")
OF_TRAINING = (
    *("explanations/distances", "explanations/intervals"),
    *(f"study/{name}" for name in ("training_tests", "training_settings", "small_encoder", "bag")),
)


def code_of(modules: Sequence[str]) -> str:
    """Return the SHA-256 of modules of this package and, except for OF_TRAINING, of the service's ``explain`` package."""
    paths = [FOLDER / f"{name}.py" for name in modules]
    if modules != OF_TRAINING:
        paths += sorted(Path(str(explain.__file__)).parent.rglob("*.py"))
    digest = hashlib.sha256()
    for path in paths:
        # Line endings may differ by git settings.
        digest.update(f"{path.parent.name}/{path.name}\n".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()
