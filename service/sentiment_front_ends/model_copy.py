"""What a front end needs of a model, as the executor sends it: everything but the graph.

A front end reads no bundle folder. So it has exactly the executor's model, even after the folder was deleted.
"""

import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sentiment.model.bundle import Bundle, GraphSpec, Manifest
from sentiment.model.classifier import Classifier
from sentiment.model.session import Session
from sentiment.model.tokenizer import tokenizer_of

TOKENIZER = "tokenizer.json"
_SIZE = struct.Struct("<I")


class RemoteSession(Session):
    """Stands for the executor's session; cannot run anything."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.inputs = []

    def run(self, *_feeds: object, **_stop: object) -> npt.NDArray[np.float32]:
        """Always raises AssertionError."""
        raise AssertionError("a front end has no graph to run")


def copy_of(classifier: Classifier) -> bytes:
    """The model without its graph. Blocks while it reads the tokenizer's file.

    Raises:
        BadBundle: the file is gone, or is not the one that was loaded.
    """
    bundle = classifier.bundle
    facts = {
        "path": str(bundle.path),
        "manifest": bundle.manifest.model_dump(mode="json"),
        "digest": bundle.digest,
        "graph": classifier.graph.model_dump(mode="json"),
        "provider": classifier.session.provider,
    }
    head = json.dumps(facts).encode()
    return _SIZE.pack(len(head)) + head + bundle.read(TOKENIZER)


def classifier_of(copy: bytes) -> Classifier:
    """The classifier of a copy; it tokenizes and scores, but cannot run. Holds the GIL while the tokenizer is made."""
    tokenizer_at = _SIZE.size + _SIZE.unpack_from(copy)[0]
    facts = json.loads(copy[_SIZE.size : tokenizer_at])
    bundle = Bundle(Path(facts["path"]), Manifest.model_validate(facts["manifest"]), facts["digest"], {})
    sha256 = bundle.manifest.files[TOKENIZER].sha256
    tokenizer = tokenizer_of(bundle.path / TOKENIZER, bundle.manifest.max_tokens, sha256, copy[tokenizer_at:].decode())
    return Classifier(bundle, GraphSpec.model_validate(facts["graph"]), tokenizer, RemoteSession(facts["provider"]))
