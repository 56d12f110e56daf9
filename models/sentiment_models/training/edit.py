"""Edited texts: pairs of a text and the same text with the opposite label, kept where a teacher is sure of both."""

from collections.abc import Sequence
from pathlib import Path

import torch

from sentiment_models.data.carving import repeat
from sentiment_models.data.edits import edits
from sentiment_models.data.labelled import PLAIN, LabelledReading, Source, json_lines, read_examples
from sentiment_models.errors import ModelsError
from sentiment_models.export.labels import label_names
from sentiment_models.reports.report import check_writable, write_file
from sentiment_models.training.bases import temperature_of
from sentiment_models.training.label import answers_of

PHENOMENON = "edited"
LABELS = ["negative", "positive"]


def edit(
    teacher: Path,
    files: Sequence[str],
    out: Path,
    device: torch.device,
    sure: float = 0.9,
    max_tokens: int = 512,
    seed: int = 1,
    reading: LabelledReading = PLAIN,
) -> tuple[int, int]:
    """Write pairs of texts, as ``sentiment-models cases`` does: a text of the files, and its smallest edit that turns its label.

    ``out`` is written completely or not at all.

    Args:
        teacher: a fine-tuned classifier, or a bundle.
        files: PATH or PATH:TIMES each, labelled.
        out: the .jsonl file.
        device: where to compute.
        sure: the least probability that the teacher gives both labels.
        max_tokens: texts are cut to this many tokens for the teacher.
        seed: seed of what PATH:TIMES draws.
        reading: how the files are read.

    Returns:
        The number of pairs, and of texts that have an edit.

    Raises:
        BadCheckpoint: the teacher cannot be loaded.
        sentiment.errors.BadBundle: the teacher is a damaged bundle.
        BadData: a file cannot be used.
        ModelsError: the teacher's labels are not negative and positive, or ``out`` cannot be written.
    """
    check_writable(out=out)
    names = label_names(teacher)
    if list(names) != LABELS:
        raise ModelsError(f"{teacher}: has the labels {', '.join(names)}; an edit needs negative and positive")
    sources = [Source.parse(spec) for spec in files]
    given = [(list(read_examples(one.path, names, pairs=False, reading=reading)), one.times) for one in sources]
    read = [example for examples, times in given for example in repeat(examples, times, seed)]
    tried = [(example.text, example.label, list(edits(example.text))) for example in read if example.judged]
    tried = [one for one in tried if one[2]]
    texts = list(dict.fromkeys(text for whole, _, edited in tried for text in (whole, *edited)))
    answers = dict(zip(texts, answers_of(teacher, temperature_of(teacher), texts, device, max_tokens), strict=True)) if texts else {}
    originals = {whole for whole, _, _ in tried}
    pairs: list[tuple[str, str]] = []
    for whole, label, edited in tried:
        other = next((text for text in edited if answers[text][1 - label] >= sure), None)
        if other is not None and answers[whole][label] >= sure:
            pairs.append((whole, other) if label else (other, whole))
    rows = [
        {"label": label, "text": text, "phenomenon": PHENOMENON, "pair": number, "edited": text not in originals}
        for number, pair in enumerate(pairs, 1)
        for label, text in zip(reversed(LABELS), pair, strict=True)
    ]
    write_file(out, json_lines(rows))
    return len(pairs), len(tried)
