"""``sentiment explain`` and the clients' explain, with a tiny random BERT and its real explain graph, from a server and in this process."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import bertviz
import grpc
import numpy as np
import pytest

from sentiment import Local
from sentiment.cli import main
from sentiment.client import AttentionOptions, CallFailed, Client, ExplainOptions, Explanation, NeuronOptions
from sentiment.settings import Settings
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from sentiment_models.export.export import export
from tests.conftest import PLAIN, RunningServer
from tests.core.client.explained import attribution, messages
from tests.models.tiny_families import MAX_TOKENS, TINY, save_tiny

Captured = pytest.CaptureFixture[str]
TEXT = "the film was not good at all, but i liked the end"
# Explanations have the lowest priority: on a busy machine one of everything takes a minute or more.
PATIENCE_S = 300.0
EVERYTHING = ExplainOptions(
    methods=["integrated_gradients", "shapley"],
    by_embedding=True,
    counterfactuals=True,
    heads=True,
    attention=AttentionOptions(encoding="fp32"),
    neuron=NeuronOptions(0, 0, 1),
    geometry=True,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    bundle = folder / "bundles" / "tiny" / "1"
    bundle.parent.mkdir(parents=True)
    export(save_tiny(folder / "checkpoint", TINY["bert"]), bundle, name="tiny", version=1, pairs=True, max_tokens=MAX_TOKENS)
    return folder / "bundles"


@pytest.fixture(scope="module")
def explaining(root: Path, settings: Settings) -> Iterator[RunningServer]:
    running = RunningServer(settings.model_copy(update={"bundles": (root,), "deadline_max_s": PATIENCE_S}))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def explained(explaining: RunningServer) -> Explanation:
    """Everything there is to ask, from the server."""
    with Client(explaining.target) as client:
        return client.explain(TEXT, options=EVERYTHING, timeout_s=PATIENCE_S)


@pytest.fixture(params=["server", "local"])
def where(request: pytest.FixtureRequest, root: Path, explaining: RunningServer) -> list[str]:
    return ["--target", explaining.target] if request.param == "server" else ["--local", "--bundles", str(root), "--model", "tiny"]


def run(*arguments: str) -> int:
    return main.main(["explain", *arguments])


def assert_same(one: Any, other: Any) -> None:
    """Compare explanations, or parts of them as JSON. Last bits may differ: beside a CPU hog a residual was once off by 4e-16."""
    if isinstance(one, Explanation):
        assert_same({**one.to_json(), "summary": None}, {**other.to_json(), "summary": None})
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == (pytest.approx(other, rel=1e-5, abs=1e-6) if isinstance(other, float) else other)


# the client


def test_all_requested_parts_are_returned(explained: Explanation) -> None:
    layers, heads, tokens = 2, 2, len(explained.tokens)

    assert explained.summary.complete, explained.summary.notes
    assert [word.text for word in explained.words][:4] == ["the", "film", "was", "not"]
    assert list(explained.attributions) == list(explained.evidence) == ["integrated_gradients", "shapley"]
    gradients = explained.attributions["integrated_gradients"]
    assert gradients.tokens is not None
    assert gradients.by_embedding is not None
    assert np.allclose(gradients.by_embedding.sum(1), gradients.tokens, atol=1e-5)
    for index, word in enumerate(explained.words):
        assert gradients.tokens[word.token_start : word.token_end].sum() == pytest.approx(gradients.words[index], abs=1e-5)
    assert [found.kind for found in explained.counterfactuals] == ["flip", "keep"]
    assert explained.heads is not None
    assert explained.heads.gated.shape[1] == len(explained.heads.labels[0])
    assert explained.attention is not None
    assert len(explained.attention.maps) == explained.heads.gated.size >= layers * heads
    for weights in explained.attention.maps.values():
        assert weights.shape == (tokens, tokens)
        assert np.allclose(weights.sum(1), 1, atol=1e-4)
    assert explained.neuron is not None
    assert np.allclose(explained.neuron.attention, explained.attention.maps[0, 0][1], atol=1e-5)
    assert [found.layer for found in explained.geometry] == list(range(len(explained.heads.gated) + 1))
    for found in explained.geometry:
        assert found.golden == explained.geometry[0].golden
        assert found.points.shape == (len(explained.words), 2)
        assert (np.diff(found.cosines, axis=1) <= 0).all()
        assert all(len(dict(found.nearest_words(word))) == found.nearest.shape[1] for word in range(len(explained.words)))


def test_server_and_local_process_print_the_same(explained: Explanation, root: Path) -> None:
    with Local("tiny", bundles=(root,)) as local:
        here = local.explain(TEXT, options=EVERYTHING, timeout_s=PATIENCE_S)

    assert_same(here, explained)


def test_bertviz_draws_a_real_explanation(explained: Explanation) -> None:
    html = bertviz.model_view(**explained.to_bertviz(), html_action="return").data

    parameters, _ = json.JSONDecoder().raw_decode(html, html.index('{"attention": ['))
    attention = np.array(parameters["attention"][0]["attn"], np.float32)
    assert explained.attention is not None
    for (layer, head), weights in explained.attention.maps.items():
        assert np.array_equal(attention[layer, head], weights)


def test_a_pair_is_explained_with_both_texts(explaining: RunningServer) -> None:
    with explaining.client() as client:
        found = client.classify("good film", "bad end", explain=ExplainOptions(attribution=True, attention=AttentionOptions())).explanation

    assert found is not None
    assert [(word.text, word.pair) for word in found.words] == [("good", False), ("film", False), ("bad", True), ("end", True)]
    arguments = found.to_bertviz()
    assert arguments["tokens"][arguments["sentence_b_start"]].startswith("b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label": "meh"}, "label: is 'meh'"),
        ({"options": ExplainOptions(against="meh")}, "options.against: is 'meh'"),
        ({"options": ExplainOptions(methods=["magic"])}, r"options.methods\[0\]: is 'magic'"),
        ({"options": ExplainOptions(attention=AttentionOptions(layers=[99]))}, "99"),
    ],
)
def test_server_and_local_process_refuse_invalid_requests_alike(
    explaining: RunningServer, root: Path, arguments: dict[str, object], message: str
) -> None:
    with Local("tiny", bundles=(root,)) as local, explaining.client() as client:
        for explain in (local.explain, client.explain):
            with pytest.raises(CallFailed, match=message) as caught:
                explain(TEXT, **arguments)
            assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
            assert len(caught.value.violations) == 1


class Ending(pb_grpc.SentimentServiceServicer):
    """A server whose explanations end early: with a status, or without the summary."""

    def __init__(self, status: grpc.StatusCode | None, after: int) -> None:
        self.status, self.after, self.calls = status, after, 0

    def Explain(self, request: pb.ExplainRequest, context: grpc.ServicerContext) -> Iterator[pb.ExplainResponse]:  # noqa: N802  # gRPC's name
        self.calls += 1
        yield from messages(pb.ExplainResponse(attribution=attribution()))[: self.after]
        if self.status is not None:
            context.abort(self.status, "over")


def ended(servicer: Ending, **arguments: object) -> CallFailed:
    """How a client's explain fails."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    pb_grpc.add_SentimentServiceServicer_to_server(servicer, server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with Client(target, options=PLAIN) as client, pytest.raises(CallFailed) as caught:
            client.explain("x", **arguments)
    finally:
        server.stop(None).wait()
    return caught.value


