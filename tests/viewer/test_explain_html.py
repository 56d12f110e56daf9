"""``sentiment explain --html``: the page is complete, or it is not written."""

import json
import os
import re
from pathlib import Path
from typing import Any

import grpc
import onnx
import pytest

from sentiment.cli import main
from sentiment.cli.explain import BYTES_FIELD, _within_limit
from sentiment.client import AttentionOptions, CallFailed, ExplainOptions, Explanation, Violation
from sentiment.settings import Settings
from tests.conftest import RunningServer
from tests.core.client.test_explanations import explained
from tests.models.tampered import change_graph, copy

Captured = pytest.CaptureFixture[str]
TEXT = "the film was </script> not good at all, but i liked the end"


@pytest.fixture(scope="module")
def root(paired: RunningServer) -> Path:
    """The folder of its bundles."""
    return paired.settings.bundles[0]


@pytest.fixture(params=["server", "local"])
def where(request: pytest.FixtureRequest, root: Path, paired: RunningServer) -> list[str]:
    return ["--target", paired.target] if request.param == "server" else ["--local", "--bundles", str(root), "--model", "tiny"]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """What a page has to show."""
    found = re.search(r'<script type="application/x-ndjson" id="explanation">\n(.*?)\n</script>', path.read_text(), re.DOTALL)
    assert found
    return [json.loads(line) for line in found[1].split("\n")]


def kinds_of(lines: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(kind for line in lines for kind in line))


@pytest.mark.smoke
def test_the_page_contains_all_views(capsys: Captured, where: list[str], tmp_path: Path) -> None:
    path = tmp_path / "page.html"

    assert main.main(["explain", TEXT, *where, "--html", str(path)]) == 0

    assert capsys.readouterr().out == f"{path}: {path.stat().st_size:,} bytes\n"
    assert os.listdir(tmp_path) == ["page.html"]
    page, *lines = lines_of(path)
    assert page["page"]["text"] == TEXT
    assert page["page"]["model"]["card"].startswith("# A card </script>")
    methods = ["integrated_gradients", "gradient_x_input", "occlusion", "shapley", "two_step_shapley"]
    assert page["page"]["model"]["explanation_methods"] == methods
    explained = ["attribution", "evidence", "deciding", "reason", "counterfactual"]
    assert kinds_of(lines) == ["header", "tile", "neuron", *explained, "geometry", "heads", "summary"]
    heads = next(line["heads"] for line in lines if "heads" in line)
    (neuron,) = [line["neuron"] for line in lines if "neuron" in line]
    assert (neuron["layer"], neuron["head"], neuron["token"]) == (heads["layers"] - 1, 0, 0)
    assert [line["geometry"].get("layer", 0) for line in lines if "geometry" in line] == list(range(heads["layers"] + 1))
    tiles = [line["tile"] for line in lines if "tile" in line]
    assert {(tile["layer"], tile["head"]) for tile in tiles} == {
        (layer, head) for layer in range(heads["layers"]) for head in range(heads["heads"])
    }
    assert {tile["encoding"] for tile in tiles} == {"ATTENTION_ENCODING_U8"}
    assert lines[-1]["summary"]["complete"] is True


