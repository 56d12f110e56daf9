"""The client and the service in the environments that others have: the oldest and the newest that the wheel accepts."""

import json
import random
from email.message import Message
from itertools import islice
from pathlib import Path

import pytest

from sentiment_tools.traffic.texts import clauses
from tests.conftest import RunningServer
from tests.core.interop.conftest import TRITONCLIENT
from tests.deploy.packaging.conftest import installed, requirements
from tests.english import ENGLISH
from tests.programs import run, serving

HERE = Path(__file__).parent
LABELS = ["positive", "negative", "positive"]
# Of what serves. The client's oldest protobuf is 6.33.5, for which its code is generated.
OLDEST = ("protobuf<7", "tokenizers<0.22")
# Letters that tokenizers cut, join or drop, each in its own way.
ODD = (
    "abcXYZ .,!?'-\u00e9e\u0301\u00df\u6f22\u5b57\u304b\u306a\uae30\u0438\u0306\u200d\ufe0f"
    "\U0001f600\u00a0\u2028\t\x00\ufffd\u0130\u0131\ufb01\u2460\u00bd"
)


def told(python: Path, server: RunningServer, first: str) -> dict[str, object]:
    """What the client got there, and tritonclient where it is installed; nothing else of ours is installed."""
    found = json.loads(run(python, HERE / "beside.py", server.target, first))
    assert found["ours"] == {
        "labels": LABELS, "batch": LABELS, "asynchronous": LABELS, "refused": "text", "model": "tiny", "ready": True
    }  # fmt: skip
    assert found["thin"]
    return found


@pytest.mark.parametrize("first", ["tritonclient.grpc", "sentiment.client"])
def test_the_client_and_tritonclient_answer_in_one_process(
    wheel: Path, metadata: Message, server: RunningServer, clean: Path, first: str
) -> None:
    triton = TRITONCLIENT[0].replace(",http", "")
    python = installed("beside-tritonclient", [*requirements(metadata), triton, "protobuf==6.33.5"], wheel)

    found = told(python, server, first)

    assert (found["protobuf"], found["triton"]) == ("6.33.5", LABELS)


def test_the_client_alone_answers_with_protobuf_7(wheel: Path, metadata: Message, server: RunningServer, clean: Path) -> None:
    python = installed("client", [*requirements(metadata), "protobuf>=7.36"], wheel)

    found = told(python, server, "sentiment.client")

    assert (str(found["protobuf"]).partition(".")[0], found["triton"]) == ("7", None)


@pytest.fixture(scope="session")
def oldest(wheel: Path, metadata: Message, bundle_wheel: Path) -> Path:
    """The Python of an environment with the oldest protobuf and tokenizers that serve."""
    return installed("packaging-oldest", [*requirements(metadata, "cpu"), *OLDEST], wheel, bundle_wheel)


def test_the_oldest_packages_serve(oldest: Path, clean: Path) -> None:
    with serving([oldest.with_name("sentiment")]) as ready:
        out = run(oldest.with_name("sentiment"), "classify", "--target", str(ready["grpc"]), "a gripping, beautifully shot film", "awful")

    assert [line.split()[0] for line in out.splitlines()] == ["positive", "negative"]


def test_the_oldest_and_the_newest_tokenizers_read_every_text_alike(oldest: Path, program: Path, clean: Path, tmp_path: Path) -> None:
    rng = random.Random(20)
    texts = [
        *("".join(islice(clauses(rng), 1 + n % 30)) for n in range(600)),
        *("".join(rng.choices(ODD, k=rng.randrange(90))) for _ in range(3000)),
    ]
    file = tmp_path / "texts.json"
    file.write_text(json.dumps(texts))

    arguments = [HERE / "reading.py", ENGLISH / "tokenizer.json", file]
    (old, read_by_old), (new, read_by_new) = (json.loads(run(python, *arguments)) for python in (oldest, program.with_name("python")))

    assert (old.startswith("0.21."), new >= "0.23") == (True, True)
    assert [text for text, one, other in zip(texts, read_by_old, read_by_new, strict=True) if one != other] == []
