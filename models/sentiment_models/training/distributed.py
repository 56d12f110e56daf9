"""Training in several processes started by torchrun: each takes its share of every batch, and all take the same step.

Knows nothing of models or texts. Gradients are summed once after the backward pass. DistributedDataParallel overlaps the two, but takes
the mean of equal shares; here a share may have any size or be empty, and a single process computes exactly what it computes without
torchrun.
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
# The other processes wait this long while the first one evaluates and saves.
WAIT_MAX = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class Processes:
    """The position of this process among those that train together. Without torchrun there is one."""

    rank: int = 0
    count: int = 1
    # The index among the processes of this machine, and so of the GPU to use.
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this process evaluates, writes files and prints."""
        return self.rank == 0

    def device(self, wanted: str) -> torch.device:
        """Return the device that this process computes on. With ``cuda``, each of several processes has its own GPU.

        Raises:
            ModelsError: the device does not exist.
        """
        return usable_device(f"cuda:{self.local_rank}" if wanted == "cuda" and self.count > 1 else wanted)

    def share(self, batch: Sequence[T]) -> tuple[Sequence[T], float]:
        """Return this process's rows of a batch, and the weight of their mean in the mean of the batch.

        There is always at least one row, so that all processes have gradients of the same weights. A row that must not count gets weight 0.
        """
        rows = batch[self.rank :: self.count]
        return (rows, len(rows) / len(batch)) if rows else (batch[:1], 0.0)

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], loss: torch.Tensor) -> torch.Tensor:
        """Replace every gradient by its sum over all processes, and return the sum of the losses."""
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
        """Return the sum of ``count`` over all processes. ``device`` is the device that this process computes on."""
        if self.count == 1:
            return count
        box = torch.tensor(count, device=device)
        distributed.all_reduce(box)
        return int(box)

    def agree(self, value: Any) -> Any:  # Any: what pickle takes
        """Return the first process's value in all processes."""
        if self.count == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box)
        return box[0]

    def check_same(self, what: str, value: object) -> None:
        """Check that all processes start from the same state. They do not if, for example, they do not share a folder.

        Raises:
            ModelsError: names the values of the first process and of this one.
        """
        first = self.agree(value)
        if first != value:
            raise ModelsError(f"process {self.rank} has {what} {value}, but process 0 has {first}; all processes must see the same files")

    def leave(self) -> None:
        """Wait for the other processes and close the process group."""
        if self.count > 1:
            distributed.barrier()
            distributed.destroy_process_group()


def usable_device(name: str) -> torch.device:
    """Return the device of a name such as cpu, cuda or cuda:1.

    Raises:
        ModelsError: torch does not know the device or cannot use it. Names the reason and the devices that exist.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (AssertionError, RuntimeError) as error:
        why = str(error).strip().partition("\n")[0]
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise ModelsError(f"device {name} cannot be used: {why}; this machine has cpu and {gpus} CUDA GPUs") from error
    return device


def join(device: str) -> Processes:
    """Join the process group if torchrun started this process.

    Args:
        device: where all processes compute. GPUs communicate by NCCL, CPUs by Gloo.

    Raises:
        ModelsError: the device does not exist.
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


def is_first_process() -> bool:
    """Whether this process is the first or only one, which prints the result."""
    return os.environ.get("RANK", "0") == "0"
