"""The version of the code that made the records of a long run. Records of another version are refused: their values may differ."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from sentiment import explain

FOLDER = Path(__file__).parent
# Modules of this folder by the records that they determine; modules that only present results are in none.
OF_SCORES = ("subject", "rankings", "findings")
OF_STUDY = (
    *OF_SCORES,
    *("study", "one_text", "measures", "stability", "drawing", "intervals", "corpus_heads"),
    *("attention_tests", "adversarial", "weight_erasure", "last_layer", "randomisation"),
)
OF_RATIONALES = (*OF_SCORES, "plausibility")
OF_TRAINING = ("training_tests", "training_settings", "small_encoder", "bag", "distances", "intervals")


def code_of(modules: Sequence[str]) -> str:
    """Return the SHA-256 of modules of this folder and, except for OF_TRAINING, of the service's ``explain`` package."""
    paths = [FOLDER / f"{name}.py" for name in modules]
    if modules != OF_TRAINING:
        paths += sorted(Path(str(explain.__file__)).parent.rglob("*.py"))
    digest = hashlib.sha256()
    for path in paths:
        # Line endings may differ by git settings.
        digest.update(f"{path.parent.name}/{path.name}\n".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()
