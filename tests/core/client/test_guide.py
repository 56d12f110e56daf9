"""The examples of the Python guide run as they stand."""

import re
from pathlib import Path

import pytest

from sentiment import sklearn
from sentiment.client import Classification
from sentiment.model.bundle import CHECKOUT_BUNDLES
from tests.conftest import RunningServer

GUIDE = CHECKOUT_BUNDLES.parents[1] / "docs/guide/python-client.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
# It only shows arguments: the server of the tests has no TLS.
OF_TLS = "ca_file="


@pytest.mark.parametrize("example", [one for one in EXAMPLES if OF_TLS not in one], ids=lambda example: example.splitlines()[0])
def test_an_example_runs(
    example: str,
    documented: RunningServer,
    bundles: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SENTIMENT_BUNDLES", str(bundles))
    monkeypatch.setenv("SENTIMENT_MODEL", "tiny")
    monkeypatch.chdir(tmp_path)
    Path("reviews.txt").write_text("a good film\n\nawful\n", encoding="utf-8")
    sklearn._opened.cache_clear()

    exec(compile(example.replace("127.0.0.1:50051", documented.target), str(GUIDE), "exec"), {"__name__": "__main__"})

    sklearn._opened.cache_clear()
    assert capsys.readouterr().out


def test_each_line_of_a_file_has_a_result_in_order(documented: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "reviews.txt"
    path.write_bytes(b"a good film\n\nawful\r\n")

    with documented.client() as client, path.open(encoding="utf-8") as lines:
        found = [one.label if isinstance(one, Classification) else one.code.name for one in client.classify_all(lines)]

    assert found == ["positive", "INVALID_ARGUMENT", "negative"]