def test_a_stream_without_its_summary_is_unavailable() -> None:
    failed = ended(Ending(None, 2))

    assert failed.code is grpc.StatusCode.UNAVAILABLE
    assert "ended before its summary" in failed.message


@pytest.mark.parametrize(("after", "calls"), [(0, 4), (1, 1)])
def test_an_explanation_is_retried_only_before_its_first_message(after: int, calls: int) -> None:
    """It says CANCELLED then; each of the two clients has 4 attempts."""
    servicer = Ending(grpc.StatusCode.CANCELLED, after)

    failed = ended(servicer)

    assert failed.code is grpc.StatusCode.UNAVAILABLE
    assert servicer.calls == calls


# sentiment explain


def test_the_output_says_what_moved_the_answer(capsys: Captured, where: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    asked = ["--method", "occlusion", "--method", "shapley", "--counterfactuals", "--heads", "--attention", "words", "--geometry"]
    assert run(TEXT, *where, *asked) == 0

    output = capsys.readouterr().out
    for part in (
        "explained: the logit of",
        "occlusion, in logits",
        "shapley, 20 orders",
        "evidence: ",
        "heads: ",
        "attention (words, u8",
        "geometry: ",
        "rows on",
    ):
        assert part in output
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize(("flags", "coloured"), [(["--color", "always"], True), ([], False)])
def test_colours_follow_the_option(capsys: Captured, where: list[str], flags: list[str], coloured: bool) -> None:
    assert run("good bad", *where, *flags) == 0

    assert ("\x1b[" in capsys.readouterr().out) == coloured


@pytest.mark.parametrize(
    ("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_gets_colours_unless_no_color_is_set(
    capsys: Captured, root: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], coloured: bool
) -> None:
    from sentiment.cli import terminal

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(terminal.sys.stdout, "isatty", lambda: True, raising=False)

    assert terminal.coloured("auto") == coloured
    assert terminal.coloured("always")
    assert not terminal.coloured("never")


def test_the_json_output_is_the_clients_to_json(capsys: Captured, where: list[str], explaining: RunningServer) -> None:
    assert run("caf\u00e9 \u9b5a \x9b good", *where, "--json", "--label", "negative") == 0

    line = capsys.readouterr().out
    assert "\x9b" not in line
    assert "caf\u00e9 \u9b5a" in line
    told = json.loads(line)
    assert told["explained"] == "negative"
    assert told["text"] == "caf\u00e9 \u9b5a \x9b good"
    with explaining.client() as client:
        found = client.explain(told["text"], label="negative", options=ExplainOptions(attribution=True)).to_json()
    assert {**told, "summary": None} == {**found, "summary": None}


def test_a_text_cannot_control_the_terminal(capsys: Captured, where: list[str]) -> None:
    assert run("good \x1b]0;owned\x07 \x9b2J film", *where, "--color", "always") == 0

    left = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    assert not set(left) & set("\x1b\x07\x9b")
    assert r"\x1b" in left


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--label", "meh"], 2, "error: INVALID_ARGUMENT: label: is 'meh'"),
        (["--against", "meh"], 2, "error: INVALID_ARGUMENT: options.against: is 'meh'"),
        (["--label", "positive", "--against", "positive"], 2, "error: --against and --label are both 'positive'; name two labels"),
        (["--method", "magic"], 2, "error: INVALID_ARGUMENT: options.methods[0]: is 'magic'"),
        (["--steps", "257"], 2, "error: INVALID_ARGUMENT: options.attribution.steps: is 257"),
        (["--steps", str(2**40)], 2, f"error: --steps {2**40}: "),
    ],
)
def test_a_refused_explanation_is_one_line_and_an_exit_code(
    capsys: Captured, where: list[str], flags: list[str], code: int, message: str
) -> None:
    assert run(TEXT, *where, *flags) == code

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1


