"""The examples of README and of the pages under docs/ do what they show, against real servers at other addresses."""

import argparse
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sentiment.cli.main import _parser
from sentiment.model.bundle import CHECKOUT_BUNDLES
from sentiment_models.cli import _parser as models_parser
from sentiment_tools.commands.batch import _parser as batch_parser
from tests.conftest import RunningServer
from tests.core.interop.foreign import ROOT, run
from tests.core.security.authorities import Authority
from tests.tiny import make_bundle

PAGES = [ROOT / "README.md", *sorted(page for folder in ("guide", "operate") for page in (ROOT / "docs" / folder).glob("*.md"))]
# A page, a block's language and its text; the same text on two pages once.
BLOCKS = list(
    {
        (language, text): (page, language, text)
        for page in PAGES
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    }.values()
)
TOKEN = "an-example-s-token"
# What a block needs beside the server that all tests share.
TRITON, SECURED, EXPLAINED, JOURNALLED = "import tritonclient", "Credentials(", ".explain(", ".feedback("
TABLED = ".to_pandas("
TARGETED = "targets=["
# Run by tests/core/client/test_guide.py, which runs that whole page.
GUIDED = "import AsyncClient"
# What runs the model in the process.
UNSERVED = ("import Local", "sentiment.sklearn")


def python_examples(*needs: str) -> list[str]:
    """The blocks in Python with one of these words; without any, those that need nothing."""
    python = [text for _, language, text in BLOCKS if language == "python"]
    special = (TRITON, SECURED, EXPLAINED, JOURNALLED, TABLED, TARGETED, GUIDED)
    if needs != UNSERVED:
        python = [text for text in python if not any(word in text for word in UNSERVED)]
    return [text for text in python if (any(need in text for need in needs) if needs else not any(need in text for need in special))]


def at(server: RunningServer, text: str) -> str:
    """An example for this server."""
    assert re.search(r"(127\.0\.0\.1|localhost):(50051|8080)", text)
    port, http_port = server.target.rpartition(":")[2], server.url.rpartition(":")[2]
    return text.replace(":50051", f":{port}").replace(":8080", f":{http_port}")


def lines() -> list[str]:
    """What is typed in a shell on these pages; a command of several lines as one."""
    shell = "\n".join(text for _, language, text in BLOCKS if language in ("", "sh", "shell", "console")).replace("\\\n", " ")
    return list(dict.fromkeys(line.removeprefix("$ ").strip() for line in shell.splitlines()))


def commands(program: str, server: RunningServer) -> list[list[str]]:
    """The commands that begin so and stand by themselves, for this server; at least one."""
    found = [shlex.split(at(server, line)) for line in lines() if line.startswith(program)]
    assert found, f"no page shows {program}"
    return found


def each(examples: list[str]) -> pytest.MarkDecorator:
    assert examples, "no page has such an example"
    return pytest.mark.parametrize("text", examples)


@each(python_examples())
def test_python(text: str, server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "reviews.txt").write_text("great\nawful\n")

    said = run([sys.executable, "-c", at(server, text)], tmp_path)

    first, *rest = said.splitlines()
    assert first.split()[-1] in ("True", "False") or first.startswith("TextClassificationOutputElement(label='positive', score=")
    assert re.findall(r"label='(\w+)'", "\n".join(rest)) == (["positive", "negative"] * 2 if "classify_all" in text else [])


@each(python_examples(EXPLAINED))
def test_python_explains(text: str, start: Callable[..., RunningServer], tmp_path: Path) -> None:
    server = start(bundles=(CHECKOUT_BUNDLES,), model="english")
    # A busy machine may take longer than the client's default of 30 s.
    code = at(server, text).replace("options=asked)", "options=asked, timeout_s=240)")
    verdict = r"^(BETTER_THAN_RANDOM|INCONCLUSIVE|NOT_FAITHFUL|FLAT)$"

    said = run([sys.executable, "-c", code], tmp_path)

    assert re.search(r"^\(\('good', 0\.\d+\), \('" if "geometry" in text else verdict, said, re.MULTILINE)


@each(python_examples(*UNSERVED))
def test_python_without_a_server(text: str, tmp_path: Path) -> None:
    assert "positive" in run([sys.executable, "-c", text], tmp_path)


@pytest.fixture
def targeted(start: Callable[..., RunningServer], tmp_path: Path) -> RunningServer:
    """A server whose model answers targets."""
    return start(bundles=(make_bundle(tmp_path / "bundles", three=True).parents[1],))


@each(python_examples(TARGETED))
def test_python_with_targets(text: str, targeted: RunningServer, tmp_path: Path) -> None:
    first, second, whole, *_ = run([sys.executable, "-c", at(targeted, text)], tmp_path).splitlines()

    assert first.endswith(" Great food. 0 11")
    assert second.endswith(" The waiter was rude. 12 32")
    assert whole.split()[-1] == "False"


