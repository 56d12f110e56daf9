"""Fine-tune a sequence classifier. A run survives kill -9: one checkpoint file holds everything needed to continue."""

import csv
import io
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import AddedToken, Tokenizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm
from transformers import PreTrainedModel

from sentiment_models.data.carving import Split, letters_of
from sentiment_models.data.corpus import APART, PARTS, Corpus, read_corpus, target_of, vary
from sentiment_models.data.erased import HOLE, MASK
from sentiment_models.data.labelled import Example, TextOrPair, batches, cut_sorted, evaluation_steps, json_lines
from sentiment_models.errors import BadCheckpoint, ModelsError
from sentiment_models.evaluation.metrics import confusion, macro_f1
from sentiment_models.evaluation.resample import accuracy_and_f1_intervals
from sentiment_models.export.checkpoint import base_tokenizer, config_of, loading
from sentiment_models.export.families import FAMILIES, check_reads
from sentiment_models.export.folders import locked
from sentiment_models.export.inherited import inherited_of
from sentiment_models.export.provenance import Json, files_trained_on
from sentiment_models.reports.report import write_file
from sentiment_models.training import frozen
from sentiment_models.training.bases import TRAINING_FILE, content_of, folder_of, name_of, training_of
from sentiment_models.training.distributed import Processes, is_first_process, join
from sentiment_models.training.emoji import add_emoji
from sentiment_models.training.heads import last_layer, load_with_head
from sentiment_models.training.loop import Loop, Progress
from sentiment_models.training.optimizer import freeze_encoder, make_optimizer
from sentiment_models.training.precision import mixed_precision
from sentiment_models.training.recipe import FEW, Recipe
from sentiment_models.training.resume import fingerprint_of, replace_checkpoint
from sentiment_models.training.scratch import fresh_classifier

# In the place of a word that attention does not see. Not the padding's id, which a text may spell.
HOLE_ID = -1
# Texts of one step of the progress bar, whose unit is a thousand.
TOKENIZED_AT_A_TIME = 1000
# Of the run's folder: the texts whose labels are doubtful.
DOUBTFUL_FILE = "labels_to_check.csv"


class Row(NamedTuple):
    """A tokenized text: token ids, HOLE_ID among them, and segment ids, both [tokens]."""

    ids: npt.NDArray[np.int32]
    types: npt.NDArray[np.int8]


@dataclass(slots=True)
class _Progress(Progress):
    best_f1: float = -1.0
    best_loss: float = float("inf")
    # Of the best model on the development set, by text.
    best_answers: list[int] = field(default_factory=list)
    worse_in_a_row: int = 0
    # What the frozen encoder said of the texts; empty if they were too many.
    frozen: dict[str, Any] = field(default_factory=dict)
    # Texts that this process trained on since the last evaluation, and how many of them it classified correctly before the step.
    shown: int = 0
    right: int = 0


def train(recipe: Recipe, out: Path, device: str = "cpu", checkpoint_steps: int = 200, resume: bool = True) -> Path:
    """Fine-tune ``recipe.base``, or an untrained BERT if it is empty. Return ``out/best``, a Hugging Face checkpoint with training.json.

    A fresh head is first fitted alone, on at most FEW texts. Up to FEW texts are looked over with the frozen encoder, see ``frozen``: what
    more texts would bring is printed, and ``out/labels_to_check.csv`` lists the doubtful labels.

    ``out/dev.jsonl`` is the development set, for calibration. ``out/checkpoint.pt`` is replaced atomically every
    ``checkpoint_steps`` steps and after each evaluation. A repeated call continues from it; after the end of a run it only
    writes training.json and dev.jsonl again. The checkpoint with the best macro F1 on dev is kept. Training stops early after
    ``recipe.patience`` evaluations without a better one. ``out/logs`` is for TensorBoard.

    Under torchrun each process takes its share of every batch, and the first process writes. All must see the same ``out``. Without
    dropout the steps equal those of one process up to the order of sums. With dropout, each process draws its own random numbers.

    With more than 10,000 texts it starts processes, so a script must call it below ``if __name__ == "__main__":``.

    Raises:
        BadData: a data file cannot be used.
        BadCheckpoint: the base does not exist or cannot be loaded, or ``out`` is damaged.
        OtherRun: ``out`` holds a run with another recipe, other data or another base.
        ModelsError: another process uses ``out``, the processes do not see the same files, the device does not exist, or the loss is no
            longer a finite number.
        sentiment.errors.BadBundle: the base is a damaged bundle.
    """
    processes = join(device)
    # First, because a folder that does not exist or a damaged bundle cannot be a base.
    base, recipe = name_of(recipe.base), replace(recipe, base=folder_of(recipe.base))
    base_training = training_of(recipe.base)
    corpus = read_corpus(recipe, files_trained_on(base_training))
    split = corpus.split
    if corpus.dev_of_base:
        _say(
            f"{corpus.dev_of_base:,} of {len(split.dev):,} development texts may have been trained on by the base (same file): their "
            "accuracy, and a temperature fitted on them, flatter, unless the base kept the same texts out (equal --seed and --dev-fraction)"
        )
    # By content: the base's path may hold another model by now.
    dependencies = recipe.dependencies(content_of(recipe.base), corpus.hashes)
    run = _Run(recipe, split, out, processes.device(device), dependencies, processes)
    # After the files are read, so that unusable files leave no folder behind.
    with locked(out) if processes.first else nullcontext():
        if resume:
            run.restore()
        if not run.progress.step:
            run.begin(split)
        processes.check_same("run and step", (fingerprint_of(dependencies), run.progress.step))
        if processes.first:
            write_file(out / "dev.jsonl", json_lines(example.row(recipe.labels) for example in split.dev))
        run.loop(checkpoint_steps)
        if processes.first:
            record = _record(recipe, base, base_training, corpus, run)
            write_file(out / "best" / TRAINING_FILE, json.dumps(record, indent=1))
            tqdm.write(run.said())
    processes.leave()
    return out / "best"


