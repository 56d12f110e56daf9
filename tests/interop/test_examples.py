"""The README's examples do what they show, against a real server at another address."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.conftest import RunningServer
from tests.interop.foreign import ROOT, run

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def example(language: str, with_words: str, server: RunningServer) -> str:
    """The one example in a language with these words, for a server."""
    (found,) = [text for kind, text in BLOCKS if kind == language and with_words in text]
    assert re.search(r"127\.0\.0\.1:(50051|8080)", found)
    return found.replace("127.0.0.1:50051", server.target).replace("http://127.0.0.1:8080", server.url)


def commands(program: str, server: RunningServer) -> list[list[str]]:
    """The commands of a program that stand by themselves in the README."""
    lines = "\n".join(text for kind, text in BLOCKS if not kind).replace("\\\n", " ").splitlines()
    found = [line for line in lines if line.startswith(program)]
    return [shlex.split(line.replace("127.0.0.1:50051", server.target).replace("http://127.0.0.1:8080", server.url)) for line in found]


def test_python(server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "reviews.txt").write_text("great\nawful\n")

    said = run([sys.executable, "-c", example("python", "classify_all", server)], tmp_path)

    first, *rest = said.splitlines()
    assert first.split()[3] in ("True", "False")
    assert re.findall(r"label='(\w+)'", "\n".join(rest)) == ["positive", "negative"] * 2


def test_tritonclient(server: RunningServer, tritonclient: Path) -> None:
    code = example("python", "tritonclient", server).replace('"english"', '"tiny"')

    assert run([tritonclient, "-c", code]) == "[b'positive']\n"


@pytest.mark.needs_tool("node")
@pytest.mark.needs_tool("proto-loader-gen-types")
def test_node(server: RunningServer) -> None:
    assert run(["node", "-e", example("js", "grpc-js", server)]) == "positive\n"


@pytest.mark.needs_tool("curl")
def test_curl(server: RunningServer) -> None:
    (command,) = commands("curl -s -d", server)

    assert '"label":"positive"' in run(list(command)).replace(" ", "")


@pytest.mark.needs_tool("buf")
def test_buf_curl_through_reflection(server: RunningServer) -> None:
    (command,) = commands("buf curl --http2-prior-knowledge", server)

    assert '"label":"positive"' in run(list(command)).replace(" ", "")


@pytest.mark.needs_tool("perf_analyzer")
def test_perf_analyzer(server: RunningServer) -> None:
    (command,) = commands("perf_analyzer ", server)
    shorter = ["--concurrency-range", "2", "--request-count", "50"]

    said = run(["tiny" if word == "english" else word for word in command[: command.index("--concurrency-range")]] + shorter)

    assert "Throughput" in said
