"""State that the stages share: the remaining time, the child processes, the figures, and the reasons for missing ones."""

import itertools
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.gpu.child import Child, Gone
from tests.bench.gpu.spread import Rounds
from tests.bench.gpu.wheels import PEERS, why_not, with_libraries, with_peer

# A child imports its libraries and initializes CUDA within this time, or within this share of what is left.
START_S_MAX, START_SHARE = 60.0, 0.3

COMPANY = {"texts": 200, "longest": 512, "batches": (2, 7, 33, 64)}

Figures = Mapping[str, float | Rounds]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured, on a GPU if not said otherwise.

    ``models``: those used as BERT-base and MiniLM-L6; ``budgets``: the batch sizes to try, in tokens; ``company``: of ``Inside.company``.
    ``warm_s``, ``load_s``, ``steady_s``: seconds of a load that is not measured, of each closed loop, and of each open loop.
    """

    device: str
    clients: int
    front_ends: int
    models: Mapping[str, str] = field(default_factory=lambda: {"base": "bert-base", "l6": "minilm-l6"})
    gemm_width: int = 8192
    gemm_s: float = 0.25
    copy_bytes: int = 2**28
    budgets: tuple[int, ...] = (4096, 16_384, 32_768)
    served_tokens: int = 16_384
    rounds: int = 5
    cell_s: float = 0.06
    company: Mapping[str, Any] = field(default_factory=lambda: COMPANY)  # Any: arguments of several types
    in_flight: int = 512
    batch_items: int = 64
    warm_s: float = 0.8
    load_s: float = 2.5
    steady_s: float = 30.0
    compile_s: float = 20.0
    stream_items: int = 256
    server_flags: tuple[str, ...] = ()

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is measured."""
        return self.device != "cpu"


def plan_of(device: str, cores: int) -> Plan:
    """The plan for a GPU, or a small one for a trial on a CPU, which takes the same way, with as many calls in flight."""
    if device != "cpu":
        return Plan(device, clients=max(1, min(7, cores // 2)), front_ends=max(1, min(6, cores // 2 - 1)))
    return Plan(
        device,
        clients=1,
        front_ends=1,
        models={"base": "tiny-base", "l6": "tiny-l6"},
        gemm_width=128,
        gemm_s=0.02,
        copy_bytes=2**20,
        budgets=(256,),
        served_tokens=256,
        rounds=1,
        cell_s=0.01,
        company={"texts": 4, "longest": 32, "batches": (3,)},
        batch_items=8,
        warm_s=0.0,
        load_s=0.3,
        steady_s=0.5,
        compile_s=60.0,
        stream_items=4,
        # A batch of 16,384 tokens, the default, takes seconds on a CPU.
        server_flags=("--batch-tokens-max", "512", "--batch-rows-max", "8"),
    )


class Bench:
    """Figures and processes of one run. ``folder`` belongs to the run and is removed after it.

    ``rng`` orders what is compared; ``versions`` has the version of each peer's package, None for those that are not there.
    """

    def __init__(self, plan: Plan, folder: Path, english: Path, budget_s: float, seed: int = 0) -> None:
        self.plan, self.folder, self.english = plan, folder, english
        self.bundles = folder / "bundles"
        self.bundles.mkdir()
        self.rng = random.Random(seed)
        # ``run`` moves the second one to when the processes have started.
        self.begun = self.stages_from = time.monotonic()
        self.budget_s = budget_s
        self.found: dict[str, float] = {}
        self.spreads: dict[str, dict[str, float]] = {}
        self.not_measured: dict[str, str] = {}
        self.versions: dict[str, str | None] = {}
        self.meta: dict[str, Any] = {}
        self._children: dict[str, Child] = {}
        self._broken: dict[str, str] = {}

    @property
    def ends_at(self) -> float:
        """The instant at which the budget is spent."""
        return self.begun + self.budget_s

    def by(self, share: float) -> float:
        """The instant at which this share of the stages' time is spent."""
        return self.stages_from + share * (self.ends_at - self.stages_from)

    def attempt(self, names: Iterable[str], until: float, needs_s: float, measure: Callable[[], Figures]) -> None:
        """Measure some figures, or record why not. ``measure`` may return fewer figures, or others."""
        wanted = [name for name in names if name not in self.found]
        left_s = until - time.monotonic()
        reason, before = "", len(self.not_measured)
        if needs_s and left_s < needs_s:
            reason = f"left out: {max(0.0, left_s):.1f} s were left of its share of the time, and it needs {needs_s:g}"
        else:
            try:
                self.take(measure())
            except (Gone, OSError) as error:
                reason = str(error)
            except Exception as error:  # an error in this script must not lose the other figures
                reason = f"{type(error).__name__}: {error}"
        # The reason may have been recorded on the way.
        reason = reason or next(itertools.islice(self.not_measured.values(), before, None), "what it is computed from was not measured")
        for name in wanted:
            if name not in self.found:
                self.not_measured.setdefault(name, reason)

    def take(self, figures: Figures) -> None:
        """Keep figures, and the spread of those that have rounds."""
        for name, figure in figures.items():
            if isinstance(figure, Rounds):
                self.found[name], self.spreads[name] = figure.value, figure.spread()
            else:
                self.found[name] = figure

    def inside(self) -> Child:
        """The process that measures ONNX Runtime."""
        return self._child("inside", str(self.bundles), str(self.english), self.plan.device, environment=with_libraries())

    def torch(self) -> Child:
        """The process that measures PyTorch, with PyTorch's own CUDA libraries."""
        self.need("torch")
        return self._child("torch_peer", str(self.english), self.plan.device, environment=with_peer("torch"))

    def need(self, name: str) -> None:
        """Check that a peer's package is there.

        Raises:
            Gone: it is not.
        """
        if self.versions.get(name, "not looked for") is None:
            raise Gone(why_not(next(peer for peer in PEERS if peer.name == name)))

    def _child(self, module: str, *arguments: str, environment: Mapping[str, str]) -> Child:
        """A child process. It is started again if it has ended, unless it never worked.

        Raises:
            Gone: it does not work.
        """
        if module in self._broken:
            raise Gone(self._broken[module])
        child = self._children.get(module)
        if child is None or not child.alive:
            if child is not None:
                again = self.meta.setdefault("started_again", {})
                again[module] = again.get(module, 0) + 1
            child = self._children[module] = Child(module, self.folder / f"{module}.log", *arguments, environment=environment)
            now = time.monotonic()
            try:
                self.meta |= child.ask(now + min(START_S_MAX, START_SHARE * max(0.0, self.ends_at - now)), "about")
            except Gone as error:
                self._broken[module] = str(error)
                raise
        return child

    def close(self, *modules: str) -> None:
        """End the named processes, or all of them, which frees their device memory."""
        for module in modules or tuple(self._children):
            if module in self._children:
                self._children.pop(module).close()


def part(until: float, share: float) -> float:
    """The instant at which this share of the time until an instant has passed."""
    now = time.monotonic()
    return now + share * max(0.0, until - now)


def working_folder() -> "tempfile.TemporaryDirectory[str]":
    """The temporary folder for bundles, graphs and logs."""
    return tempfile.TemporaryDirectory(prefix="sentiment-gpu-", ignore_cleanup_errors=True)