def _record(recipe: Recipe, base: str, base_training: Json, corpus: Corpus, run: "_Run") -> dict[str, object]:
    """Return the content of training.json."""
    files = corpus.files
    uses = (*PARTS, "undecided")
    return {
        "recipe": {
            **asdict(recipe),
            "base": base,
            "sources": [file["file"] for file in files if not any(file[kind] for kind in uses)],
            **{kind: [file["file"] for file in files if file[kind]] for kind in uses},
            **{kind: [file["file"] for file in corpus.apart if file["use"] == kind] for kind in APART},
        },
        # The record of the base, if it was trained here.
        "base_training": base_training,
        "files": files,
        "apart": corpus.apart,
        "train_examples": len(corpus.split.train),
        "dev_examples": len(corpus.split.dev),
        "dev_of_base": corpus.dev_of_base,
        "processes": run.processes.count,
        "steps": run.progress.step,
        "dev_accuracy": run.accuracy,
        "dev_macro_f1": run.progress.best_f1,
        "frozen": run.progress.frozen,
        "history": run.progress.history,
    }


class _Run(Loop[_Progress]):
    title = "training"

    def __init__(
        self, recipe: Recipe, split: Split, out: Path, device: torch.device, dependencies: dict[str, Json], processes: Processes
    ) -> None:
        super().__init__(recipe.seed, out, device, dependencies, processes, _Progress())
        self.recipe = recipe
        self.module, self.tokenizer, self.fresh = load_base(recipe, [example.text for example in split.train])
        added = add_emoji(self.module, self.tokenizer) if recipe.emoji else None
        if added is not None and processes.first:
            tqdm.write(f"added {added} emoji to the vocabulary")
        # Of a folder; an untrained model and a name known to transformers have nothing to hand on.
        inherited = inherited_of(Path(recipe.base)) if recipe.base else None
        # The base's calibration and study were not made with a fresh head, whatever its labels.
        self.inherited = inherited.model_copy(update={"labels": ()}) if inherited and recipe.new_head else inherited
        self.family = FAMILIES[self.module.config.model_type]
        if recipe.head_only:
            freeze_encoder(self.module)
        if recipe.freeze_embeddings:
            self.module.get_input_embeddings().requires_grad_(False)
        self.module.to(device)  # type: ignore[arg-type]  # transformers hides the signature behind a wrapper
        self.average = _moving_average(self.module, recipe.ema) if recipe.ema else None
        self.epochs = [self._encode(vary(split.train, recipe, epoch)) for epoch in range(recipe.epochs)]
        self.targets = [target_of(example, len(recipe.labels), recipe.teacher_weight) for example in split.train]
        self.dev_rows = self._encode([example.whole for example in split.dev])
        self.dev_labels = [example.label for example in split.dev]
        planned = [
            batches([len(row.ids) for row in rows], recipe.batch_rows, recipe.batch_tokens, random.Random(f"{recipe.seed}/{epoch}"))  # noqa: S311 - an order
            for epoch, rows in enumerate(self.epochs)
        ]
        self.plan = [(rows, batch) for rows, its in zip(self.epochs, planned, strict=True) for batch in its]
        self.evaluate_at = evaluation_steps([len(its) for its in planned], recipe.evaluations_per_epoch)
        self.optimizer, self.schedule = make_optimizer(self.module, recipe, len(self.plan))
        weights = _class_weights(self.targets) if recipe.class_weights else [1.0] * len(recipe.labels)
        self.class_weights = torch.tensor(weights, device=device)

    def begin(self, split: Split) -> None:
        """Look the texts over with the frozen encoder if they are few, and fit a fresh head alone."""
        # Each line of a file once and whole: what is shown of it beside itself comes later.
        lines = list({example.where: place for place, example in reversed(list(enumerate(split.train)))}.values())
        few = len(lines) + len(split.dev) <= FEW
        if not few and not self.fresh:
            return
        chosen = lines if few else random.Random(self.seed).sample(lines, min(FEW, len(lines)))  # noqa: S311 - a part
        rows = self.epochs[0]
        features, means = self._features([rows[place] for place in chosen])
        if few and self.processes.first:
            judged = [place for place, at in enumerate(chosen) if split.train[at].judged]
            examples = [*(split.train[chosen[place]] for place in judged), *split.dev]
            self._look_over(examples, np.concatenate([means[judged], self._features(self.dev_rows)[1]]))
        if self.fresh:
            layer = last_layer(self.module)
            weights = self.class_weights.cpu().numpy()
            targets = np.array([self.targets[place] for place in chosen], np.float32) * weights
            head = frozen.fit(features, targets, (layer.weight, layer.bias))
            with torch.no_grad():
                for parameter, value in zip((layer.weight, layer.bias), head, strict=True):
                    parameter.copy_(value)
            if self.average:
                self.average = _moving_average(self.module, self.recipe.ema)
            if self.processes.first:
                self.progress.shown = len(chosen)
                self.progress.right = int((frozen.answers(head, features).argmax(1) == targets.argmax(1)).sum())
                self._evaluate()
        self.progress = self.processes.agree(self.progress)

    def _look_over(self, examples: Sequence[Example], features: frozen.Features) -> None:
        """Say whether more texts would help, and list the texts whose labels are doubtful."""
        names, labels = self.recipe.labels, np.array([example.label for example in examples])
        groups = [letters_of(example.text) for example in examples]
        if len(set(groups)) < frozen.FOLDS:
            return
        told, curve = frozen.cross_validated(features, labels, len(names), groups, self.seed)
        tqdm.write(curve.said())
        found = frozen.doubtful(told, labels)
        self.progress.frozen = {"texts": len(examples), "curve": asdict(curve), "doubtful": len(found)}
        table = io.StringIO()
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(("where", "label", "likelier", "probability", "of_likelier", "text"))
        for place in found:
            example, best = examples[place], int(told[place].argmax())
            chances = (f"{told[place, one]:.3f}" for one in (example.label, best))
            rows.writerow((example.where, names[example.label], names[best], *chances, example.text))
        write_file(self.out / DOUBTFUL_FILE, table.getvalue())
        tqdm.write(f"{len(found):,} of {len(examples):,} labels are doubtful: {self.out / DOUBTFUL_FILE}")

    @property
    def accuracy(self) -> float:
        """Of the best model on the development set."""
        return float(np.mean(np.array(self.progress.best_answers) == self.dev_labels))

    def said(self) -> str:
        """What the development set says of the best model, in one line."""
        answers, labels = np.array(self.progress.best_answers), np.array(self.dev_labels)
        (low, high), (least, most) = accuracy_and_f1_intervals(answers, labels, len(self.recipe.labels))
        return (
            f"{len(labels):,} development texts: accuracy {self.accuracy:.3f} (95 %: {low:.3f} to {high:.3f}), macro F1 "
            f"{self.progress.best_f1:.3f} ({least:.3f} to {most:.3f}); they chose the checkpoint, so texts kept apart say less good of it"
        )

    def _continues(self) -> bool:
        return super()._continues() and self.progress.worse_in_a_row < self.recipe.patience

    def _tokens(self, rows: Sequence[Row], batch: Sequence[int]) -> int:
        return sum(len(rows[i].ids) for i in batch)

    def _best(self) -> str:
        return f"{self.progress.best_f1:.4f}"

    def _parts(self) -> dict[str, Any]:
        return {**super()._parts(), "average": self.average} if self.average else super()._parts()

    def _step(self, rows: Sequence[Row], batch: Sequence[int]) -> float:
        share, weight = self.processes.share(batch)
        targets = torch.tensor([self.targets[i] for i in share], device=self.device)
        logits = self._logits(self.module, [rows[i] for i in share])
        loss = self._learn(torch.nn.functional.cross_entropy(logits, targets, self.class_weights) * weight)
        if self.average:
            self.average.update_parameters(self.module)
        # A text whose target probabilities are all equal has no correct answer to count.
        answered = targets.max(-1).values > targets.min(-1).values
        right = (logits.argmax(-1) == targets.argmax(-1)) & answered
        # Read once, at the end of the step, because reading waits for a GPU.
        found = torch.stack([loss, answered.sum(), right.sum()]).tolist()
        self.progress.shown += int(found[1])
        self.progress.right += int(found[2])
        return float(found[0])

    def _logits(self, model: PreTrainedModel, rows: Sequence[Row]) -> torch.Tensor:
        length = max(len(row.ids) for row in rows)
        left = self.family.padding_side == "left"

        def padded(values: Sequence[npt.NDArray[np.integer]], pad: int) -> torch.Tensor:
            table = np.full((len(values), length), pad, np.int64)
            for line, one in zip(table, values, strict=True):
                line[length - len(one) if left else 0 : length if left else len(one)] = one
            return torch.from_numpy(table).to(self.device)

        pad = self.tokenizer.pad_token_id or 0
        inputs = {
            "input_ids": padded([np.where(row.ids == HOLE_ID, pad, row.ids) for row in rows], pad),
            "attention_mask": padded([row.ids != HOLE_ID for row in rows], 0),
        }
        if self.family.segments:
            inputs["token_type_ids"] = padded([row.types for row in rows], 0)
        with mixed_precision(self.device, self.module.config.model_type):
            logits: torch.Tensor = model(**inputs).logits
        return logits.float()

    @property
    def _result(self) -> PreTrainedModel:
        """The model to evaluate and save: the moving average if there is one."""
        result: PreTrainedModel = self.average.module if self.average else self.module  # type: ignore[assignment]  # a copy of ours
        return result

    @torch.no_grad()
    def _evaluate(self) -> dict[str, float]:
        model = self._result
        model.eval()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        labels, answers, loss = np.array(self.dev_labels), np.zeros(len(self.dev_rows), np.int64), 0.0
        for batch, logits in self._answered(model, self.dev_rows):
            answers[batch] = logits.argmax(-1).cpu().numpy()
            loss += float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[batch]).to(self.device), reduction="sum"))
        accuracy, loss = float((answers == labels).mean()), loss / len(labels)
        f1 = float(macro_f1(confusion(answers, labels, len(self.recipe.labels))))
        if not math.isfinite(loss):
            raise ModelsError(
                f"step {self.progress.step}: the loss on dev is {loss}; lower the learning rate ({self.recipe.learning_rate})"
            )
        progress = self.progress
        found = {"step": progress.step, "epoch": self.recipe.epochs * progress.step / len(self.plan)}
        seen = progress.right / max(1, progress.shown)
        progress.history.append({**found, "train_accuracy": seen, "dev_accuracy": accuracy, "dev_macro_f1": f1, "dev_loss": loss})
        progress.shown = progress.right = 0
        tqdm.write(f"step {progress.step}: dev accuracy {accuracy:.4f}, macro F1 {f1:.4f}, loss {loss:.4f}")
        if (f1, -loss) > (progress.best_f1, -progress.best_loss):
            progress.best_f1, progress.best_loss, progress.worse_in_a_row = f1, loss, 0
            progress.best_answers = answers.tolist()
            self._save_best()
        else:
            progress.worse_in_a_row += 1
        return {"dev/accuracy": accuracy, "dev/macro_f1": f1, "dev/loss": loss}

    def _answered(self, model: PreTrainedModel, rows: Sequence[Row]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """The logits of rows, in batches of similar length, with their places."""
        lengths = [len(row.ids) for row in rows]
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        for batch in cut_sorted(order, lengths, self.recipe.batch_rows, self.recipe.batch_tokens):
            yield batch, self._logits(model, [rows[i] for i in batch])

    @torch.no_grad()
    def _features(self, rows: Sequence[Row]) -> tuple[frozen.Features, frozen.Features]:
        """What the last layer of the head reads of rows, and the mean of what the encoder says of their tokens."""
        layer, encoder = last_layer(self.module), self.module.base_model
        features, means = (np.empty((len(rows), width), np.float32) for width in (layer.in_features, self.module.config.hidden_size))
        read: list[torch.Tensor] = []
        handles = [
            encoder.register_forward_hook(lambda _, __, output: read.append(output[0])),
            layer.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0])),
        ]
        self.module.eval()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        answered, first = self._answered(self.module, rows), self.processes.first
        try:
            for batch, _ in tqdm(answered, "frozen encoder", unit="batch", mininterval=5, disable=not first):
                tokens, wanted = (one.float().cpu().numpy() for one in read)
                read.clear()
                places, lengths = np.arange(tokens.shape[1]), np.array([[len(rows[i].ids)] for i in batch])
                padding = (places[::-1] if self.family.padding_side == "left" else places) >= lengths
                tokens[padding] = 0
                features[batch], means[batch] = wanted, tokens.sum(axis=1) / lengths
        finally:
            for handle in handles:
                handle.remove()
        return features, means

    def _save_best(self) -> None:
        replace_checkpoint(self.out / "best", self._result, self.tokenizer, self.inherited)

    def _encode(self, texts: Sequence[TextOrPair]) -> list[Row]:
        backend, instead = _with_marks(self.tokenizer)
        backend.enable_truncation(self.recipe.max_tokens)
        backend.no_padding()
        rows: list[Row] = []
        starts = range(0, len(texts), TOKENIZED_AT_A_TIME)
        for start in tqdm(starts, desc="tokenizing", unit="k texts", mininterval=5, disable=not self.processes.first):
            # Single texts and pairs, tokenized as the service does it.
            found = backend.encode_batch_fast(list(texts[start : start + TOKENIZED_AT_A_TIME]))
            ids = ([instead.get(token, token) for token in one.ids] for one in found)
            rows += (Row(np.array(its, np.int32), np.array(one.type_ids, np.int8)) for its, one in zip(ids, found, strict=True))
        return rows


