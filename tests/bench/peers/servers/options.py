"""How a peer is run, and what it answers over HTTP. Imports nothing that one of the environments lacks."""

import json
import os
from dataclasses import dataclass
from typing import Any

VARIABLE = "PEER_OPTIONS"


@dataclass(frozen=True, slots=True)
class Options:
    """Addresses and tuning. ``instances`` of the model run batches of at most ``rows`` texts, and none waits for more."""

    bundle: str
    port: int
    other_ports: tuple[int, ...]
    instances: int
    rows: int

    @classmethod
    def read(cls) -> "Options":
        """From the environment, which worker processes inherit however a framework starts them."""
        values: dict[str, Any] = json.loads(os.environ[VARIABLE])
        return cls(**{**values, "other_ports": tuple(values["other_ports"])})


def to_json(answer: tuple[str, float]) -> dict[str, Any]:
    """What POST /v1/classify answers, as far as a peer does it."""
    return {"prediction": {"label": answer[0], "score": answer[1]}}