def test_a_missing_server_is_reported_at_once(capsys: Captured) -> None:
    assert run(TEXT, "--target", "127.0.0.1:1", "--timeout", "0.5") == 1

    assert "no server answers at 127.0.0.1:1" in capsys.readouterr().err


def piped(where: list[str], texts: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sentiment", "explain", *where, "--method", "occlusion", *flags]
    return subprocess.run(command, input=texts, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_texts_of_standard_input_are_explained_one_after_the_other(where: list[str], tmp_path: Path) -> None:
    texts = f"{TEXT}\n\nthe end was good\n"
    as_json, as_text = piped(where, texts, "--json", "-"), piped(where, texts)

    first, second, third = (json.loads(line) for line in as_json.stdout.splitlines())
    assert ([word["text"] for word in first["words"]][:2], "error" in second) == (["the", "film"], True)
    assert [word["text"] for word in third["words"]] == ["the", "end", "was", "good"]
    assert (as_json.returncode, as_text.returncode) == (1, 1)
    assert "\ntext 2 has no explanation: INVALID_ARGUMENT: text: has 0 characters" in as_text.stdout
    assert (as_json.stderr, as_text.stderr) == ("", "")


@pytest.mark.parametrize(("texts", "has"), [("", "none"), ("good\nbad\n", "more")])
def test_a_page_takes_one_text_of_standard_input(texts: str, has: str, where: list[str], tmp_path: Path) -> None:
    ended = piped(where, texts, "-", "--html", str(tmp_path / "page.html"))

    assert (ended.returncode, ended.stderr) == (2, f"error: --html shows one text; standard input has {has}\n")
    assert list(tmp_path.iterdir()) == []


def test_the_command_knows_the_clients_aggregations_and_encodings() -> None:
    from sentiment.client.explain_options import AGGREGATIONS, ENCODINGS

    assert set(main.AGGREGATIONS) == set(AGGREGATIONS)
    for encoding in ENCODINGS:
        assert main._parser().parse_args(["explain", "x", "--encoding", encoding]).encoding == encoding


def test_the_default_bundle_explains_itself(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SENTIMENT_BUNDLES", raising=False)
    monkeypatch.setenv("COLUMNS", "80")

    assert run("The film was not good.", "--local", "--counterfactuals") == 0

    output = capsys.readouterr().out
    assert output.startswith("Negative, mostly because of “was not good”.\n\nnegative ")
    # Against the likeliest other label, which is neutral here.
    assert "-: towards neutral; +: towards negative" in output
    assert "not[+" in output
