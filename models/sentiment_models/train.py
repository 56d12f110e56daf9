"""Fine-tune a sequence classifier. Survives kill -9: everything a run needs to go on stands in one checkpoint file."""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from tqdm import tqdm
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, get_linear_schedule_with_warmup

from sentiment_models.data import Example, Source, Split, batches, carve, last_sentences, read_examples
from sentiment_models.errors import BadCheckpoint
from sentiment_models.provenance import distinct_names

T = TypeVar("T")
# About two sentences: as long as what people type.
TAIL_WORDS_MAX = 40


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained. Two runs with one recipe, one set of files and one machine do the same."""

    base: str
    sources: tuple[str, ...]
    # Files of long texts whose last sentences are shown as texts of their own.
    tails: tuple[str, ...] = ()
    labels: tuple[str, ...] = ("negative", "positive")
    epochs: int = 1
    learning_rate: float = 5e-5
    warmup_fraction: float = 0.06
    weight_decay: float = 0.01
    dropout: float = 0.1
    batch_rows: int = 64
    batch_tokens: int = 4096
    max_tokens: int = 256
    dev_fraction: float = 0.03
    evaluations_per_epoch: int = 4
    patience: int = 4
    seed: int = 1

    def fingerprint(self, data: str) -> str:
        """Identify the run: a checkpoint of another recipe or of other data is never resumed."""
        return hashlib.sha256(json.dumps([asdict(self), data], sort_keys=True).encode()).hexdigest()


@dataclass(slots=True)
class Progress:
    """Where a run stands; all of it is in the checkpoint."""

    step: int = 0
    best_accuracy: float = -1.0
    best_loss: float = float("inf")
    worse_in_a_row: int = 0
    history: list[dict[str, float]] | None = None


def train(recipe: Recipe, out: Path, device: str = "cpu", checkpoint_steps: int = 200, resume: bool = True) -> Path:
    """Fine-tune ``recipe.base`` and return ``out/best``, a Hugging Face checkpoint directory with training.json.

    ``out/dev.jsonl`` is the development set, for calibration. ``out/checkpoint.pt`` is replaced atomically every
    ``checkpoint_steps`` steps and after each evaluation; a repeated call goes on from it, and after the end of a run only
    writes training.json and dev.jsonl again. Training stops early after ``recipe.patience`` evaluations on dev without a
    better accuracy.

    Raises:
        BadData: a data file cannot be used.
        BadCheckpoint: the base cannot be loaded, or ``out`` holds a run of another recipe or other data.
    """
    out.mkdir(parents=True, exist_ok=True)
    split, hashes, files = _load_split(recipe)
    run = _Run(recipe, split, out, torch.device(device), recipe.fingerprint(json.dumps(hashes)))
    if resume:
        run.restore()
    rows = [{"label": recipe.labels[example.label], "text": example.text} for example in split.dev]
    _write_atomically(out / "dev.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    run.loop(checkpoint_steps)
    provenance = {
        "recipe": {
            **asdict(recipe),
            # A folder's path says where it stood on this machine; a name such as organisation/model stays.
            "base": Path(recipe.base).resolve().name if Path(recipe.base).is_dir() else recipe.base,
            "sources": [file["file"] for file in files if not file["tails"]],
            "tails": [file["file"] for file in files if file["tails"]],
        },
        # Fine-tuning in stages: what made the base, if it was trained here.
        "base_training": _base_training(Path(recipe.base)),
        "files": files,
        "train_examples": len(split.train),
        "dev_examples": len(split.dev),
        "steps": run.progress.step,
        "dev_accuracy": run.progress.best_accuracy,
        "history": run.progress.history,
    }
    _write_atomically(out / "best" / "training.json", json.dumps(provenance, indent=1).encode())
    return out / "best"


def _base_training(base: Path) -> Any:  # plain JSON
    record = base / "training.json"
    return json.loads(record.read_text(encoding="utf-8")) if record.is_file() else None


def _load_split(recipe: Recipe) -> tuple[Split, dict[str, str], list[dict[str, Any]]]:
    wholes, tails = [[Source.parse(spec) for spec in specs] for specs in (recipe.sources, recipe.tails)]
    sources = wholes + tails
    examples = [list(read_examples(source.path, recipe.labels)) for source in sources]
    shown = [(rows, source.times) for rows, source in zip(examples, sources, strict=True)]
    split = carve(shown[: len(wholes)], recipe.dev_fraction, recipe.seed)
    for rows, times in shown[len(wholes) :]:
        # The same texts stand aside for dev as above.
        train = carve([(rows, times)], recipe.dev_fraction, recipe.seed).train
        split.train.extend(Example(last_sentences(example.text, TAIL_WORDS_MAX), example.label) for example in train)
    hashes = [hashlib.sha256(source.path.read_bytes()).hexdigest() for source in sources]
    names = distinct_names([source.path for source in sources])
    files = [
        {"file": name, "rows": len(rows), "times": source.times, "tails": index >= len(wholes), "sha256": digest}
        for index, (name, rows, source, digest) in enumerate(zip(names, examples, sources, hashes, strict=True))
    ]
    return split, dict(zip(names, hashes, strict=True)), files


class _Run:
    def __init__(self, recipe: Recipe, split: Split, out: Path, device: torch.device, fingerprint: str) -> None:
        torch.manual_seed(recipe.seed)
        torch.set_flush_denormal(True)
        self.recipe, self.out, self.device, self.fingerprint = recipe, out, device, fingerprint
        self.progress = Progress(history=[])
        self.model, self.tokenizer = load_base(recipe)
        self.model.to(device)  # type: ignore[arg-type]  # transformers hides the signature behind a wrapper
        self.train_rows = self._encode([example.text for example in split.train])
        self.train_labels = [example.label for example in split.train]
        self.dev_rows = self._encode([example.text for example in split.dev])
        self.dev_labels = [example.label for example in split.dev]
        lengths = [len(row) for row in self.train_rows]
        self.plan = [
            batch
            for epoch in range(recipe.epochs)
            for batch in batches(lengths, recipe.batch_rows, recipe.batch_tokens, random.Random(f"{recipe.seed}/{epoch}"))  # noqa: S311 - an order
        ]
        plain = [p for n, p in self.model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
        plain_ids = {id(p) for p in plain}
        decayed = [p for p in self.model.parameters() if id(p) not in plain_ids]
        groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=True)
        warmup = int(recipe.warmup_fraction * len(self.plan))
        self.schedule = get_linear_schedule_with_warmup(self.optimizer, warmup, len(self.plan))  # type: ignore[no-untyped-call]  # untyped there

    def loop(self, checkpoint_steps: int) -> None:
        evaluate_steps = max(1, len(self.plan) // (self.recipe.epochs * self.recipe.evaluations_per_epoch))
        bar = tqdm(total=len(self.plan), initial=self.progress.step, desc="training", unit="batch", mininterval=5)
        smooth = None
        while self.progress.step < len(self.plan) and self.progress.worse_in_a_row < self.recipe.patience:
            loss = self._step(self.plan[self.progress.step])
            smooth = loss if smooth is None else 0.98 * smooth + 0.02 * loss
            self.progress.step += 1
            bar.update()
            bar.set_postfix(loss=f"{smooth:.3f}", dev=f"{self.progress.best_accuracy:.4f}", refresh=False)
            last = self.progress.step == len(self.plan)
            evaluated = last or self.progress.step % evaluate_steps == 0
            if evaluated:
                self._evaluate()
            if evaluated or self.progress.step % checkpoint_steps == 0:
                self._checkpoint()
        bar.close()

    def _step(self, batch: Sequence[int]) -> float:
        # Seeded by the step, so that a resumed run draws the same dropout as an uninterrupted one.
        torch.manual_seed(self.recipe.seed * 1_000_003 + self.progress.step)
        self.model.train()
        labels = torch.tensor([self.train_labels[i] for i in batch], device=self.device)
        logits = self._logits([self.train_rows[i] for i in batch])
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def _logits(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        length = max(len(row) for row in rows)
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([[*row, *[pad] * (length - len(row))] for row in rows], device=self.device)
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows], device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            logits: torch.Tensor = self.model(input_ids=ids, attention_mask=mask).logits
        return logits.float()

    @torch.no_grad()
    def _evaluate(self) -> None:
        self.model.eval()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        right, loss = 0, 0.0
        order = sorted(range(len(self.dev_rows)), key=lambda i: len(self.dev_rows[i]))
        for batch in _chunks(order, self.recipe.batch_rows):
            labels = torch.tensor([self.dev_labels[i] for i in batch], device=self.device)
            logits = self._logits([self.dev_rows[i] for i in batch])
            right += int((logits.argmax(-1) == labels).sum())
            loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
        accuracy, loss = right / len(order), loss / len(order)
        progress = self.progress
        assert progress.history is not None
        progress.history.append({"step": progress.step, "dev_accuracy": accuracy, "dev_loss": loss})
        tqdm.write(f"step {progress.step}: dev accuracy {accuracy:.4f}, loss {loss:.4f}")
        if (accuracy, -loss) > (progress.best_accuracy, -progress.best_loss):
            progress.best_accuracy, progress.best_loss, progress.worse_in_a_row = accuracy, loss, 0
            self._save_best()
        else:
            progress.worse_in_a_row += 1

    def _save_best(self) -> None:
        new = self.out / "best.part"
        shutil.rmtree(new, ignore_errors=True)
        self.model.save_pretrained(new)
        self.tokenizer.save_pretrained(new)
        shutil.rmtree(self.out / "best", ignore_errors=True)
        new.rename(self.out / "best")

    def _checkpoint(self) -> None:
        state = {
            "fingerprint": self.fingerprint,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "progress": asdict(self.progress),
        }
        part = self.out / "checkpoint.pt.part"
        torch.save(state, part)
        os.replace(part, self.out / "checkpoint.pt")

    def restore(self) -> None:
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises half a dozen kinds for a damaged file
            raise BadCheckpoint(f"{path}: damaged ({error}); delete it to start again") from error
        if state["fingerprint"] != self.fingerprint:
            raise BadCheckpoint(f"{path}: belongs to another recipe or other data; choose another --out or delete it")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.progress = Progress(**state["progress"])

    def _encode(self, texts: list[str]) -> list[list[int]]:
        rows: list[list[int]] = []
        for chunk in tqdm(list(_chunks(texts, 1000)), desc="tokenizing", unit="k texts", mininterval=5):
            rows += self.tokenizer(list(chunk), truncation=True, max_length=self.recipe.max_tokens)["input_ids"]
        return rows


def load_base(recipe: Recipe) -> tuple[PreTrainedModel, Any]:  # transformers has no one type for its tokenizers
    """Load the base with a fresh classification head of ``recipe.labels``.

    Raises:
        BadCheckpoint: there is no such checkpoint, or it is damaged.
    """
    names = dict(enumerate(recipe.labels))
    try:
        model = AutoModelForSequenceClassification.from_pretrained(
            recipe.base,
            num_labels=len(names),
            id2label=names,
            label2id={name: index for index, name in names.items()},
            hidden_dropout_prob=recipe.dropout,
            # Dropout on attention probabilities rules out the fused kernel: 1,504 against 2,816 tokens/s on two cores.
            attention_probs_dropout_prob=0.0,
        )
        tokenizer = AutoTokenizer.from_pretrained(recipe.base, use_fast=True)  # type: ignore[no-untyped-call]  # untyped there
        return model, tokenizer
    except (OSError, ValueError, KeyError) as error:
        raise BadCheckpoint(f"{recipe.base}: cannot be loaded as a classifier: {error}") from error


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _write_atomically(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.replace(part, path)