def test_the_page_contains_the_requested_parts(where: list[str], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    wanted = ["--method", "occlusion", "--neuron", "0,1,2", "--attention", "words", "--attention-encoding", "fp16", "--pair", "bad end"]

    assert main.main(["explain", TEXT, *where, "--html", str(path), *wanted]) == 0

    page, *lines = lines_of(path)
    assert page["page"]["text_pair"] == "bad end"
    assert [line["attribution"]["method"] for line in lines if "attribution" in line] == ["occlusion"]
    assert [(told["layer"], told["head"], told["token"]) for told in (line["neuron"] for line in lines if "neuron" in line)] == [(0, 1, 2)]
    assert {(line["tile"]["aggregation"], line["tile"]["encoding"]) for line in lines if "tile" in line} == {
        ("ATTENTION_AGGREGATION_WORDS", "ATTENTION_ENCODING_FP16")
    }


def test_a_model_without_an_explain_graph_gets_a_page_with_its_parts(server: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "page.html"

    assert main.main(["explain", "good and bad", "--target", server.target, "--html", str(path)]) == 0

    assert kinds_of(lines_of(path)[1:]) == ["header", "attribution", "evidence", "reason", "counterfactual", "summary"]


@pytest.fixture
def older(root: Path, tmp_path: Path) -> list[str]:
    """A bundle whose explain graph has no hidden states, as earlier releases export it."""
    bundle = copy(root / "tiny" / "1", tmp_path / "older")

    def change(model: onnx.ModelProto) -> None:
        kept = [output for output in model.graph.output if not output.name.startswith("hidden.")]
        assert len(kept) < len(model.graph.output)
        del model.graph.output[:]
        model.graph.output.extend(kept)

    change_graph(bundle, "explain.onnx", change)
    return ["--local", "--bundles", str(bundle.parents[1]), "--model", "tiny"]


def test_a_graph_without_hidden_states_gets_a_page_without_geometry(older: list[str], tmp_path: Path) -> None:
    path = tmp_path / "page.html"

    assert main.main(["explain", TEXT, *older, "--html", str(path)]) == 0

    lines = lines_of(path)[1:]
    assert kinds_of(lines) == [
        "header",
        "tile",
        "neuron",
        "attribution",
        "evidence",
        "deciding",
        "reason",
        "counterfactual",
        "heads",
        "summary",
    ]
    assert lines[-1]["summary"]["complete"] is True


@pytest.mark.parametrize("flags", [[], ["--html", "page.html"], ["--json"]])
def test_geometry_that_was_asked_for_needs_hidden_states(
    capsys: Captured, older: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main.main(["explain", TEXT, *older, "--geometry", *flags]) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: FAILED_PRECONDITION: geometry needs an explain graph with hidden states; ")
    assert captured.err.count("\n") == 1
    assert os.listdir(tmp_path) == ["older"]


def test_attention_over_the_servers_limit_is_left_out_with_a_note(root: Path, settings: Settings, tmp_path: Path) -> None:
    running = RunningServer(settings.model_copy(update={"bundles": (root,), "explain_bytes_max": 2**16}))
    path = tmp_path / "page.html"
    try:
        code = main.main(["explain", "good bad " * 100, "--target", running.target, "--html", str(path), "--attention-encoding", "fp32"])
    finally:
        running.stop()

    assert code == 0
    lines = lines_of(path)[1:]
    kinds = ["header", "neuron", "attribution", "evidence", "deciding", "reason", "counterfactual", "geometry", "heads", "summary"]
    assert kinds_of(lines) == kinds
    summary = lines[-1]["summary"]
    assert summary["complete"] is False
    assert any(
        note.startswith("attention was left out: options.bytes_max is 65536; this explanation can take") for note in summary["notes"]
    )


@pytest.mark.parametrize("droppable", [["attention"], ["attention", "geometry"]])
def test_what_a_page_can_do_without_is_left_out_one_after_the_other(droppable: list[str]) -> None:
    asked: list[tuple[bool, bool]] = []

    def ask(options: ExplainOptions) -> Explanation:
        asked.append((options.attention is not None, options.geometry))
        if options.geometry:
            raise CallFailed(grpc.StatusCode.INVALID_ARGUMENT, "", [Violation(BYTES_FIELD, f"is {len(asked)}")])
        return explained()

    options = ExplainOptions(attention=AttentionOptions(), geometry=True)
    if len(droppable) == 1:
        with pytest.raises(CallFailed):
            _within_limit(options, droppable, ask)
    else:
        notes = _within_limit(options, droppable, ask).summary.notes
        assert notes[-2:] == ("geometry was left out: options.bytes_max is 2", "attention was left out: options.bytes_max is 1")
    assert asked == [(True, True), (False, True), (False, False)][: len(droppable) + 1]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--json"], 2, "error: --html and --json cannot both be given"),
        (["--label", "meh"], 2, "error: INVALID_ARGUMENT: label: is 'meh'"),
        (["--neuron", "9,0,0"], 2, "error: INVALID_ARGUMENT: options.neuron.layer: is 9"),
    ],
)
def test_a_failure_leaves_no_file(capsys: Captured, where: list[str], tmp_path: Path, flags: list[str], code: int, message: str) -> None:
    assert main.main(["explain", TEXT, *where, "--html", str(tmp_path / "page.html"), *flags]) == code

    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith(message)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("flags", [["--sentences"], ["--targets", "film"]])
def test_parts_without_a_page_are_refused(capsys: Captured, flags: list[str]) -> None:
    assert main.main(["explain", TEXT, "--target", "127.0.0.1:1", *flags]) == 2

    assert capsys.readouterr().err == "error: --sentences and --targets need --html here; sentiment classify prints them\n"


@pytest.mark.parametrize("place", ["nosuch/page.html", ".", "file/page.html"])
def test_an_unwritable_path_fails_before_the_request(capsys: Captured, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")

    assert main.main(["explain", TEXT, "--target", "127.0.0.1:1", "--html", place]) == 1

    error = capsys.readouterr().err
    assert place in error
    assert "127.0.0.1:1" not in error


@pytest.mark.parametrize("value", ["1,2", "1,2,3,4", "a,b,c", "-1,0,0", f"{2**31},0,0", ""])
def test_an_invalid_neuron_is_a_usage_error(capsys: Captured, value: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(["explain", TEXT, f"--neuron={value}"])

    assert caught.value.code == 2
    assert "must be three numbers from 0" in capsys.readouterr().err


def test_a_neuron_view_is_printed(capsys: Captured, where: list[str]) -> None:
    assert main.main(["explain", TEXT, *where, "--neuron", "1,0,0"]) == 0

    assert "neuron view: where token 0 ([CLS]) looks in layer 1, head 0" in capsys.readouterr().out
