"""Training by several processes that torchrun started: each takes its share of every batch, and all take the same step.

Knows nothing of models or texts. Gradients are summed in one go after the backward pass, not overlapped with it as
DistributedDataParallel does: a share may be of any size, or empty, and one process does exactly what it does without torchrun.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed

from sentiment_models.errors import ModelsError

T = TypeVar("T")
# The others wait while the first process evaluates and saves.
WAIT_MAX = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class Processes:
    """One process among those that train together; without torchrun it is alone."""

    rank: int = 0
    count: int = 1
    # Among those on this machine: which of its GPUs is ours.
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this one evaluates, writes and speaks for all."""
        return self.rank == 0

    def device(self, wanted: str) -> torch.device:
        """Return the device that this process computes on: of several GPUs each process has one.

        Raises:
            ModelsError: it is not there.
        """
        return usable_device(f"cuda:{self.local_rank}" if wanted == "cuda" and self.count > 1 else wanted)

    def share(self, batch: Sequence[T]) -> tuple[Sequence[T], float]:
        """Return this process's rows of a batch and the weight of their mean in that of the batch.

        There is always a row: one that must not count has the weight 0, so that all processes have gradients of the same weights.
        """
        rows = batch[self.rank :: self.count]
        return (rows, len(rows) / len(batch)) if rows else (batch[:1], 0.0)

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], loss: torch.Tensor) -> torch.Tensor:
        """Replace every gradient by its sum over all processes, and return that of the losses."""
        if self.count == 1:
            return loss
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([loss.detach().reshape(1).float(), *(gradient.reshape(-1).float() for gradient in gradients)])
        distributed.all_reduce(flat)
        start = 1
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()
        return flat[0]

    def total(self, count: int, device: torch.device) -> int:
        """Return the sum of what all processes counted; ``device``: the one that ours computes on."""
        if self.count == 1:
            return count
        box = torch.tensor(count, device=device)
        distributed.all_reduce(box)
        return int(box)

    def agree(self, value: Any) -> Any:  # Any: what pickle takes
        """Return the first process's value in all of them."""
        if self.count == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box)
        return box[0]

    def check_same(self, what: str, value: object) -> None:
        """Refuse to train if the processes do not start from one point, for example because they do not share a folder.

        Raises:
            ModelsError: names the first process's value and ours.
        """
        first = self.agree(value)
        if first != value:
            raise ModelsError(f"process {self.rank} has {what} {value} and process 0 {first}; all must see the same files")

    def leave(self) -> None:
        """Wait for the others and end what ``join`` began."""
        if self.count > 1:
            distributed.barrier()
            distributed.destroy_process_group()


def usable_device(name: str) -> torch.device:
    """Return the device of a name such as cpu, cuda or cuda:1.

    Raises:
        ModelsError: torch knows no such device, or cannot use it here; says why.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (AssertionError, RuntimeError) as error:
        why = str(error).strip().partition("\n")[0]
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise ModelsError(f"device is {name}: {why}; here are cpu and {gpus} CUDA GPUs") from error
    return device


def join(device: str) -> Processes:
    """Meet the other processes, if torchrun started this one.

    Args:
        device: where all will compute; GPUs talk by NCCL, CPUs by Gloo.

    Raises:
        ModelsError: it is not there.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Processes()
    found = Processes(int(os.environ["RANK"]), count, int(os.environ["LOCAL_RANK"]))
    where = found.device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    distributed.init_process_group("nccl" if where.type == "cuda" else "gloo", timeout=WAIT_MAX)
    return found


def speaks() -> bool:
    """Whether this process tells the person at the terminal what all did: the first one, or the only one."""
    return os.environ.get("RANK", "0") == "0"