def _with_marks(tokenizer: Any) -> tuple[Tokenizer, dict[int, int]]:  # Any: transformers has no one type for its tokenizers
    """Make a copy that reads the marks of erased words as tokens of their own, and the ids to put in their places.

    Without transformers' wrapper, which takes as long as the tokenizer itself.
    """
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.add_special_tokens([AddedToken(mark, lstrip=True, normalized=False) for mark in (HOLE, MASK)])
    mask = HOLE_ID if tokenizer.mask_token_id is None else tokenizer.mask_token_id
    return backend, {backend.token_to_id(HOLE): HOLE_ID, backend.token_to_id(MASK): mask}


def _class_weights(targets: Sequence[Sequence[float]]) -> list[float]:
    """The weight of each label: all labels together weigh the same, and the mean weight of a text is 1. 0 for a label without a text."""
    counts = np.sum(targets, axis=0)
    present = counts > 0
    return [float(len(targets) / (present.sum() * count)) if count else 0.0 for count in counts]


def _moving_average(model: PreTrainedModel, decay: float) -> AveragedModel:
    """Make a moving average of the weights that starts at the base's weights."""
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]  # untyped there
    average.update_parameters(model)
    return average


def load_base(recipe: Recipe, texts: Sequence[str]) -> tuple[PreTrainedModel, Any, bool]:  # transformers has no one type for tokenizers
    """Load the base with a classification head for ``recipe.labels``, see ``heads``, or make an untrained model if the base is empty.

    Returns the model, its tokenizer, which an untrained model learns from ``texts``, and whether a fresh head has to be fitted.

    Raises:
        BadCheckpoint: the checkpoint does not exist, is damaged, has a head for other labels, or reads fewer tokens than the recipe has.
    """
    if not recipe.base:
        return *fresh_classifier(recipe, texts), False
    with loading(recipe.base, "a classifier") as family:
        if family not in FAMILIES:
            raise BadCheckpoint(f"{recipe.base}: model_type must be one of {', '.join(FAMILIES)}, got {family}")
        config = config_of(recipe.base)
        config.update(FAMILIES[config.model_type].dropout(recipe.dropout))
        dither = None if recipe.head_only else recipe.seed
        model, fresh = load_with_head(recipe.base, config, recipe.labels, recipe.new_head, dither, _say)
        tokenizer = base_tokenizer(recipe.base)
    check_reads(recipe.base, model.config, recipe.max_tokens)
    return model, tokenizer, fresh


def _say(line: str) -> None:
    if is_first_process():
        sys.stderr.write(f"{line}\n")
