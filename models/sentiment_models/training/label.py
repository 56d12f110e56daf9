"""A teacher's soft labels: how likely it finds each label of many texts, written for ``train --data``."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from sentiment_models.data.carving import repeat
from sentiment_models.data.labelled import Example, Source, TextOrPair, alike, read_examples
from sentiment_models.data.sentences import split_sentences
from sentiment_models.data.text_files import UNREADABLE, bare, check_text, open_text, unreadable
from sentiment_models.errors import BadData
from sentiment_models.export.checkpoint import label_names, load_classifier
from sentiment_models.export.families import FAMILIES
from sentiment_models.reports.report import check_writable, write_text
from sentiment_models.training.bases import teacher_name, temperature_of

SENTENCE_WORDS_MIN, SENTENCE_WORDS_MAX = 4, 60
BATCH_ROWS_MAX, BATCH_TOKENS_MAX = 64, 8192


@dataclass(frozen=True, slots=True)
class Asked:
    """A text or pair for the teacher, and the label that people gave it, if they did."""

    text: str
    label: str | None
    text_pair: str | None = None
    domain: str = ""

    @property
    def whole(self) -> TextOrPair:
        """All that the teacher reads."""
        return self.text if self.text_pair is None else (self.text, self.text_pair)


def label(
    teacher: Path, files: Sequence[str], out: Path, device: torch.device, max_tokens: int = 512, sentences: int | None = None, seed: int = 1
) -> int:
    """Write ``{"text", "text_pair"?, "label"?, "domain"?, "probabilities", "teacher"}`` a line; return how many.

    ``out`` appears whole or not at all.

    Args:
        teacher: a fine-tuned classifier, or a bundle, whose answers are calibrated by its temperature.
        files: PATH or PATH:TIMES each, see ``read_asked``.
        out: the .jsonl file.
        device: where to compute.
        max_tokens: texts are cut to so many, or to what the teacher reads if that is less.
        sentences: this many sentences of the texts, drawn by ``seed``, instead of whole texts.
        seed: of the drawing.

    Raises:
        BadCheckpoint: the teacher cannot be loaded.
        sentiment.errors.BadBundle: the teacher is a damaged bundle.
        BadData: a file cannot be used, or holds too few sentences.
        ModelsError: ``out`` cannot be written there.
    """
    check_writable(out)
    names = label_names(teacher)
    temperature, name = temperature_of(teacher), teacher_name(teacher)
    asked = [one for spec in files for one in read_asked(Source.parse(spec), names, seed)]
    if sentences:
        found = sorted({sentence for one in asked for sentence in sentences_of(one.text)})
        if len(found) < sentences:
            raise BadData(
                f"{', '.join(files)}: {len(found)} sentences of {SENTENCE_WORDS_MIN} to {SENTENCE_WORDS_MAX} words; {sentences} asked for"
            )
        asked = [Asked(text, None) for text in random.Random(seed).sample(found, sentences)]  # noqa: S311 - a sample
    answers = _answers(teacher, temperature, [one.whole for one in asked], device, max_tokens)
    rows = []
    for one, answer in zip(asked, answers, strict=True):
        known = {"text": one.text, "text_pair": one.text_pair, "label": one.label, "domain": one.domain or None}
        rows.append({**{key: value for key, value in known.items() if value is not None}, "probabilities": answer, "teacher": name})
    write_text(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return len(asked)


def read_asked(source: Source, names: Sequence[str], seed: int) -> Iterator[Asked]:
    """Read a .txt of one text a line, or a labelled file as ``train`` takes it; either optionally .gz.

    Raises:
        BadData: the file cannot be read so.
    """
    path = source.path
    if Path(path.name.removesuffix(".gz")).suffix != ".txt":
        for example in repeat(list(read_examples(path, names)), source.times, seed):
            yield Asked(example.text, names[example.label] if example.judged else None, example.text_pair, example.domain)
        return
    line = 0
    try:
        with open_text(path) as stream:
            for line, text in enumerate(stream, 1):
                if text.strip():
                    check_text(text, f"{path}:{line}")
                    example = Example(bare(text), 0, judged=False)
                    yield from (Asked(each.text, None) for each in repeat([example], source.times, seed))
    except UNREADABLE as error:
        raise unreadable(path, line, error) from error


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a review that have neither too few nor too many words to be judged alone."""
    return [one for one in split_sentences(text) if SENTENCE_WORDS_MIN <= len(one.split()) <= SENTENCE_WORDS_MAX]


@torch.no_grad()
def _answers(teacher: Path, temperature: float, texts: Sequence[TextOrPair], device: torch.device, max_tokens: int) -> list[list[float]]:
    model, tokenizer = load_classifier(teacher)
    model.to(device)  # type: ignore[arg-type]  # transformers hides the signature behind a wrapper
    # Fed as it was trained.
    family = FAMILIES[model.config.model_type]
    most = min(max_tokens, family.max_tokens(model.config))
    found = tokenizer(list(texts), truncation=True, max_length=most, return_token_type_ids=family.segments)
    rows = found["input_ids"]
    answers: list[list[float]] = [[] for _ in texts]
    bar = tqdm(total=len(texts), desc="labelling", unit="text", mininterval=5)
    lengths = [len(row) for row in rows]
    # The longest first: what is too large for the machine is seen at once.
    order = sorted(range(len(rows)), key=lengths.__getitem__, reverse=True)
    for group in alike(order, lengths, BATCH_ROWS_MAX, BATCH_TOKENS_MAX):
        some = {name: [values[index] for index in group] for name, values in found.items()}
        padded = tokenizer.pad(some, return_tensors="pt").to(device)
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(**padded).logits
        for index, answer in zip(group, (logits.float() / temperature).softmax(-1).tolist(), strict=True):
            answers[index] = [round(share, 5) for share in answer]
        bar.update(len(group))
    bar.close()
    return answers
