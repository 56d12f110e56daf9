"""``python -m tests.viewer.record NAME``: record the messages that the approved pictures are drawn from.

Recorded, because another machine's kernels give other last digits; to be done again only where the messages themselves change.
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict

from sentiment.settings import Settings
from sentiment.v1 import sentiment_pb2 as pb
from sentiment_viewer.page import saved_page
from tests.conftest import RunningServer
from tests.viewer.texts import SHORT, review

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "data"
PARTS = {
    "methods": ["shapley", "integrated_gradients", "occlusion", "gradient_x_input"],
    "attribution": {"by_embedding": True},
    "counterfactuals": True,
    "heads": True,
    "attention": {"encoding": "ATTENTION_ENCODING_U8"},
    "neuron": {"layer": 0, "head": 0, "token": 1},
    "geometry": True,
    "without": [{"words": [9]}, {"words": [3]}],
}
# By name: the text, and what is asked of it.
ASKED: dict[str, tuple[str, dict[str, Any]]] = {"review": (SHORT, PARTS), "long": (review(300), {"methods": []})}


def record(url: str, text: str, options: dict[str, Any]) -> list[dict[str, Any]]:  # JSON's values are of many kinds
    """The model with its card, and the messages of one explanation."""
    with urllib.request.urlopen(f"{url}/v1/models/english", timeout=10) as answer:
        model = json.load(answer)["model"]
    body = json.dumps({"text": text, "options": options}).encode()
    # With less time, the effects of heads would be estimates.
    request = urllib.request.Request(f"{url}/v1/explain", body, {"Grpc-Timeout": "60S"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [{"page": {"text": text, "model": model}}, *map(json.loads, answer)]


def recorded_page(name: str) -> str:
    """The viewer as one file, with what was recorded."""
    first, *lines = map(json.loads, (RECORDED / f"{name}.ndjson").read_text(encoding="utf-8").splitlines())
    messages = [ParseDict(line, pb.ExplainResponse()).SerializeToString() for line in lines]
    return saved_page(messages, first["page"]["text"], None, first["page"]["model"])


def main(name: str) -> None:
    """Write a file again."""
    listen = "127.0.0.1:0"
    settings = Settings(bundles=(ROOT / "models/bundles",), model="english", grpc_listen=listen, http_listen=listen, drain_wait_s=0)
    server = RunningServer(settings)
    try:
        lines = [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in record(server.url, *ASKED[name])]
    finally:
        server.stop()
    (RECORDED / f"{name}.ndjson").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
