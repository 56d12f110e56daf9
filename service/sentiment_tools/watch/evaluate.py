"""``sentiment evaluate``: answers the labelled texts of a file in this process and says how good the answers are."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing

from sentiment.files.errors import BadFile
from sentiment.files.output import new_file, refuse_same_file
from sentiment.offline import OfflineClassifier
from sentiment_tools.watch.evaluation import Evaluation, json_of, text_of
from sentiment_tools.watch.journal import is_journal
from sentiment_tools.watch.texts import TextSource


def evaluate(options: argparse.Namespace, advance: Callable[[], None]) -> str:
    """Run the command; returns what to print.

    Args:
        options: the arguments, with ``reading`` and the paths of ``bundles``.
        advance: called for each labelled text that was answered.

    Raises:
        BadSettings: a column has no such name.
        BadFile: the input cannot be read or has no labelled text, or the output cannot be written.
        BadBundle: the bundle cannot be run.
    """
    refuse_same_file(input=options.input, json=options.json)
    # A pipe is read once.
    if (options.input.is_file() or options.input.is_dir()) and is_journal(options.input):
        # The labels of its answers are the model's own.
        raise BadFile(f"{options.input}: is a server's journal; sentiment watch measures its answers by the feedback in it")
    with ExitStack() as stack:
        # Opened first, so that an output that cannot be written is reported before a long run.
        write = stack.enter_context(new_file(options.json)) if options.json else None
        local = stack.enter_context(closing(OfflineClassifier(options.model, options.bundles, device="auto")))
        source = TextSource(local, options.reading, options.pair, options.labels, options.truncation)
        found = Evaluation(source.labels)
        for judged in source.judged(options.input):
            found.add(judged)
            advance()
        left_out = [f"left out: {number:,} {kind}" for kind, number in source.left_out.items() if number]
        if not found.texts:
            raise BadFile("; ".join([f"{options.input}: has no labelled text with an answer (--labels {options.labels})", *left_out]))
        facts = {
            "command": shlex.join(["sentiment", *sys.argv[1:]]),
            "model": f"{source.id}, digest {source.digest}",
            "input": f"{options.input}, {found.texts:,} labelled texts",
        }
        if write:
            write(json.dumps(json_of(found, facts, left_out), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return text_of(found, {name: value for name, value in facts.items() if name != "command"}, left_out)
