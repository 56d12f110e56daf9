"""Schemas of what Kubernetes itself does not know, from the projects that define them, all Apache 2.0.

``schemas.json.gz``: without descriptions, by apiVersion and kind, made by ``python -m tests.deploy.chart.schemas FILE...`` of the files of
the definitions: prometheus-operator 6adcebc5076c (ServiceMonitor, PrometheusRule), keda 8b4f083ca8c8
(ScaledObject), gateway-api 8bb74df00e56 (GRPCRoute, HTTPRoute), kserve aaac4e294dae (ServingRuntime; InferenceService with ``model`` as its
only kind of predictor), and compose-spec.json of compose-spec 170098ba07d9.
"""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "schemas.json.gz"
# Any: documents of YAML and JSON have no better type.
Document = dict[str, Any]


@cache
def schemas() -> dict[str, Document]:
    """Schema by "apiVersion/kind", or "compose-spec"; a field that it does not name is an error."""
    read = json.loads(gzip.decompress(FILE.read_bytes()))
    return {name: _strict(schema) if "/" in name else schema for name, schema in read.items()}


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(part) for part in node]
    if not isinstance(node, dict):
        return node
    made = {key: _strict(value) for key, value in node.items()}
    if isinstance(made.get("properties"), dict) and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    # Go takes a flag anywhere, Python at the beginning.
    if isinstance(made.get("pattern"), str):
        made["pattern"] = made["pattern"].replace("^(?i)", "(?i)^")
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    return made
