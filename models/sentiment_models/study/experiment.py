"""The experiment "transformers from scratch against fine-tuned BERT": train and measure every run. It can be interrupted and continued."""

import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from sentiment_models.data.corpus import read_corpus
from sentiment_models.data.labelled import Example, json_lines, read_examples
from sentiment_models.errors import BadData, OtherRun
from sentiment_models.export.folders import locked
from sentiment_models.export.manifest import WEIGHTS_FILE
from sentiment_models.export.weights import stored_tensors
from sentiment_models.reports.report import write_file
from sentiment_models.stored import Stored, stored
from sentiment_models.study.recipes import Experiment
from sentiment_models.training.bases import TRAINING_FILE, content_of, folder_of, name_of
from sentiment_models.training.label import answers_of
from sentiment_models.training.recipe import Recipe
from sentiment_models.training.resume import fingerprint_of
from sentiment_models.training.train import train


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


class Results(Stored):
    """The content of results.json. ``fingerprint``: of the settings, the bases and the texts."""

    experiment: dict[str, object]
    train_reviews: int
    test_reviews: int
    runs: tuple[Outcome, ...]
    fingerprint: str


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
        path, data = out / "results.json", out / "reviews.jsonl"
        kept = stored(path, Results, "scratch", "delete it to measure again") if path.exists() else None
        if kept is not None and kept.fingerprint != fingerprint:
            raise OtherRun(f"{path}: belongs to an experiment with other settings or other data; choose another --output or delete it")
        done = {outcome.name: outcome for outcome in kept.runs} if kept else {}
        write_file(data, json_lines(one.row(experiment.labels) for one in reviews))
        recipes = experiment.recipes(data)
        for number, (name, recipe) in enumerate(recipes.items(), 1):
            if name in done:
                say(f"{name}: already measured")
                continue
            say(f"{name}: run {number} of {len(recipes)}")
            done[name] = _conduct_one(name, recipe, out / name, test, device)
            found = Results(
                experiment=experiment.published(),
                train_reviews=len(reviews),
                test_reviews=len(test),
                runs=tuple(done.values()),
                fingerprint=fingerprint,
            )
            write_file(path, found.model_dump_json(indent=1))
        return [done[name] for name in recipes]


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


def accuracy(checkpoint: Path, examples: Sequence[Example], tokens_max: int, device: str, title: str) -> float:
    """Return the share of the texts, cut to ``tokens_max`` tokens, that a checkpoint classifies correctly."""
    stated = answers_of(checkpoint, 1.0, [example.whole for example in examples], torch.device(device), tokens_max, title)
    return sum(one.index(max(one)) == example.label for one, example in zip(stated, examples, strict=True)) / len(examples)


def parameters(checkpoint: Path) -> int:
    """Count the weights of a checkpoint. Shared weights count once."""
    return sum(math.prod(tensor.dims) for tensor in stored_tensors(checkpoint / WEIGHTS_FILE).values())
