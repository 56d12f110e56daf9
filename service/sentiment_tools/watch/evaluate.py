"""``sentiment evaluate``: answers the labelled texts of a file in this process and says how good the answers are."""

import json
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from sentiment.files.errors import BadFile
from sentiment.files.output import new_file, refuse_same_file
from sentiment.files.reading import Reading
from sentiment.offline import OfflineClassifier
from sentiment_tools.watch.evaluation import Evaluation, json_of, text_of
from sentiment_tools.watch.journal import is_journal
from sentiment_tools.watch.texts import TextSource


@dataclass(frozen=True, slots=True)
class Task:
    """The arguments of the command. ``pair``: the column of second texts, empty for none; ``labels``: that of right labels."""

    input: Path
    reading: Reading
    pair: str
    labels: str
    model: str
    bundles: tuple[Path, ...]
    truncation: str
    json: Path | None


def evaluate(task: Task, advance: Callable[[], None]) -> str:
    """Run the command; returns what to print.

    Args:
        task: the arguments.
        advance: called for each labelled text that was answered.

    Raises:
        BadSettings: a column has no such name.
        BadFile: the input cannot be read or has no labelled text, or the output cannot be written.
        BadBundle: the bundle cannot be run.
    """
    refuse_same_file(input=task.input, json=task.json)
    # A pipe is read once.
    if (task.input.is_file() or task.input.is_dir()) and is_journal(task.input):
        # The labels of its answers are the model's own.
        raise BadFile(f"{task.input}: is a server's journal; sentiment watch measures its answers by the feedback in it")
    with ExitStack() as stack:
        # Opened first, so that an output that cannot be written is reported before a long run.
        write = stack.enter_context(new_file(task.json)) if task.json else None
        local = stack.enter_context(closing(OfflineClassifier(task.model, task.bundles, device="auto")))
        source = TextSource(local, task.reading, task.pair, task.labels, task.truncation)
        found = Evaluation(source.labels)
        for judged in source.judged(task.input):
            found.add(judged)
            advance()
        left_out = [f"left out: {number:,} {kind}" for kind, number in source.left_out.items() if number]
        if not found.texts:
            raise BadFile("; ".join([f"{task.input}: has no labelled text with an answer (--labels {task.labels})", *left_out]))
        facts = {
            "command": shlex.join(["sentiment", *sys.argv[1:]]),
            "model": f"{source.id}, digest {source.digest}",
            "input": f"{task.input}, {found.texts:,} labelled texts",
        }
        if write:
            write(json.dumps(json_of(found, facts, left_out), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return text_of(found, {name: value for name, value in facts.items() if name != "command"}, left_out)
