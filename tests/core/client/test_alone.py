"""The Python client where nothing is installed but what ``pip install sentiment-service`` brings."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sentiment import extras
from tests.conftest import RunningServer

ROOT = Path(__file__).parents[3]
# By the names that are imported, with what each is installed by. grpcio itself needs typing_extensions.
BROUGHT = ("grpc", "google.protobuf", "google._upb", "google.rpc", "typing_extensions")
ALONE = f"""
import sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("sentiment", "sentiment_tools", "sentiment_viewer") or name == "google":
            return
        if not any(name == one or name.startswith(one + ".") for one in {BROUGHT}):
            raise ModuleNotFoundError(f"no module {{name}}", name=name)

sys.meta_path.insert(0, Refuses())
"""


def alone(script: str, *arguments: str) -> str:
    """What a script prints where only what the client brings can be imported; it must end with 0."""
    ran = subprocess.run([sys.executable, "-c", ALONE + script, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.smoke
def test_the_client_answers_with_grpc_and_protobuf_alone(server: RunningServer) -> None:
    script = """
import asyncio
from sentiment.client import *

async def labels(target):
    async with AsyncClient(target) as client:
        return [answer.label for answer in await client.classify(["good", "bad"])]

with Client(sys.argv[1]) as client:
    print(client.classify("a good film").label, len(client.classify(["good", "bad", None]).to_dict()["label"]))
    print(asyncio.run(labels(sys.argv[1])))
    print(model_json(client.get_model())["labels"], Explanation.__name__)
"""

    assert alone(script, server.target).splitlines() == [
        "positive 3",
        "['positive', 'negative']",
        "['negative', 'positive'] Explanation",
    ]


@pytest.mark.parametrize("call", ["client.explain('a good film')", "client.classify('a good film', explain=ExplainOptions())"])
def test_an_explanation_is_not_asked_for_where_numpy_cannot_read_it(call: str) -> None:
    script = f"""
from sentiment.client import Client, ExplainOptions
try:
    # Nothing listens there: the call is refused before it is made.
    with Client("127.0.0.1:1") as client:
        {call}
except ModuleNotFoundError as error:
    print(error)
"""

    assert alone(script) == "an explanation needs numpy, which is not installed: pip install numpy\n"


def test_a_command_without_its_packages_names_their_extra() -> None:
    script = """
import runpy
sys.argv = ["x", "--help"]
runpy.run_module("sentiment", run_name="__main__")
"""
    ran = subprocess.run([sys.executable, "-c", ALONE + script], capture_output=True, text=True, timeout=60, check=False)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: module ")
    assert ran.stderr.endswith(" is missing: run pip install 'sentiment-service[commands]'; to serve or run a model, [cpu] or [gpu]\n")


def test_local_without_its_packages_names_their_extra() -> None:
    script = "try:\n    from sentiment import Local\nexcept ModuleNotFoundError as error:\n    print(error)"

    assert alone(script).endswith(", which is not installed: pip install 'sentiment-service[cpu]', or [gpu]\n")


def test_the_modules_of_the_extra_are_those_of_its_packages() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = {wanted.partition(">=")[0] for wanted in (*extra["server"], *extra["commands"])} - {"sentiment-service[server]"}
    modules = {"grpcio-health-checking": "grpc_health", "grpcio-reflection": "grpc_reflection", "hdrhistogram": "hdrh"}

    assert {modules.get(package, package.replace("-", "_")) for package in packages} == extras.COMMANDS
