"""Shadow scoring and the drift of hidden states with front ends: they send their texts, and the executor compares."""

import json
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sentiment.client import ExplainOptions
from sentiment.pipeline.queries import Query
from sentiment_front_ends.executor import Executor
from sentiment_front_ends.frames import Sampled
from tests.core.lifecycle.test_shadow import TEXTS, differences, make_other
from tests.core.servers import until
from tests.front_ends.test_exchange import Exchanging, exchanging, root

__all__ = ["exchanging", "root"]


def test_texts_of_all_ways_in_are_compared_once_in_the_executor(exchanging: Callable[..., Exchanging], root: Path) -> None:
    server = exchanging("--shadow-share", "1")
    fronts = list(server.clients().values())
    make_other(root)
    with server.admin() as admin:
        admin.load("tiny/2", use=False)
    direct = {text: fronts[0].classify(text, model="tiny/2") for text in TEXTS}
    predicted = server.total("predictions_total", model="tiny/2")

    live = [*(fronts[0].classify(text) for text in TEXTS), *fronts[1].classify_batch(list(TEXTS))]
    # Forwarded to the executor, and the executor's own HTTP.
    live.append(fronts[1].classify("good", explain=ExplainOptions(methods=("occlusion",), evidence=False)))
    posted = urllib.request.Request(server.url + "/v1/classify", json.dumps({"text": "good"}).encode())
    assert json.loads(urllib.request.urlopen(posted, timeout=60).read())["prediction"]["label"] == "positive"
    live.append(live[-1])

    until(lambda: server.total("shadow_texts_total", model="tiny/1", shadow="tiny/2") == len(live))
    flips, _ = differences(live, [direct[text] for text in (*TEXTS, *TEXTS, "good", "good")])
    found = {(one.labels["from"], one.labels["to"]): one.value for one in server.metrics() if one.name == "sentiment_shadow_flips_total"}
    assert +Counter(found) == flips
    assert server.total("shadow_dropped_total") == 0
    assert server.total("predictions_total", model="tiny/2") == predicted
    assert server.states()["tiny/2"][1].startswith("differs from tiny/1 on ")


@pytest.mark.parametrize("drift", [False, True])
@pytest.mark.parametrize("shadow", [False, True])
def test_a_text_of_a_front_end_is_offered_for_what_it_was_drawn_for(shadow: bool, drift: bool) -> None:
    used, offered = SimpleNamespace(classifier=SimpleNamespace(bundle=SimpleNamespace(digest="ab"))), dict[str, Any]()
    executor: Any = SimpleNamespace(
        _lifecycle=SimpleNamespace(
            running=[used],
            shadow=SimpleNamespace(offer=lambda *given: offered.update(shadow=given)),
            hidden_drift=SimpleNamespace(offer=lambda *given: offered.update(drift=given)),
        )
    )

    Executor._take_sample(executor, b"\xab", Sampled("a", "b", "head", "positive", 0.9, shadow, drift, 3))

    read = (used, Query("a", "b", "head"))
    assert offered == ({"shadow": (*read, "positive", 0.9, 3)} if shadow else {}) | ({"drift": read} if drift else {})
