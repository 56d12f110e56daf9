"""Soft labels: a teacher's probability of each label for many texts, written for ``train --data``."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from sentiment.files.reading import format_of
from sentiment_models.data.carving import repeat
from sentiment_models.data.labelled import (
    PLAIN,
    Example,
    LabelledReading,
    Source,
    TextOrPair,
    cut_sorted,
    json_lines,
    read_examples,
    read_texts,
)
from sentiment_models.data.sentences import split_sentences
from sentiment_models.errors import BadData
from sentiment_models.export.checkpoint import load_classifier
from sentiment_models.export.families import FAMILIES
from sentiment_models.export.labels import label_names
from sentiment_models.export.positions import tokens_of
from sentiment_models.reports.report import check_writable, write_file
from sentiment_models.training.bases import teacher_name, temperature_of
from sentiment_models.training.precision import mixed_precision

SENTENCE_WORDS_MIN, SENTENCE_WORDS_MAX = 4, 60
BATCH_ROWS_MAX, BATCH_TOKENS_MAX = 64, 8192
# A GPU is busy only with larger batches.
GPU_TIMES = 8


def label(
    teacher: Path,
    files: Sequence[str],
    out: Path,
    device: torch.device,
    max_tokens: int = 512,
    sentences: int | None = None,
    seed: int = 1,
    reading: LabelledReading = PLAIN,
) -> int:
    """Write one JSON line ``{"text", "text_pair"?, "label"?, "domain"?, "probabilities", "teacher"}`` per text; return their number.

    The pair and the phenomenon of a generated text are kept.

    ``out`` is written completely or not at all.

    Args:
        teacher: a fine-tuned classifier, or a bundle, whose probabilities are calibrated by its temperature.
        files: PATH or PATH:TIMES each, see ``read_inputs``.
        out: the .jsonl file.
        device: where to compute.
        max_tokens: texts are cut to this many tokens, or to the teacher's limit if that is lower.
        sentences: label this many sentences, drawn by ``seed``, instead of whole texts.
        seed: seed of the draw.
        reading: how the files are read.

    Raises:
        BadCheckpoint: the teacher cannot be loaded.
        sentiment.errors.BadBundle: the teacher is a damaged bundle.
        BadData: a file cannot be used, or holds too few sentences.
        ModelsError: ``out`` cannot be written.
    """
    check_writable(out=out)
    names = label_names(teacher)
    temperature, name = temperature_of(teacher), teacher_name(teacher)
    inputs = [one for spec in files for one in read_inputs(Source.parse(spec), names, seed, reading)]
    if sentences:
        found = sorted({sentence for one in inputs for sentence in sentences_of(one.text)})
        if len(found) < sentences:
            raise BadData(
                f"{', '.join(files)}: --sentences is {sentences}, but the files have only {len(found)} sentences of "
                f"{SENTENCE_WORDS_MIN} to {SENTENCE_WORDS_MAX} words"
            )
        inputs = [Example(text, 0, judged=False) for text in random.Random(seed).sample(found, sentences)]  # noqa: S311 - a sample
    answers = answers_of(teacher, temperature, [one.whole for one in inputs], device, max_tokens)
    rows = (
        {**one.row(names), **(one.made.row() if one.made else {}), "probabilities": [round(share, 5) for share in answer], "teacher": name}
        for one, answer in zip(inputs, answers, strict=True)
    )
    write_file(out, json_lines(rows))
    return len(inputs)


def read_inputs(source: Source, names: Sequence[str], seed: int, reading: LabelledReading = PLAIN) -> Iterator[Example]:
    """Read a .txt with one text per line, or a file as ``train`` takes it, whose rows may be without a label; either optionally .gz.

    Raises:
        BadData: the file cannot be used.
    """
    if format_of(source.path.name) == "txt":
        texts = read_texts(source.path, pairs=False, reading=reading)
        examples = [Example(text, 0, judged=False) for text in texts if isinstance(text, str)]
    else:
        examples = list(read_examples(source.path, names, unjudged=True, reading=reading))
    return repeat(examples, source.times, seed)


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a review with SENTENCE_WORDS_MIN to SENTENCE_WORDS_MAX words."""
    return [one for one in split_sentences(text) if SENTENCE_WORDS_MIN <= len(one.split()) <= SENTENCE_WORDS_MAX]


@torch.no_grad()
def answers_of(
    teacher: Path, temperature: float, texts: Sequence[TextOrPair], device: torch.device, max_tokens: int, title: str = "labelling"
) -> list[list[float]]:
    """The teacher's probabilities of each text's labels. ``temperature``: of the teacher, see ``temperature_of``."""
    model, tokenizer = load_classifier(teacher)
    model.to(device)  # type: ignore[arg-type]  # transformers hides the signature behind a wrapper
    family = FAMILIES[model.config.model_type]
    most = min(max_tokens, tokens_of(model.config.to_dict(), teacher).tokens)
    found = tokenizer(list(texts), truncation=True, max_length=most, return_token_type_ids=family.segments)
    rows = found["input_ids"]
    answers: list[list[float]] = [[] for _ in texts]
    bar = tqdm(total=len(texts), desc=title, unit="text", mininterval=5)
    lengths = [len(row) for row in rows]
    # The longest first, so that a lack of memory shows at once.
    order = sorted(range(len(rows)), key=lengths.__getitem__, reverse=True)
    times = 1 if device.type == "cpu" else GPU_TIMES
    for group in cut_sorted(order, lengths, times * BATCH_ROWS_MAX, times * BATCH_TOKENS_MAX):
        some = {name: [values[index] for index in group] for name, values in found.items()}
        padded = tokenizer.pad(some, return_tensors="pt").to(device)
        with mixed_precision(device, model.config.model_type):
            logits = model(**padded).logits
        for index, answer in zip(group, (logits.float() / temperature).softmax(-1).tolist(), strict=True):
            answers[index] = answer
        bar.update(len(group))
    bar.close()
    return answers
