"""Pre-train an encoder on unlabelled documents, untrained or from a base. A run survives kill -9, as in ``train``."""

import json
import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from sentiment_models.data.carving import carve
from sentiment_models.data.labelled import Example, Source, batches, evaluation_steps
from sentiment_models.errors import BadData, ModelsError
from sentiment_models.export.folders import locked
from sentiment_models.export.manifest import sha256
from sentiment_models.export.provenance import Json, distinct_names
from sentiment_models.reports.report import write_file
from sentiment_models.study.documents import Documents, Frame, Row, pairs, read_documents, segments
from sentiment_models.study.language_model import LanguageModel, fresh, load, load_tokenizer
from sentiment_models.study.masking import IGNORED, Ids, Vocabulary, mask
from sentiment_models.study.recipes import Pretraining
from sentiment_models.training.bases import TRAINING_FILE, content_of, folder_of, name_of, training_of
from sentiment_models.training.distributed import Processes, join
from sentiment_models.training.loop import Loop, Progress
from sentiment_models.training.optimizer import make_optimizer
from sentiment_models.training.precision import mixed_precision
from sentiment_models.training.recipe import Shape
from sentiment_models.training.resume import fingerprint_of, replace_checkpoint
from sentiment_models.training.scratch import train_tokenizer


@dataclass(slots=True)
class _Progress(Progress):
    """``loss_sum`` is over the ``loss_steps`` steps since the last evaluation."""

    best_loss: float = float("inf")
    loss_sum: float = 0.0
    loss_steps: int = 0


def pretrain(recipe: Pretraining, out: Path, device: str = "cpu", checkpoint_steps: int = 200, resume: bool = True) -> Path:
    """Pre-train and return ``out/best``, a Hugging Face checkpoint that ``train`` takes as its base, with training.json.

    ``out/best`` has the lowest loss on the held-out documents. A hash of a document's letters decides whether it is held out, as in
    ``train``. ``out/checkpoint.pt`` is replaced atomically every ``checkpoint_steps`` steps and after each evaluation. A repeated call
    continues from it; after the end of a run it only writes training.json again. ``out/logs`` is for TensorBoard. Under torchrun each
    process takes its share of every batch, and the first process writes.

    Raises:
        BadData: a file cannot be used or is too small.
        BadCheckpoint: the base or the tokenizer cannot be loaded, or ``out`` is damaged.
        OtherRun: ``out`` holds a run with another recipe, other data or another base.
        ModelsError: another process uses ``out``, the processes do not see the same files, or the loss was never a finite number.
    """
    processes = join(device)
    base, tokenizer = name_of(recipe.base), name_of(recipe.tokenizer)
    recipe = replace(recipe, base=folder_of(recipe.base), tokenizer=folder_of(recipe.tokenizer))
    base_training = training_of(recipe.base)
    sources = [Source.parse(spec) for spec in recipe.sources]
    texts = [[Example(text, 0) for text in read_documents(source.path)] for source in sources]
    hashes = [sha256(source.path) for source in sources]
    split = carve([(rows, source.times) for rows, source in zip(texts, sources, strict=True)], recipe.dev_fraction, recipe.seed)
    names = distinct_names([source.path for source in sources])
    # By content: the paths of base and tokenizer may hold other files by now.
    begins = {"base": content_of(recipe.base), "tokenizer": content_of(recipe.tokenizer)}
    dependencies = {**asdict(recipe), **begins, **{f"SHA-256 of {name}": digest for name, digest in zip(names, hashes, strict=True)}}
    train, dev = ([one.text for one in rows] for rows in (split.train, split.dev))
    run = _Run(recipe, train, dev, out, processes.device(device), dependencies, processes)
    # After the files are read, so that unusable files leave no folder behind.
    with locked(out) if processes.first else nullcontext():
        if resume:
            run.restore()
        # Each process has learned its own tokenizer and drawn its own plan.
        vocabulary = fingerprint_of(run.model.tokenizer.get_vocab())
        state = (fingerprint_of(dependencies), run.progress.step, len(run.plan), vocabulary)
        processes.check_same("run, step, steps and vocabulary", state)
        run.loop(checkpoint_steps)
        if processes.first:
            if not (out / "best").is_dir():
                raise ModelsError(
                    f"{out}: the loss on held-out documents was never a finite number; lower --learning-rate ({recipe.learning_rate})"
                )
            record = {
                "recipe": {**asdict(recipe), "base": base, "tokenizer": tokenizer, "sources": names},
                "base_training": base_training,
                "files": [
                    {"file": name, "documents": len(rows), "times": source.times, "sha256": digest}
                    for name, rows, source, digest in zip(names, texts, sources, hashes, strict=True)
                ],
                "train_documents": len(split.train),
                "dev_documents": len(split.dev),
                "tokens": len(run.documents.tokens),
                "processes": processes.count,
                "steps": run.progress.step,
                "history": run.progress.history,
            }
            write_file(out / "best" / TRAINING_FILE, json.dumps(record, indent=1))
    processes.leave()
    return out / "best"


