"""The model of 0.1.0: the command of docs/operate/upgrade.md makes its wheel from the repository's history, and this version answers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sentiment import Local

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operate/upgrade.md").read_text(encoding="utf-8")
TEXTS = {"a gripping, beautifully shot film": "positive", "The battery died after two days, avoid it.": "negative"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the command ran."""
    found = re.search(r"^mkdir .*git archive (\w+) .*$", PAGE, re.MULTILINE)
    assert found
    environment = {**os.environ, "GIT_DIR": str(ROOT / ".git"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    asked = subprocess.run(["git", "cat-file", "-e", f"{found[1]}:models"], env=environment, capture_output=True, check=False)
    if asked.returncode:
        pytest.skip(f"the history has no commit {found[1]}, as in a shallow clone")
    made = tmp_path_factory.mktemp("upgrade")
    subprocess.run(["bash", "-euo", "pipefail", "-c", found[0]], cwd=made, env=environment, check=True)
    return made


def test_the_model_of_0_1_0_comes_out_of_the_history_and_answers_with_its_two_labels(folder: Path) -> None:
    with Local("english/1", bundles=folder / "build/models/bundles", threads=1) as local:
        answers = {text: local.classify(text) for text in TEXTS}
        described = local.get_model()

    assert {text: answer.label for text, answer in answers.items()} == TEXTS
    assert {tuple(answer.scores) for answer in answers.values()} == {("negative", "positive")}
    assert (list(described.labels), described.mixed, described.targets) == (["negative", "positive"], False, False)
    digest = re.search(r"digest of the old model starts with `(\w+)`", PAGE)
    assert digest
    assert {answer.model.digest[: len(digest[1])] for answer in answers.values()} == {digest[1]}
    assert [path.name for path in (folder / "dist").iterdir()] == ["sentiment_bundle_english-1-py3-none-any.whl"]
