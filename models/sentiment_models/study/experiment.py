"""The experiment "transformers from scratch against fine-tuned BERT": train and measure every run. It can be interrupted and continued."""

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from tqdm import tqdm
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sentiment_models.data.corpus import read_corpus
from sentiment_models.data.labelled import Example, read_examples
from sentiment_models.errors import BadData, ModelsError, OtherRun
from sentiment_models.study.recipes import Experiment
from sentiment_models.training.bases import TRAINING_FILE, content_of, folder_of, name_of
from sentiment_models.training.precision import mixed_precision
from sentiment_models.training.recipe import Recipe
from sentiment_models.training.resume import fingerprint_of, locked, write_atomically
from sentiment_models.training.train import train

# Reviews have at most 128 tokens by default; larger batches are no faster on a GPU.
MEASURED_ROWS = 64


@dataclass(frozen=True, slots=True)
class Point:
    """Accuracy of one epoch: on the training texts during the epoch, and on the development set at its end."""

    epoch: float
    train: float
    valid: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run. The three accuracies are those of its best epoch on the development set.

    ``minutes`` is the training time. If the run was ``resumed``, it counts from the last start.
    """

    name: str
    base: str
    parameters: int
    train: float
    valid: float
    test: float
    minutes: float
    resumed: bool
    curve: tuple[Point, ...]

    @property
    def from_scratch(self) -> bool:
        """Whether the run started from an untrained model."""
        return not self.base


def conduct(experiment: Experiment, out: Path, device: str, say: Callable[[str], None]) -> list[Outcome]:
    """Train and measure every run that is not in ``out/results.json`` yet. That file is rewritten after each run.

    An interrupted run continues from its last checkpoint. Each run has its own folder in ``out``, named after it.

    Raises:
        BadData: a file cannot be used or has too few reviews.
        BadCheckpoint: a base cannot be loaded.
        OtherRun: ``out`` holds another experiment.
        ModelsError: another process uses ``out``.
    """
    # First, because a folder that does not exist cannot be a base.
    bases = [content_of(folder_of(folder)) for _, folder in experiment.bases]
    reviews = sample(Path(experiment.data), experiment.labels, experiment.reviews, experiment.seed)
    test = sample(Path(experiment.test), experiment.labels, experiment.test_reviews, experiment.seed)
    texts = [sorted((one.label, one.text) for one in rows) for rows in (reviews, test)]
    fingerprint = fingerprint_of([asdict(experiment), bases, texts])
    # After the files are read, so that unusable files leave no folder behind.
    with locked(out):
        done = {outcome.name: outcome for outcome in read_outcomes(out / "results.json", fingerprint)}
        data = out / "reviews.jsonl"
        rows = [json.dumps({"label": experiment.labels[one.label], "text": one.text}, ensure_ascii=False) for one in reviews]
        write_atomically(data, ("\n".join(rows) + "\n").encode())
        recipes = experiment.recipes(data)
        for number, (name, recipe) in enumerate(recipes.items(), 1):
            if name in done:
                say(f"{name}: already measured")
                continue
            say(f"{name}: run {number} of {len(recipes)}")
            done[name] = _conduct_one(name, recipe, out / name, test, device)
            found = {
                "experiment": experiment.published(),
                "train_reviews": len(reviews),
                "test_reviews": len(test),
                "runs": [asdict(outcome) for outcome in done.values()],
                "fingerprint": fingerprint,
            }
            write_atomically(out / "results.json", json.dumps(found, indent=1).encode())
        return [done[name] for name in recipes]


def read_outcomes(path: Path, fingerprint: str) -> list[Outcome]:
    """Read the runs that were measured before; none if the file does not exist.

    Raises:
        OtherRun: the experiment in the file has another fingerprint.
        ModelsError: the file is damaged, or another command wrote it.
    """
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_bytes())
        runs = [Outcome(**{**run, "curve": tuple(Point(**point) for point in run["curve"])}) for run in found["runs"]]
        other = found["fingerprint"] != fingerprint
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelsError(f"{path}: not the results of an experiment, or damaged ({error!r}); delete the file to measure again") from error
    if other:
        raise OtherRun(f"{path}: belongs to an experiment with other settings or other data; choose another --output or delete the file")
    return runs


def sample(path: Path, labels: Sequence[str], count: int, seed: int) -> list[Example]:
    """Draw ``count`` reviews at random, equally many of each label (up to one more); 0 draws all.

    Raises:
        BadData: the file cannot be used, or a label has too few reviews.
    """
    examples = list(read_examples(path, labels, pairs=False))
    if not count:
        return examples
    rng = random.Random(seed)  # noqa: S311 - a sample
    drawn: list[Example] = []
    for index, label in enumerate(labels):
        wanted = count // len(labels) + (index < count % len(labels))
        its = [example for example in examples if example.label == index]
        if len(its) < wanted:
            raise BadData(f"{path}: {count} reviews need {wanted} with the label {label}; the file has {len(its)}")
        drawn += rng.sample(its, wanted)
    rng.shuffle(drawn)
    return drawn


def _conduct_one(name: str, recipe: Recipe, out: Path, test: Sequence[Example], device: str) -> Outcome:
    resumed = (out / "checkpoint.pt").exists()
    began_at = time.monotonic()
    best = train(recipe, out, device)
    minutes = (time.monotonic() - began_at) / 60
    history: list[Mapping[str, float]] = json.loads((best / TRAINING_FILE).read_bytes())["history"]
    split = read_corpus(recipe).split
    measured = {
        part: accuracy(best, rows, recipe.max_tokens, device, f"{name}: {part}")
        for part, rows in (("train", split.train), ("valid", split.dev), ("test", test))
    }
    curve = tuple(Point(number, one["train_accuracy"], one["dev_accuracy"]) for number, one in enumerate(history, 1))
    return Outcome(name, name_of(recipe.base), parameters(best), **measured, minutes=minutes, resumed=resumed, curve=curve)


@torch.no_grad()
def accuracy(checkpoint: Path, examples: Sequence[Example], tokens_max: int, device: str, title: str) -> float:
    """Return the share of the texts, cut to ``tokens_max`` tokens, that a checkpoint classifies correctly."""
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, use_fast=True)  # type: ignore[no-untyped-call]  # untyped there
    by_length = sorted(examples, key=lambda example: len(example.text))
    right = 0
    for rows in tqdm(list(_chunks(by_length, MEASURED_ROWS)), desc=title, unit="batch", mininterval=5):
        texts = [example.text for example in rows]
        feeds = tokenizer(texts, truncation=True, max_length=tokens_max, padding=True, return_tensors="pt").to(device)
        with mixed_precision(torch.device(device)):
            answers = model(**feeds).logits.float().argmax(-1)
        right += int((answers.cpu() == torch.tensor([example.label for example in rows])).sum())
    return right / len(examples)


def _chunks(items: Sequence[Example], size: int) -> Iterator[Sequence[Example]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def parameters(checkpoint: Path) -> int:
    """Count the weights of a checkpoint. Shared weights count once."""
    with safe_open(checkpoint / "model.safetensors", "pt") as weights:
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118 - it is not a dict
