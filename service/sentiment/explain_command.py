"""``sentiment explain``: one text in, its explanation out, from a server or in this process."""

import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from sentiment.classify import connected
from sentiment.client import ExplainOptions, Explanation
from sentiment.explain_page import page

# What json.dumps leaves as it is and a terminal may obey, and directions of writing: in a JSON string, an escape says the same.
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class ExplainJob:
    """What the command line asked for. ``color``: auto, always or never."""

    text: str
    text_pair: str | None
    label: str
    options: ExplainOptions
    target: str
    model: str
    truncation: str
    timeout_s: float
    json: bool
    local: bool
    color: str
    bundles: tuple[Path, ...] = ()


def explain(job: ExplainJob) -> None:
    """Explain the job's text and print it.

    Raises:
        SentimentError: there is no explanation.
    """
    explanation = _explanation(job)
    if job.json:
        text = json.dumps(explanation.to_json(), ensure_ascii=False, allow_nan=False)
        _show(_OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
    else:
        _show(page(explanation, colour=coloured(job.color), width=shutil.get_terminal_size().columns))


def coloured(color: str) -> bool:
    """Whether to draw in colours. auto: on a terminal that has them, unless NO_COLOR is set (no-color.org)."""
    if color != "auto":
        return color == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _explanation(job: ExplainJob) -> Explanation:
    if job.local:
        from sentiment.local import LocalClassifier  # noqa: PLC0415  # the client's way needs no model runtime

        with LocalClassifier(job.model, job.bundles) as local:
            return local.explain(
                job.text, job.text_pair, label=job.label, options=job.options, truncation=job.truncation, timeout_s=job.timeout_s
            )
    with connected(job.target, job.model, job.timeout_s) as client:
        return client.explain(
            job.text,
            job.text_pair,
            model=job.model,
            label=job.label,
            options=job.options,
            truncation=job.truncation,
            timeout_s=job.timeout_s,
        )


def _show(text: str) -> None:
    # What standard output has no bytes for is shown as an escape.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
