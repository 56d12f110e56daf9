"""The four tests of Wiegreffe and Pinter 2019, "Attention is not not Explanation", on small encoders trained for them.

The results of each test and all trained encoders are stored, so an interrupted run continues.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BertForSequenceClassification

from sentiment_models.data.corpus import read_corpus
from sentiment_models.data.labelled import Example
from sentiment_models.errors import BadData, OtherRun
from sentiment_models.explanations.distances import agreement, compared, divergence, kl_divergence, output_change
from sentiment_models.explanations.sources import OF_TRAINING, code_of
from sentiment_models.explanations.training_findings import (
    ADVERSARY,
    ATTENTION,
    LEARNED,
    UNIFORM,
    AdversariesFound,
    AdversaryFound,
    FrozenFound,
    SeedPair,
    SeedsFound,
    TrainingFindings,
    UniformFound,
)
from sentiment_models.export.folders import locked
from sentiment_models.export.provenance import Json
from sentiment_models.reports.report import write_file
from sentiment_models.stored import stored
from sentiment_models.study import bag as bags
from sentiment_models.study.small_encoder import (
    WEIGHT_MIN,
    Batch,
    Course,
    Read,
    Texts,
    Weights,
    answer,
    encode,
    fit,
    freeze_uniform,
    make_encoder,
    over_words,
    read,
)
from sentiment_models.study.training_settings import Settings
from sentiment_models.training.recipe import Recipe, Shape
from sentiment_models.training.resume import fingerprint_of, load_state, save_state
from sentiment_models.training.scratch import train_tokenizer

RESULTS = "results.json"
LAST, ALL = "uniform-last", "uniform-all"
"""Kinds of encoders, by the layers with uniform attention: the last, all; with LEARNED attention in all layers: none."""
TESTS = ("seeds", "uniform", "adversaries", "frozen")


def attention_tests(data: Sequence[Path], settings: Settings, out: Path, say: Callable[[str], None]) -> TrainingFindings:
    """Run every test that ``out/results.json`` does not have yet, and return all results. The file is rewritten after each test.

    ``out/models`` stores each encoder.

    Raises:
        BadData: a file cannot be used, or the training or the held-out set is empty.
        BadCheckpoint: an encoder in ``out`` is damaged.
        OtherRun: ``out`` belongs to tests with other settings, data or code.
        ModelsError: another process works there.
    """
    train, heldout, files = draw(data, settings)
    hashes = {f"SHA-256 of {name}": digest for name, digest in files.items()}
    run: dict[str, Json] = {**asdict(settings), **hashes, "code": code_of(OF_TRAINING)}
    # After reading the files: unusable files leave no folder behind.
    with locked(out):
        kept = stored(out / RESULTS, TrainingFindings, "attention-tests", "delete it to start again") if (out / RESULTS).exists() else None
        if kept is not None and kept.fingerprint != fingerprint_of(run):
            raise OtherRun(f"{out / RESULTS}: belongs to tests with other settings, data or code; choose another --output or delete it")
        (out / "models").mkdir(exist_ok=True)
        tests = _Tests(settings, train, heldout, out, run)
        found = kept or tests.without_results(files)
        for name in TESTS:
            if getattr(found, name) is not None:
                say(f"{name}: already done")
                continue
            began_at = time.monotonic()
            result = getattr(tests, name)(found)
            seconds = {**found.seconds, name: round(time.monotonic() - began_at, 1)}
            found = found.model_copy(update={name: result, "seconds": seconds})
            write_file(out / RESULTS, found.model_dump_json(indent=1) + "\n")
            say(f"{name}: done in {seconds[name]:.0f} s")
        return found


def draw(data: Sequence[Path], settings: Settings) -> tuple[list[Example], list[Example], dict[str, str]]:
    """Draw training and held-out texts of at least ``words_min`` words; also return the SHA-256 of the files by name.

    The split is that of ``train``: no sentence or phrase of one is on both sides.

    Raises:
        BadData: a file cannot be used, or the training or the held-out set is empty.
    """
    recipe = Recipe("", tuple(map(str, data)), labels=settings.labels, dev_fraction=settings.heldout_fraction, seed=settings.seed)
    corpus = read_corpus(recipe)
    sides = []
    for examples, count in ((corpus.split.train, settings.train_texts), (corpus.split.dev, settings.heldout_texts)):
        long = [example for example in examples if len(example.text.split()) >= settings.words_min]
        if not long:
            raise BadData(f"none of {len(examples)} texts has at least {settings.words_min} words; lower --words-min or add texts")
        sides.append(random.Random(settings.seed).sample(long, min(count, len(long))))  # noqa: S311 - a sample
    return sides[0], sides[1], corpus.hashes


class _Tests:
    """One method per test of TESTS; each takes the results so far."""

    def __init__(self, settings: Settings, train: Sequence[Example], heldout: Sequence[Example], out: Path, run: dict[str, Json]) -> None:
        torch.set_flush_denormal(True)
        self.settings, self.out, self.run = settings, out, run
        self.tokenizer = train_tokenizer([example.text for example in train], settings.vocabulary, settings.max_tokens)
        self.train, self.heldout = (encode(self.tokenizer, texts, settings.max_tokens) for texts in (train, heldout))
        self.all_seeds = range(settings.seed, settings.seed + settings.seeds)

    def without_results(self, files: dict[str, str]) -> TrainingFindings:
        """Return findings without results of tests."""
        settings = self.settings
        return TrainingFindings(
            files=files,
            fingerprint=fingerprint_of(self.run),
            train_texts=len(self.train.ids),
            heldout_texts=len(self.heldout.ids),
            words=float(self.heldout.counts().mean()),
            vocabulary=len(self.tokenizer),
            parameters=sum(parameter.numel() for parameter in self._untrained(settings.seed).parameters()),
            majority=float(np.bincount(self.heldout.labels).max() / len(self.heldout.labels)),
            settings=asdict(settings),
        )

    def seeds(self, _: TrainingFindings) -> SeedsFound:
        """Train encoders that differ only in their seed, and compare their attention."""
        reads = {seed: self._read(self._encoder(LEARNED, seed)) for seed in self.all_seeds}
        pairs = tuple(
            SeedPair(
                first=one,
                second=other,
                divergence=divergence(reads[one].weights, reads[other].weights),
                output_change=output_change(reads[one].probabilities, reads[other].probabilities),
                agreement=agreement(reads[one].probabilities, reads[other].probabilities),
            )
            for one, other in combinations(reads, 2)
        )
        return SeedsFound(
            accuracy=compared({LEARNED: self._right(reads.values())}, (), self.settings.seed)[0][LEARNED],
            pairs=pairs,
            divergence=float(np.mean([pair.divergence for pair in pairs])),
            output_change=float(np.mean([pair.output_change for pair in pairs])),
            divergence_from_uniform=float(np.mean([divergence(one.weights, bags.uniform_weights(self.heldout)) for one in reads.values()])),
            on_words=float(np.mean([one.on_words for one in reads.values()])),
        )

    def uniform(self, _: TrainingFindings) -> UniformFound:
        """Train the same encoders with uniform attention."""
        kinds = (LEARNED, LAST, ALL)
        right = {kind: self._right(self._read(self._encoder(kind, seed)) for seed in self.all_seeds) for kind in kinds}
        found, (last, every) = compared(right, ((LEARNED, LAST), (LEARNED, ALL)), self.settings.seed)
        return UniformFound(learned=found[LEARNED], last_layer=found[LAST], all_layers=found[ALL], last_loss=last, all_loss=every)

    def adversaries(self, found: TrainingFindings) -> AdversariesFound:
        """Train encoders to give the base's answers with other attention, by rising weight of the attention term."""
        assert found.seeds is not None
        base = self._read(self._base())
        curve = []
        for weight in sorted(self.settings.adversary_weights):
            other = self._read(self._adversary(weight))
            curve.append(
                AdversaryFound(
                    weight=weight,
                    output_change=output_change(other.probabilities, base.probabilities),
                    divergence=divergence(other.weights, base.weights),
                    kl=kl_divergence(other.weights, base.weights),
                    agreement=agreement(other.probabilities, base.probabilities),
                    accuracy=float(self._right([other]).mean()),
                    on_words=other.on_words,
                )
            )
        allowed = found.seeds.output_change
        keeping = [one for one in curve if one.output_change <= allowed]
        chosen = max(keeping, key=lambda one: one.divergence) if keeping else min(curve, key=lambda one: one.output_change)
        return AdversariesFound(base=float(self._right([base]).mean()), curve=tuple(curve), chosen=chosen.weight, allowed=allowed)

    def frozen(self, found: TrainingFindings) -> FrozenFound:
        """Train bags of embeddings with given word weights; each seed's bag with the attention of that seed's encoder."""
        assert found.adversaries is not None
        settings = self.settings
        adversary = self._weights(self._adversary(found.adversaries.chosen))
        given: dict[str, Callable[[int], tuple[Weights | None, Weights | None]]] = {
            UNIFORM: lambda _: (bags.uniform_weights(self.train), bags.uniform_weights(self.heldout)),
            LEARNED: lambda _: (None, None),
            ATTENTION: lambda seed: self._weights(self._encoder(LEARNED, seed)),
            ADVERSARY: lambda _: adversary,
        }
        right = {}
        for name, weights in given.items():
            rows = []
            for seed in self.all_seeds:
                for_train, for_heldout = weights(seed)
                bag = bags.Bag(len(self.tokenizer), settings.width, len(settings.labels), settings.dropout, seed)
                rate = settings.bag_learning_rate
                course = Course(epochs=settings.bag_epochs, learning_rate=rate, batch_rows=settings.batch_rows, seed=seed)
                bags.train_bag(bag, self.train, for_train, course, f"bag, {name} weights, seed {seed}")
                rows.append(bags.read_bag(bag, self.heldout, for_heldout).argmax(1) == self.heldout.labels)
            right[name] = np.array(rows)
        others = [name for name in given if name != UNIFORM]
        pairs = [*((name, UNIFORM) for name in others), (ATTENTION, ADVERSARY)]
        accuracy, (*over_uniform, lead) = compared(right, pairs, settings.seed)
        return FrozenFound(accuracy=accuracy, over_uniform=dict(zip(others, over_uniform, strict=True)), attention_over_adversary=lead)

    def _base(self) -> BertForSequenceClassification:
        """Return the first seed's encoder, whose answers the adversaries imitate."""
        return self._encoder(LEARNED, self.settings.seed)

    @cached_property
    def _base_on_train(self) -> Read:
        return self._read(self._base(), self.train)

    def _encoder(self, kind: str, seed: int) -> BertForSequenceClassification:
        model = self._untrained(seed)
        if kind != LEARNED:
            last = self.settings.layers - 1
            freeze_uniform(model, range(last if kind == LAST else 0, last + 1))

        def loss(batch: Batch) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(answer(model, batch)[0], batch.labels)

        self._train_once(f"{kind}-{seed}", model, loss, self.settings.epochs, seed)
        return model

    def _adversary(self, weight: float) -> BertForSequenceClassification:
        """Train an adversary. It starts as the base: other starts find weaker adversaries in the same number of steps."""
        model, base = self._base(), self._base_on_train
        answers, attended = torch.from_numpy(base.probabilities), torch.from_numpy(base.weights)

        def loss(batch: Batch) -> torch.Tensor:
            logits, attention = answer(model, batch)
            weights = over_words(attention, batch.words, attended.shape[1])
            change = (logits.softmax(-1) - answers[batch.index]).abs().sum(-1) / 2
            logs = weights.clamp(min=WEIGHT_MIN).log() - attended[batch.index].clamp(min=WEIGHT_MIN).log()
            return (change - weight * (weights * logs).sum(-1)).mean()

        self._train_once(f"adversary-{weight:g}", model, loss, self.settings.adversary_epochs, self.settings.seed)
        return model

    def _train_once(self, name: str, model: torch.nn.Module, loss: Callable[[Batch], torch.Tensor], epochs: int, seed: int) -> None:
        """Train a model, or load it if it is already trained."""
        path = self.out / "models" / f"{name}.pt"
        state = load_state(path, self.run)
        if state is None:
            settings = self.settings
            course = Course(epochs=epochs, learning_rate=settings.learning_rate, batch_rows=settings.batch_rows, seed=seed)
            fit(model, self.train, loss, course, name)
            save_state(path, {"model": model.state_dict()}, self.run)
        else:
            model.load_state_dict(state["model"])
            model.eval()

    def _untrained(self, seed: int) -> BertForSequenceClassification:
        settings = self.settings
        shape = Shape(settings.layers, settings.heads, settings.width)
        return make_encoder(shape, len(self.tokenizer), settings.max_tokens, len(settings.labels), settings.dropout, seed)

    def _weights(self, model: BertForSequenceClassification) -> tuple[Weights, Weights]:
        return self._read(model, self.train).weights, self._read(model).weights

    def _read(self, model: BertForSequenceClassification, texts: Texts | None = None) -> Read:
        return read(model, texts or self.heldout)

    def _right(self, reads: Iterable[Read]) -> NDArray[np.bool_]:
        return np.array([one.probabilities.argmax(1) == self.heldout.labels for one in reads])
