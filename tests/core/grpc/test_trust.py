"""What a server says of a bundle's explanations, and that its default is the bundle's."""

import json
import urllib.request
from collections.abc import Iterator

import grpc
import pytest

from sentiment.settings import Settings
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer
from tests.tiny import make_bundle
from tests.trusted import explanations, trust


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> Iterator[RunningServer]:
    """A model without an explain graph whose study found Shapley values best."""
    root = tmp_path_factory.mktemp("measured")
    trust(make_bundle(root), "shapley")
    running = RunningServer(settings.model_copy(update={"bundles": (root,)}))
    yield running
    running.stop()


def test_a_model_tells_how_far_its_explanations_can_be_trusted(measured: RunningServer) -> None:
    with measured.client() as client:
        model = client.get_model()
        listed = client.list_models().models[0]

    wanted = explanations("shapley")
    assert listed.explanation_trust == model.explanation_trust
    assert list(model.explanation_methods) == ["shapley", "occlusion", "two_step_shapley"]
    study = model.explanation_study
    assert (study.dataset, study.texts, list(study.operators), study.default_method) == ("made/up", 400, wanted["operators"], "shapley")
    assert study.words_max == 60
    assert [found.method for found in model.explanation_trust] == [found["method"] for found in wanted["trust"]]
    for found, recorded in zip(model.explanation_trust, wanted["trust"], strict=True):
        assert pb.MethodKind.Name(found.kind) == f"METHOD_KIND_{recorded['kind'].upper()}"
        assert [one.operator for one in found.over_random] == wanted["operators"]
        for one in found.over_random:
            assert {"mean": one.mean, "low": one.low, "high": one.high} == pytest.approx(recorded["over_random"][one.operator])
        assert found.better_than_random == recorded["better_than_random"]
        figures = (found.comprehensiveness, found.sufficiency, found.rows, found.milliseconds, found.tested)
        assert figures == pytest.approx(
            (*(recorded[name] for name in ("comprehensiveness", "sufficiency", "rows", "ms")), recorded.get("tested", 0))
        )
        assert found.HasField("better_of_tested") == ("better_of_tested" in recorded)
        assert found.better_of_tested == pytest.approx(recorded.get("better_of_tested", 0.0))
        assert dict(found.stability) == pytest.approx(recorded.get("stability", {}))


def test_explain_uses_the_default_method_of_the_study(measured: RunningServer) -> None:
    with grpc.insecure_channel(measured.target, NO_RETRIES) as channel:
        messages = list(pb_grpc.SentimentServiceStub(channel).Explain(pb.ExplainRequest(text="a good film and a bad film")))

    assert [getattr(message, message.WhichOneof("part") or "").method for message in messages[1:-1]] == ["shapley"] * 3


def test_over_http_it_is_json_and_absent_where_nothing_was_measured(measured: RunningServer, server: RunningServer) -> None:
    answers = []
    for running in (measured, server):
        with urllib.request.urlopen(f"{running.url}/v1/models/tiny", timeout=10) as answer:
            answers.append(json.load(answer)["model"])

    there, not_there = answers
    assert there["explanation_study"]["texts"] == 400
    assert there["explanation_trust"][1]["kind"] == "METHOD_KIND_ATTRIBUTION"
    assert "better_of_tested" not in there["explanation_trust"][-1]
    assert not_there["explanation_trust"] == []
    assert "explanation_study" not in not_there
