"""The Open Inference Protocol where front ends speak it: the same answers, counted once."""

from collections.abc import Callable

import grpc

from sentiment.oip import inference_pb2 as oip
from sentiment.oip import inference_pb2_grpc as oip_grpc
from tests.api_grpc.test_oip import asked, labels_of
from tests.front_ends.servers import PATIENCE_S, Server


def test_front_ends_answer_tensors_and_say_how_they_are(serve: Callable[..., Server]) -> None:
    server = serve().wait_ready()
    with grpc.insecure_channel(server.target) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)

        one = stub.ModelInfer(asked("good"), timeout=PATIENCE_S)
        many = stub.ModelInfer(asked("bad", "great film", "awful"), timeout=PATIENCE_S)
        config = stub.ModelConfig(oip.ModelConfigRequest(name="tiny"), timeout=PATIENCE_S).config

        assert labels_of(one.raw_output_contents[0]) == ["positive"]
        assert labels_of(many.raw_output_contents[0]) == ["negative", "positive", "negative"]
        assert config.name == "tiny"
        assert stub.ServerLive(oip.ServerLiveRequest(), timeout=PATIENCE_S).live
        assert stub.ServerReady(oip.ServerReadyRequest(), timeout=PATIENCE_S).ready
        assert stub.ModelReady(oip.ModelReadyRequest(name="tiny"), timeout=PATIENCE_S).ready
    assert server.total("requests_total", method="ModelInfer", code="OK") == 2
    assert server.total("items_total", method="ModelInfer", code="OK", model="tiny/1") == 4
