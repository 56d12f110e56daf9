"""The Streamlit page, run by Streamlit's own test driver."""

import json
import os
import subprocess
from pathlib import Path

from tests.conftest import RunningServer
from tests.docs.examples.conftest import EXAMPLES


def test_the_page_answers_explains_and_classifies_a_file(server: RunningServer, python: Path, tmp_path: Path, awake: None) -> None:
    (tmp_path / "reviews.csv").write_text("review,label\na good film,old\n,old\nawful,old\n")
    command = [python, Path(__file__).with_name("dashboard_session.py"), EXAMPLES / "dashboard.py", tmp_path / "reviews.csv"]

    environment = {**os.environ, "SENTIMENT_TARGET": server.target}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment)

    assert ran.returncode == 0, ran.stderr
    shown = json.loads(ran.stdout.splitlines()[-1])
    assert (shown["label"], shown["score"]) == ("Positive", "88.1%")
    assert shown["evidence"][0].startswith("occlusion; evidence: ")
    assert [row["label_found"] for row in shown["table"]] == ["positive", None, "negative"]
    assert shown["table"][1]["error"] == "INVALID_ARGUMENT: text: is missing (nan)"
    assert shown["errors"][0].startswith("No answer: UNAVAILABLE: ")
