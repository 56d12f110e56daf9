"""The Streamlit page, run by Streamlit's own test driver."""

import json
import os
from pathlib import Path

from tests.conftest import RunningServer
from tests.docs.examples.conftest import EXAMPLES
from tests.programs import run


def test_the_page_answers_explains_and_classifies_a_file(server: RunningServer, python: Path, tmp_path: Path, awake: None) -> None:
    (tmp_path / "reviews.csv").write_text("review,label\na good film,old\n,old\nawful,old\n")
    session = Path(__file__).with_name("dashboard_session.py")
    environment = {**os.environ, "SENTIMENT_TARGET": server.target}

    out = run(python, session, EXAMPLES / "dashboard.py", tmp_path / "reviews.csv", env=environment)

    shown = json.loads(out.splitlines()[-1])
    assert (shown["label"], shown["score"]) == ("Positive", "88.1%")
    assert shown["evidence"][0].startswith("occlusion; evidence: ")
    assert [row["label_found"] for row in shown["table"]] == ["positive", None, "negative"]
    assert shown["table"][1]["error"] == "INVALID_ARGUMENT: text: is missing (nan)"
    assert shown["errors"][0].startswith("No answer: UNAVAILABLE: ")
