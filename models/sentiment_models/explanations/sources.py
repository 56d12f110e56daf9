"""Which code made the records that a long run keeps: records of other code are refused, since nobody can tell what they would be now."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from sentiment import explain

FOLDER = Path(__file__).parent
# Modules of this folder by what is kept that they make; those that only tell of it are in none.
OF_SCORES = ("subject", "rankings", "findings")
OF_STUDY = (
    *OF_SCORES,
    *("study", "one_text", "measures", "stability", "drawing", "intervals", "corpus_heads"),
    *("attention_tests", "adversarial", "weight_erasure", "last_layer", "randomisation"),
)
OF_RATIONALES = (*OF_SCORES, "plausibility")
OF_TRAINING = ("training_tests", "small_encoder", "bag", "distances", "intervals")


def code_of(modules: Sequence[str]) -> str:
    """SHA-256 of the sources of modules of this folder, and of the service's own that explain, which all but trained encoders rest on."""
    paths = [FOLDER / f"{name}.py" for name in modules]
    if modules != OF_TRAINING:
        paths += sorted(Path(str(explain.__file__)).parent.rglob("*.py"))
    digest = hashlib.sha256()
    for path in paths:
        # Lines end as git leaves them.
        digest.update(f"{path.parent.name}/{path.name}\n".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()