def build(recipe: Pretraining, texts: Sequence[str]) -> LanguageModel:
    """Load the base, or make an untrained model with the recipe's tokenizer or one that is learned from the texts."""
    if recipe.base:
        return load(recipe.base, recipe.dropout, recipe.max_tokens, next_sentence=recipe.next_sentence)
    shape = Shape(recipe.layers, recipe.heads, recipe.width)
    if recipe.tokenizer:
        tokenizer = load_tokenizer(recipe.tokenizer)
    else:
        tokenizer = train_tokenizer(list(dict.fromkeys(texts)), recipe.vocabulary, recipe.max_tokens)
    return fresh(shape, tokenizer, recipe.dropout, recipe.max_tokens, next_sentence=recipe.next_sentence)


class Masker:
    """Turns rows into inputs and labels. The masks depend on seed, epoch and row, not on the batch."""

    def __init__(self, tokenizer: Any, size: int, seed: int, *, two_segments: bool) -> None:
        """Read the special tokens of a tokenizer. ``size`` is the model's number of ids, some of which the tokenizer may not use."""
        self.frame = Frame.of(tokenizer, 2 if two_segments else 1)
        # A model may have more rows than its tokenizer has entries.
        known = min(size, len(tokenizer))
        self.vocabulary = Vocabulary.of(known, tokenizer.mask_token_id, tokenizer.all_special_ids)
        self.pad, self.seed = tokenizer.pad_token_id or 0, seed

    def row(self, documents: Documents, row: Row, epoch: int, number: int) -> tuple[Ids, Ids, Ids]:
        """Return the input ids, the segment ids and the labels (-100 where nothing is predicted), each [tokens]."""
        spans = (row.a, row.b)[: len(self.frame.special) - 1]
        ids, types = self.frame.lay_out([documents.tokens[begin:end] for begin, end in spans])
        read, labels = mask(ids, self.vocabulary, np.random.default_rng([self.seed, epoch, number]))
        return read, types, labels

    def batch(self, documents: Documents, rows: Sequence[Row], epoch: int, numbers: Sequence[int]) -> dict[str, torch.Tensor]:
        """Pad rows to the longest: ids, types, attended and labels [rows, tokens]; follows [rows], 0 if the second segment follows."""
        made = [self.row(documents, rows[number], epoch, number) for number in numbers]
        length = max(len(read) for read, _, _ in made)

        def padded(index: int, fill: int) -> torch.Tensor:
            return torch.from_numpy(np.stack([np.pad(one[index], (0, length - len(one[index])), constant_values=fill) for one in made]))

        attended = torch.tensor([[1] * len(read) + [0] * (length - len(read)) for read, _, _ in made])
        follows = torch.tensor([int(not rows[number].follows) for number in numbers])
        return {"ids": padded(0, self.pad), "types": padded(1, 0), "labels": padded(2, IGNORED), "attended": attended, "follows": follows}


