"""Other processes that start at once: they are forked from a server that has imported torch and the commands."""

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from sentiment_models.cli import main
from sentiment_models.study import pretrain
from sentiment_models.training import train

# Far beyond what any of them takes.
TIMEOUT_S = 300

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["sentiment_models.training.train", "sentiment_models.study.pretrain", "sentiment_models.export.export"])


def run(function: Callable[..., object], *calls: Sequence[Any]) -> list[int | None]:
    """Call a function in as many processes as there are calls, at the same time; return their exit codes."""
    # Another hash seed than here: sets and dictionaries are walked in another order.
    with mock.patch.dict(os.environ, PYTHONHASHSEED="7", OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    processes = [CONTEXT.Process(target=function, args=tuple(call)) for call in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT_S)
        process.kill()
    return [process.exitcode for process in processes]


def command(arguments: Sequence[str], printed: Path, threads: int = 1, environment: Mapping[str, str] | None = None) -> None:
    """Run ``sentiment-models``; append what it prints to a file."""
    torch.set_num_threads(threads)
    os.environ.update(environment or {})
    with printed.open("a") as stream, contextlib.redirect_stdout(stream):
        code = main(arguments)
    sys.exit(code)


def killed_in_step_5(kind: str, recipe: object, out: Path, threads: int) -> None:
    """Train until the kernel kills the process in step 5: after the checkpoint of step 4, with step 5's weights in memory only."""
    torch.set_num_threads(threads)
    module: Any = {"train": train, "pretrain": pretrain}[kind]
    step = module._Run._step

    def dies(self: Any, *batch: Any) -> float:
        loss = step(self, *batch)
        if self.progress.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss

    module._Run._step = dies
    getattr(module, kind)(recipe, out, checkpoint_steps=2)