@each([text for text in python_examples(TABLED) if TARGETED not in text])
def test_python_with_a_table(text: str, server: RunningServer, tmp_path: Path) -> None:
    first, _, *rows = run([sys.executable, "-c", at(server, text)], tmp_path).splitlines()

    assert first == "Results(3 texts: 1 negative, 1 positive, 1 failed)"
    assert [row.split()[0] + row.split()[-2] for row in rows] == ["7positive", "8negative", "9<NA>"]


@each(python_examples(JOURNALLED))
def test_python_with_a_journal(text: str, start: Callable[..., RunningServer], tmp_path: Path) -> None:
    server = start(journal=str(tmp_path / "journal"))

    assert run([sys.executable, "-c", at(server, text)], tmp_path) == "positive False\n"


@pytest.fixture
def secured(start: Callable[..., RunningServer], tmp_path: Path) -> RunningServer:
    """A server with TLS and a token, whose client's files lie in ``tmp_path`` under the names that the examples use."""
    authority = Authority("ours")
    pair = authority.sign()
    files = {"ca.crt": authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key, "token.txt": TOKEN.encode()}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    tls = {"tls_cert_file": str(tmp_path / "tls.crt"), "tls_key_file": str(tmp_path / "tls.key"), "health_listen": ""}
    return start(**tls, auth_tokens=str(tmp_path / "token.txt"))


@each(python_examples(SECURED))
def test_python_with_tls_and_a_token(text: str, secured: RunningServer, tmp_path: Path) -> None:
    code = at(secured, text).replace("    ...", '    print(client.classify("a good film").label)')

    assert run([sys.executable, "-c", code], tmp_path) == "positive\n"


@pytest.mark.needs_tool("curl")
def test_curl_with_tls_and_a_token(secured: RunningServer, tmp_path: Path) -> None:
    found = [at(secured, line) for line in lines() if line.startswith("curl --cacert")]

    assert found
    for line in found:
        assert '"label":"positive"' in run(["bash", "-c", line], tmp_path).replace(" ", "")


@each(python_examples(TRITON))
def test_tritonclient(text: str, server: RunningServer, tritonclient: Path) -> None:
    assert run([tritonclient, "-c", at(server, text).replace('"english"', '"tiny"')]) == "[b'positive']\n"


@pytest.mark.needs_tool("node")
@pytest.mark.needs_tool("proto-loader-gen-types")
def test_node(server: RunningServer) -> None:
    (text,) = [text for _, language, text in BLOCKS if language == "js"]

    assert run(["node", "-e", at(server, text)]) == "positive\n"


@pytest.mark.needs_tool("curl")
def test_curl(targeted: RunningServer) -> None:
    found = [at(targeted, line).replace("/models/english/", "/models/tiny/") for line in lines() if line.startswith("curl -s -d")]

    assert found
    for line in found:
        said = run(["bash", "-c", line]).replace(" ", "")
        if said.startswith('{"error":'):
            # An example of what a wrong request gets.
            assert '"tail"' in line or '""' in line
        else:
            assert '"label":"positive"' in said or '"data":["positive",' in said or '"reason":{"text":"' in said


@pytest.mark.needs_tool("buf")
def test_buf_curl_through_reflection(server: RunningServer) -> None:
    for command in commands("buf curl --http2-prior-knowledge", server):
        assert '"label":"positive"' in run(list(command)).replace(" ", "")


@pytest.mark.needs_tool("perf_analyzer")
def test_perf_analyzer(server: RunningServer) -> None:
    shorter = ["--concurrency-range", "2", "--request-count", "50"]
    labels = {"method": "ModelInfer", "code": "OK", "model": "tiny/1"}
    for command in commands("perf_analyzer ", server):
        before = server.metric("sentiment_requests_total", **labels)

        said = run(["tiny" if word == "english" else word for word in command[: command.index("--concurrency-range")]] + shorter)

        assert "Throughput" in said
        assert server.metric("sentiment_requests_total", **labels) >= before + 50


def typed() -> list[str]:
    """Every command of ours, without the variables before it and what follows ``&&`` or ``|``."""
    program = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:\.venv(?:-dev)?/bin/)?(sentiment(?:-batch|-models)? [^&|]*)")
    return [found[1] for line in lines() if (found := program.match(line))]


@each(typed())
def test_the_command_line_takes_every_command(text: str) -> None:
    program, *arguments = shlex.split(text, comments=True)
    parsers: dict[str, Callable[[], argparse.ArgumentParser]] = {
        "sentiment": _parser,
        "sentiment-batch": batch_parser,
        "sentiment-models": lambda: models_parser(arguments[0]),
    }

    parsers[program]().parse_args(arguments)


def test_every_example_in_python_is_run() -> None:
    run_here = python_examples() + python_examples(EXPLAINED, SECURED, TRITON, JOURNALLED, TABLED, GUIDED) + python_examples(*UNSERVED)

    assert sorted(run_here) == sorted(text for _, language, text in BLOCKS if language == "python")