class _Run(Loop[_Progress]):
    title = "pre-training"

    def __init__(
        self,
        recipe: Pretraining,
        train: list[str],
        dev: list[str],
        out: Path,
        device: torch.device,
        dependencies: dict[str, Json],
        processes: Processes,
    ) -> None:
        super().__init__(recipe.seed, out, device, dependencies, processes, _Progress())
        self.recipe = recipe
        self.model = build(recipe, train)
        self.module = self.model.module
        self.module.to(device)  # type: ignore[arg-type]  # transformers hides the signature behind a wrapper
        self.masker = Masker(self.model.tokenizer, self.module.config.vocab_size, recipe.seed, two_segments=recipe.next_sentence)
        self.documents, self.dev = self._encode(train), self._encode(dev)
        self.dev_rows = self._rows(self.dev, "dev")
        # Pairs are drawn again in each epoch; rows of one segment stay the same.
        drawn = [self._rows(self.documents, str(epoch)) for epoch in range(recipe.epochs if recipe.next_sentence else 1)]
        self.epochs = drawn if recipe.next_sentence else drawn * recipe.epochs
        planned = [self._batches(rows, str(epoch)) for epoch, rows in enumerate(self.epochs)]
        self.plan = [(epoch, batch) for epoch, its in enumerate(planned) for batch in its][: recipe.max_steps or None]
        self.evaluate_at = {len(self.plan)} | evaluation_steps([len(its) for its in planned], recipe.evaluations_per_epoch)
        self.optimizer, self.schedule = make_optimizer(self.module, recipe, len(self.plan))

    def _tokens(self, epoch: int, numbers: Sequence[int]) -> int:
        return sum(self.epochs[epoch][number].tokens + self.masker.frame.tokens for number in numbers)

    def _best(self) -> str:
        return f"{self.progress.best_loss:.3f}"

    def _step(self, epoch: int, numbers: Sequence[int]) -> float:
        share, weight = self.processes.share(numbers)
        # Epoch 0 of the masks belongs to the development set.
        sums = self._measure(self.documents, self.epochs[epoch], epoch + 1, share)
        chosen = self.processes.total(sums["chosen"] if weight else 0, self.device)
        loss = float(self._learn((sums["loss"] / max(1, chosen) + sums["next_loss"] / len(numbers)) * bool(weight)))
        self.progress.loss_sum += loss
        self.progress.loss_steps += 1
        return loss

    def _measure(self, documents: Documents, rows: Sequence[Row], epoch: int, numbers: Sequence[int]) -> dict[str, Any]:
        """Return sums over one batch: losses as tensors, counts as integers."""
        batch = {name: tensor.to(self.device) for name, tensor in self.masker.batch(documents, rows, epoch, numbers).items()}
        chosen = batch["labels"] != IGNORED
        with mixed_precision(self.device, "bert"):
            found = self.model(batch["ids"], batch["types"], batch["attended"], chosen)
        tokens, wanted = found.tokens.float(), batch["labels"][chosen]
        sums: dict[str, Any] = {
            "loss": cross_entropy(tokens, wanted, reduction="sum"),
            "chosen": len(wanted),
            "right": int((tokens.argmax(-1) == wanted).sum()),
            "next_loss": torch.zeros((), device=self.device),
            "rows": len(numbers),
            "next_right": 0,
        }
        if found.follows is not None:
            sums["next_loss"] = cross_entropy(found.follows.float(), batch["follows"], reduction="sum")
            sums["next_right"] = int((found.follows.argmax(-1) == batch["follows"]).sum())
        return sums

    @torch.no_grad()
    def _evaluate(self) -> dict[str, float]:
        self.module.eval()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        sums: dict[str, float] = {}
        for numbers in self._batches(self.dev_rows, "dev"):
            for name, value in self._measure(self.dev, self.dev_rows, 0, numbers).items():
                sums[name] = sums.get(name, 0.0) + float(value)
        progress = self.progress
        found = {
            "step": progress.step,
            "train_loss": progress.loss_sum / progress.loss_steps,
            "dev_loss": sums["loss"] / max(1, sums["chosen"]) + sums["next_loss"] / sums["rows"],
            "masked_accuracy": sums["right"] / max(1, sums["chosen"]),
        }
        if self.recipe.next_sentence:
            found["next_sentence_accuracy"] = sums["next_right"] / sums["rows"]
        progress.loss_sum, progress.loss_steps = 0.0, 0
        progress.history.append(found)
        tqdm.write(
            ", ".join(f"{name.replace('_', ' ')} {value:.4f}" if name != "step" else f"step {value}" for name, value in found.items())
        )
        if found["dev_loss"] < progress.best_loss:
            progress.best_loss = found["dev_loss"]
            replace_checkpoint(self.out / "best", self.module, self.model.tokenizer)
        return {f"dev/{name.removeprefix('dev_')}": value for name, value in found.items() if name not in ("step", "train_loss")}

    def _encode(self, texts: list[str]) -> Documents:
        def tokenize(sentences: list[str]) -> list[list[int]]:
            ids: list[list[int]] = self.model.tokenizer(sentences, add_special_tokens=False, verbose=False)["input_ids"]
            return ids

        return Documents.encode(texts, tokenize, (self.recipe.max_tokens - self.masker.frame.tokens) // 2)

    def _rows(self, documents: Documents, name: str) -> list[Row]:
        room = self.recipe.max_tokens - self.masker.frame.tokens
        if self.recipe.next_sentence:
            rows = pairs(documents, room, random.Random(f"{self.recipe.seed}/{name}/pairs"))  # noqa: S311 - a choice of texts
        else:
            rows = segments(documents, room)
        if not rows:
            raise BadData(f"the {len(documents)} documents of {name} are too short: each has at most one token")
        return rows

    def _batches(self, rows: Sequence[Row], name: str) -> list[list[int]]:
        lengths = [row.tokens + self.masker.frame.tokens for row in rows]
        order = random.Random(f"{self.recipe.seed}/{name}")  # noqa: S311 - an order
        return batches(lengths, self.recipe.batch_rows, self.recipe.batch_tokens, order)
