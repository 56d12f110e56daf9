"""``sentiment-batch`` from and to S3, as the page of examples shows it, on moto's S3."""

import json
import os
import re
import shlex
from pathlib import Path

from tests.docs.examples.conftest import ROOT, running
from tests.programs import free_port, run

PAGE = ROOT / "docs/guide/examples.md"
FILL = """
import fsspec
s3 = fsspec.filesystem("s3")
s3.mkdir("reviews"), s3.mkdir("scores")
s3.pipe("reviews/2026/a.csv", b"id,review\\n1,a good film\\n2, \\n")
s3.pipe("reviews/2026/b.csv", b"id,review\\n3,awful\\n")
"""
READ = """
import fsspec, json
from pyarrow import dataset
s3 = fsspec.filesystem("s3")
rows = dataset.dataset("scores/2026", filesystem=s3, format="parquet").to_table().to_pylist()
print(json.dumps([[row["id"], row["label"], row["file"], row["error"]] for row in rows]))
print(json.dumps(json.loads(s3.cat("scores/2026/_report.json"))))
"""


def test_the_command_of_the_page_reads_and_writes_s3(python: Path, bundles: Path) -> None:
    (command,) = re.findall(r"^sentiment-batch s3://.*$", PAGE.read_text(), re.MULTILINE)
    port = free_port()
    env = {
        **os.environ,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
    }

    with running([python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port):
        run(python, "-c", FILL, env=env)
        arguments = [*shlex.split(command)[1:], "--model", "tiny", "--bundles", bundles, "--workers", "1"]
        run(python, "-m", "sentiment_tools.corpus", *arguments, env=env)
        rows, report = run(python, "-c", READ, env=env).splitlines()

    assert [row[:2] for row in json.loads(rows)] == [["1", "positive"], ["2", None], ["3", "negative"]]
    assert [row[2].rpartition("/")[2] for row in json.loads(rows)] == ["a.csv", "a.csv", "b.csv"]
    assert json.loads(rows)[1][3].startswith("INVALID_ARGUMENT: text: has 1 characters")
    assert (json.loads(report)["rows"], json.loads(report)["bad"]) == (3, 1)
