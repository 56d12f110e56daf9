"""``sentiment explain``: explains the answer to a text, or to each line of standard input, with a server or in this process."""

import argparse
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from sentiment.cli.answers import Asked, answer_of, reason_of
from sentiment.cli.calling import source_of
from sentiment.cli.explanation_text import page
from sentiment.cli.standard_input import standard_texts
from sentiment.cli.terminal import coloured
from sentiment.client import AttentionOptions, CallFailed, Client, ExplainOptions, Explanation, NeuronOptions, model_json
from sentiment.client.explanations import with_notes
from sentiment.errors import BadSettings
from sentiment.files.output import beside, new_file
from sentiment.files.rows import Unread
from sentiment.files.tables import json_text
from sentiment.files.visible import visible, visible_json
from sentiment.v1 import sentiment_pb2 as pb

if TYPE_CHECKING:
    from sentiment.local import Local

# The field that a server names when the explanation would be too large.
BYTES_FIELD = "options.bytes_max"

Ask = Callable[..., Explanation]


def explain(job: argparse.Namespace) -> int:
    """Explain the texts of the job, the command's options, and print each explanation or write the page of one.

    ``job.text`` is None for standard input, one text a line. ``job.options`` are the ExplainOptions.

    Returns:
        How many texts of standard input have no explanation; each is shown with its reason.

    Raises:
        SentimentError: a text that is an argument, or any text, cannot be explained, or the file cannot be written.
    """
    if job.html is not None:
        _write_page(job, job.html, _one_text() if job.text is None else job.text)
        return 0
    with source_of(job) as source:
        ask = _ask(job, source)
        if job.text is not None:
            _print(job, ask(job.text, options=job.options))
            return 0
        failed = 0
        for number, text in enumerate(standard_texts(), 1):
            if number > 1 and not job.json:
                print()
            try:
                _print(job, ask(_readable(text), options=job.options))
            except CallFailed as error:
                if error.code is grpc.StatusCode.UNAVAILABLE:
                    raise
                failed += 1
                asked = Asked(text, None, {})
                print(
                    visible_json(json_text(answer_of(asked, error)))
                    if job.json
                    else visible(f"text {number} has no explanation: {': '.join(reason_of(asked, error))}")
                )
            # The next text may take long to come.
            sys.stdout.flush()
        return failed


def _one_text() -> str:
    texts = list(itertools.islice(standard_texts(), 2))
    if len(texts) != 1:
        raise BadSettings(f"--html shows one text; standard input has {'more' if texts else 'none'}")
    return _readable(texts[0])


def _readable(text: str | Unread) -> str:
    """The text.

    Raises:
        CallFailed: it cannot be read.
    """
    if isinstance(text, Unread):
        raise CallFailed(grpc.StatusCode.INVALID_ARGUMENT, text.reason, (), None)
    return text


def _print(job: argparse.Namespace, explanation: Explanation) -> None:
    if job.json:
        print(visible_json(json.dumps(explanation.to_json(), ensure_ascii=False, allow_nan=False)))
    else:
        print(page(explanation, colour=coloured(job.color), width=shutil.get_terminal_size().columns))


def _write_page(job: argparse.Namespace, path: Path, asked: str) -> None:
    with new_file(path) as write:
        with source_of(job) as source:
            model = source.get_model(job.model)
            explanation = _for_page(job, model, partial(_ask(job, source), asked))
            parts = {"sentences": job.sentences, "targets": job.targets}
            given = {"model": job.model, "truncation": job.truncation, "timeout_s": job.timeout}
            answer = source.classify(asked, job.pair, **parts, **given) if any(parts.values()) else None
        text = explanation.to_html(model_json(model), answer)
        write(text)
    print(f"{path}: {len(text.encode()):,} bytes", file=beside(path))


def _for_page(job: argparse.Namespace, model: pb.Model, ask: Ask) -> Explanation:
    """Request everything that the page can show and the model has, and keep the options that the user gave."""
    options = replace(job.options, counterfactuals=True, by_embedding=True)
    if model.layers:
        attention = options.attention or AttentionOptions(encoding=job.attention_encoding)
        neuron = options.neuron or NeuronOptions(layer=model.layers - 1)
        options = replace(options, heads=True, attention=attention, neuron=neuron, geometry=True)
    try:
        return _within_limit(options, _unasked(options, job.options), ask)
    except CallFailed as error:
        # Bundles of earlier releases have no hidden states, and the model's description does not tell.
        if error.code is not grpc.StatusCode.FAILED_PRECONDITION or options.geometry == job.options.geometry:
            raise
        options = replace(options, geometry=False)
        return _within_limit(options, _unasked(options, job.options), ask)


def _unasked(options: ExplainOptions, asked: ExplainOptions) -> list[str]:
    """What a page can do without, the largest first: attention even if the user asked for it."""
    return ["attention"] * (options.attention is not None) + ["geometry"] * (options.geometry and not asked.geometry)


def _within_limit(options: ExplainOptions, droppable: Sequence[str], ask: Ask) -> Explanation:
    """Request the explanation, without one ``droppable`` part after the other as long as it would be too large."""
    try:
        return ask(options=options)
    except CallFailed as error:
        too_large = [found.description for found in error.violations if found.field == BYTES_FIELD]
        if not droppable or not too_large:
            raise
        what, *others = droppable
        without = replace(options, attention=None) if what == "attention" else replace(options, geometry=False)
        return with_notes(_within_limit(without, others, ask), [f"{what} was left out: {BYTES_FIELD} {too_large[0]}"])


def _ask(job: argparse.Namespace, source: "Client | Local") -> Ask:
    """What explains a text with ``options``, in the way of the job."""
    given = {"model": job.model, "label": job.label, "target": job.about, "truncation": job.truncation, "timeout_s": job.timeout}
    return partial(source.explain, text_pair=job.pair, **given)
