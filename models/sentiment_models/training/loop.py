"""The loop of a run that trains on planned batches. It survives kill -9: one checkpoint file holds everything needed to continue."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from sentiment_models.export.provenance import Json
from sentiment_models.training.distributed import Processes
from sentiment_models.training.resume import load_state, save_state
from sentiment_models.training.tracking import Log


@dataclass(slots=True)
class Progress:
    """The progress of a run, all of it saved in the checkpoint. ``history``: the figures of each evaluation."""

    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


P = TypeVar("P", bound=Progress)


class Loop(ABC, Generic[P]):
    """Takes a step per batch of ``plan``, and evaluates after the steps ``evaluate_at``. A subclass sets these fields.

    ``plan``: what the batch is of, as the methods take it, and the batch.
    """

    title: str
    module: PreTrainedModel
    plan: Sequence[tuple[Any, Sequence[int]]]
    evaluate_at: set[int]
    optimizer: torch.optim.Optimizer
    # transformers leaves it untyped.
    schedule: Any

    def __init__(
        self, seed: int, out: Path, device: torch.device, dependencies: Mapping[str, Json], processes: Processes, progress: P
    ) -> None:
        """Seed torch. ``dependencies``: what the run depends on, see ``resume``; ``progress``: that of a new run."""
        torch.manual_seed(seed)
        torch.set_flush_denormal(True)
        self.seed, self.out, self.device, self.dependencies = seed, out, device, dependencies
        self.processes, self.progress = processes, progress

    @abstractmethod
    def _step(self, group: Any, batch: Sequence[int]) -> float:
        """Learn from a batch of the plan; return its loss."""

    @abstractmethod
    def _tokens(self, group: Any, batch: Sequence[int]) -> int:
        """Count the tokens of a batch of the plan."""

    @abstractmethod
    def _evaluate(self) -> dict[str, float]:
        """Measure the model and save it if it is the best so far; return the figures for the log."""

    @abstractmethod
    def _best(self) -> str:
        """Format the best figure so far, for the bar."""

    def _continues(self) -> bool:
        return self.progress.step < len(self.plan)

    def _parts(self) -> dict[str, Any]:
        """What has a state to save beside the progress, by name."""
        return {"model": self.module, "optimizer": self.optimizer, "schedule": self.schedule}

    def loop(self, checkpoint_steps: int) -> None:
        """Take the steps that are left, and save the state every ``checkpoint_steps`` steps and after each evaluation."""
        first = self.processes.first
        bar = tqdm(total=len(self.plan), initial=self.progress.step, desc=self.title, unit="batch", mininterval=5, disable=not first)
        log = Log(self.out, self.progress.step, wanted=first and self._continues())
        smooth = None
        while self._continues():
            group, batch = self.plan[self.progress.step]
            rate = self.schedule.get_last_lr()[0]
            # Seeded by the step, so that a resumed run has the same dropout as an uninterrupted one.
            torch.manual_seed(self.seed * 1_000_003 + self.progress.step + self.processes.rank * 10**12)
            self.module.train()
            loss = self._step(group, batch)
            smooth = loss if smooth is None else 0.98 * smooth + 0.02 * loss
            self.progress.step += 1
            log.step(self.progress.step, self._tokens(group, batch), {"train/loss": loss, "train/learning_rate": rate})
            bar.update()
            bar.set_postfix(loss=f"{smooth:.3f}", dev=self._best(), refresh=False)
            evaluated = self.progress.step in self.evaluate_at
            if evaluated:
                if first:
                    log.report(self.progress.step, self._evaluate())
                self.progress = self.processes.agree(self.progress)
            if evaluated or self.progress.step % checkpoint_steps == 0:
                if first:
                    state = {name: part.state_dict() for name, part in self._parts().items()}
                    save_state(self.out / "checkpoint.pt", {**state, "progress": asdict(self.progress)}, self.dependencies)
                log.flush()
                log.resume_clock()
        bar.close()
        log.close()

    def _learn(self, loss: torch.Tensor) -> torch.Tensor:
        """Change the weights by the gradients of this process's part of a loss and those of the others; return the whole loss."""
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        loss = self.processes.sum_gradients(list(self.module.parameters()), loss)
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def restore(self) -> None:
        """Continue from the checkpoint if there is one."""
        state = load_state(self.out / "checkpoint.pt", self.dependencies, "choose another --output, start over with --restart")
        if state is None:
            return
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.progress = type(self.progress)(**state["progress"])
