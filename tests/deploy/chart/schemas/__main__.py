"""See the package."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.chart.schemas import FILE

# What a KServe predictor may be beside a pod and a model in general: of no use here, and nine tenths of its schema.
LEFT_OUT = {
    *("huggingface", "lightgbm", "onnx", "paddle", "pmml", "pytorch", "sklearn", "tensorflow", "triton", "xgboost", "workerSpec"),
    *("explainer", "transformer", "canary", "status"),
}


def pruned(node: Any) -> Any:
    """Without descriptions and what is left out."""
    if isinstance(node, list):
        return [pruned(part) for part in node]
    if not isinstance(node, dict):
        return node
    return {
        key: pruned(value) for key, value in node.items() if key not in LEFT_OUT and not (key == "description" and isinstance(value, str))
    }


schemas = {}
for name in sys.argv[1:]:
    if name.endswith(".json"):
        schemas[Path(name).stem] = pruned(json.loads(Path(name).read_text(encoding="utf-8")))
        continue
    definition = yaml.load(Path(name).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)["spec"]
    for version in definition["versions"]:
        schema = pruned(version["schema"]["openAPIV3Schema"])
        # The object's own metadata is Kubernetes'.
        schema["properties"]["metadata"] = {"type": "object"}
        schemas[f"{definition['group']}/{version['name']}/{definition['names']['kind']}"] = schema
FILE.write_bytes(gzip.compress(json.dumps(schemas, separators=(",", ":"), sort_keys=True).encode(), mtime=0))
