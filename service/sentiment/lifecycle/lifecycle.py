"""The loaded models and their changes while the server runs: load at low priority, verify, warm up, put to use, keep for rollback, unload.

One load at a time. If a change fails, the models that served before are unaffected.
"""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sentiment.batching.offered import OfferedLoad
from sentiment.errors import BadBundle, BadSettings, CannotServe, ModelNotFound, Unavailable, Unsupported
from sentiment.lifecycle.effort_audit import audit
from sentiment.lifecycle.hidden_drift import HiddenDrift
from sentiment.lifecycle.loading import Loaded
from sentiment.lifecycle.memory_limit import within_memory
from sentiment.lifecycle.registry import Models
from sentiment.lifecycle.sampling import Sampling
from sentiment.lifecycle.served_model import RunningModel, classifies, fits, no_room
from sentiment.lifecycle.shadow import Shadow
from sentiment.lifecycle.startup import check_beside, load_all, load_beside
from sentiment.lifecycle.states import CALLED, INDEX, INDEX_READY, INDEX_UNAVAILABLE, Event, ModelVersion, State
from sentiment.model import folders
from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.effort import ADAPTIVE
from sentiment.model.gpu.devices import CPU
from sentiment.model.memory import memory_granted, memory_used
from sentiment.observability.journal import Journal
from sentiment.observability.logs import logger
from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing.trace import Tracer
from sentiment.settings import MODEL, Settings

# How many failure reasons are kept; the oldest go first.
FAILURES_MAX = 100
# Added to the longest deadline before an unloading model's remaining requests are ended.
LEAVE_S = 5.0


class FrontEndProcesses:
    """Processes that accept calls for the models; here there are none.

    Each method returns once they have followed, or, except ``begin``, after a limit.
    """

    async def begin(self, models: Collection[RunningModel], used: Collection[RunningModel]) -> None:
        """Accept calls for these models. ``used``: the version in use of each name. Raises BadBundle."""

    async def add_model(self, running: RunningModel) -> None:
        """Accept calls for a model, but not by its name alone if another version is in use. Raises BadBundle."""

    async def use_model(self, running: RunningModel) -> None:
        """Make this the version in use of its name."""

    async def remove_model(self, running: RunningModel, within_s: float) -> None:
        """Accept no more calls for a model, and wait for the end of those that were accepted."""


class Lifecycle:
    """Owns the models and changes them: what ``states`` decides happens here. Runs on one event loop."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        models: Models,
        tracer: Tracer | None = None,
        broken: asyncio.Event | None = None,
        journal: Journal | None = None,
        busy_share: Callable[[], float] = lambda: 0.0,
        weights: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """Nothing is loaded yet; must be called in the event loop.

        Args:
            settings: of the server.
            metrics: counts models and their changes.
            models: the states of the models, in which requests look them up.
            tracer: the process's tracer; None without tracing.
            broken: set when a runner of any model is lost.
            journal: keeps answers; None for none.
            busy_share: how busy the event loop is, 0 to 1.
            weights: of callers, by number, as of now.
        """
        self.broken = broken or asyncio.Event()
        # Set it before ``start``.
        self.front_ends = FrontEndProcesses()
        # The load of all models.
        self.offered = OfferedLoad()
        self._settings, self._metrics, self._models, self._tracer = settings, metrics, models, tracer
        self._journal, self._busy_share, self._weights = journal, busy_share, weights
        self._roots = bundle_roots(settings.bundles)
        self._log = logger()
        # The highest version of each name that is or was loaded.
        self._newest: dict[str, int] = {}
        # Reasons of failed loads, by id.
        self._failures: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Set to abandon a load in progress.
        self._load_no_more = threading.Event()
        # Compare versions, and hidden states with the references; None if it is off.
        self.shadow: Shadow | None = None
        self.hidden_drift: HiddenDrift | None = None
        self._sampling: Sampling | None = None
        if settings.shadow_share:
            self.shadow = Shadow(models, metrics, self._samples(), settings.shadow_share, settings.text_bytes_max)
        if settings.hidden_drift_share:
            self.hidden_drift = HiddenDrift(models, self._samples(), settings.hidden_drift_share, settings.text_bytes_max)

    @property
    def running(self) -> list[RunningModel]:
        """All models in memory, including those being announced or unloaded. Thread-safe."""
        return self._in(*State)

    def busy(self) -> bool:
        """Whether texts are being classified. Thread-safe."""
        return any(classifies(running.batcher) for running in self.running)

    def newest(self, name: str) -> int:
        """The highest version of a model that is or was loaded; 0 if none."""
        return self._newest.get(name, 0)

    async def start(self) -> RunningModel:
        """Load and serve the models that the settings name, the default first; returns the default.

        Raises:
            BadBundle: one of them cannot be served.
            DeviceLost: a requested device is lost.
            BadSettings: a device does not exist, batches are too large for it, or the models exceed the limits.
            CannotServe: the server was stopped meanwhile.
        """
        loop = asyncio.get_running_loop()

        def fail(model: str, reason: str) -> None:
            loop.call_soon_threadsafe(self._fail, model, reason)

        found = await asyncio.to_thread(load_all, self._settings, self._roots, self._load_no_more, fail)
        self._settings = within_memory(self._settings, found, memory_granted(), memory_used())
        for one in found:
            running = self._start_running(one)
            self._models.announce(running.id, running)
        models = self.running
        default = models[0]
        used = {running.name: running for running in sorted(models, key=lambda running: running.version)} | {default.name: default}
        # First the front ends: without models this process answers that it is starting.
        await self.front_ends.begin(models, used.values())
        # First the versions in use: the first of a name is put to use.
        for running in sorted(models, key=lambda running: used[running.name] is not running):
            self._add(running)
        return default

    async def load(self, model: str, use: bool = True) -> None:
        """Load ``name/version``, or the highest version of ``name`` on disk, and put it to use.

        A loaded version is only put to use. The load continues if the caller is cancelled. ``use``: False leaves the version in use.

        Raises:
            ModelNotFound: there is no such bundle.
            Unsupported: it cannot be served, there is no room, or models of this device cannot be changed.
            Unavailable: another model is being loaded, or this one is being unloaded.
        """
        path = await asyncio.to_thread(self._find, model)
        wanted = f"{path.parent.name}/{path.name}"
        running = self._called(wanted)
        if running is not None:
            found = await asyncio.to_thread(folders.digest, path)
            if found not in ("", running.classifier.bundle.digest):
                raise Unsupported(
                    f"{wanted} is loaded with the digest {running.classifier.bundle.digest[:12]}, but its folder has {found[:12]}: "
                    "versions are immutable; give the new files a new version"
                )
            if self._called(wanted) is not running:
                raise Unavailable(f"{wanted} is being unloaded")
            if use:
                await self._use(running)
            return
        if loading := self._models.ids(State.LOADING, State.ANNOUNCED):
            raise Unavailable(f"{loading[0]} is being loaded")
        if self._models.state(wanted) is not State.GONE:
            raise Unavailable(f"{wanted} is being unloaded")
        self._check_device()
        self._models.move(wanted, Event.BEGUN)
        await asyncio.shield(self._begin(self._load_beside(wanted, path, use)))

    async def use(self, model: str) -> None:
        """Make this loaded ``name/version`` the version in use of its name, from the next request on.

        Raises:
            ModelNotFound: it is not loaded.
        """
        await self._use(self._loaded(model))

    async def unload(self, model: str) -> None:
        """Unload ``name/version``, or all versions of ``name``; returns once their requests are answered and they are unloaded.

        Raises:
            ModelNotFound: it is not loaded.
            Unsupported: it is the version in use, or the name is the default's; or models of this device cannot be changed.
        """
        self._check_device()
        chosen = [running for running in self._in(*CALLED) if model in (running.id, running.name)] or [self._loaded(model)]
        name = chosen[0].name
        of_default = name == self._models.default
        # All versions of a name go together, unless it is the default's.
        serves = of_default if model == name else any(map(self._models.uses, chosen))
        if serves:
            users = "requests that name no model" if of_default else f"requests for {name} without a version"
            ids = ", ".join(running.id for running in chosen)
            way = "unload versions one by one" if model == name and len(chosen) > 1 else "put another version to use first"
            raise Unsupported(f"{ids} {'serve' if len(chosen) > 1 else 'serves'} {users}: {way}")
        for running in chosen:
            self._withdraw(running)
        await asyncio.shield(self._begin(self._leave_all(chosen)))

    async def index(self) -> list[ModelVersion]:
        """Every version that is loaded, failed to load, or is on disk."""
        found = await asyncio.to_thread(lambda: {model: folders.missing(path) for model, path in folders.on_disk(self._roots).items()})
        entries = []
        models = {*found, *self._models.ids(*State), *self._failures}
        for name, version in sorted((name, int(version)) for name, _, version in (model.partition("/") for model in models)):
            model = f"{name}/{version}"
            state = INDEX[self._models.state(model)]
            reason = self._reason(model, found.get(model, "")) if state in (INDEX_READY, INDEX_UNAVAILABLE) else ""
            entries.append(ModelVersion(name, str(version), state, reason))
        return entries

    def load_no_more(self) -> None:
        """Abandon a load in progress and refuse new ones, at once."""
        self._load_no_more.set()

    async def close(self) -> None:
        """Finish the running requests, then end all models. Call it when no new calls can arrive."""
        self.load_no_more()
        if self._sampling is not None:
            self._sampling.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LEAVE_S)
        for running in self.running:
            await running.batcher.drained()
            running.end()

    def _reason(self, model: str, missing: str) -> str:
        running = self._called(model)
        if running is None:
            return self._failures.get(model) or missing
        state = self._models.state(model)
        if state is State.IN_USE:
            return "default" if running.name == self._models.default else "in use"
        compared = self.shadow.verdict(running) if self.shadow is not None else ""
        return "; ".join(filter(None, ("kept" if state is State.KEPT else "", compared)))

    def _in(self, *states: State) -> list[RunningModel]:
        return [running for running in self._models.of(*states) if isinstance(running, RunningModel)]

    def _called(self, model: str) -> RunningModel | None:
        """The model that calls find by this ``name/version``."""
        return next((running for running in self._in(*CALLED) if running.id == model), None)

    def _check_device(self) -> None:
        # While a run is captured, nothing else in the process may take the device's memory.
        if self._settings.device_captures and any(running.loaded.devices != (CPU,) for running in self.running):
            raise Unsupported(
                "models on a GPU cannot be changed while they serve with device_captures: start a server with the new model, then stop "
                "this one"
            )

    def _find(self, model: str) -> Path:
        if not re.fullmatch(MODEL, model):
            raise ModelNotFound(f"model {model[:128]!r} is not a valid name or name/version")
        try:
            return find_bundle(model, self._roots)
        except BadBundle as error:
            raise ModelNotFound(str(error)) from error

    def _loaded(self, model: str) -> RunningModel:
        running = self._called(model)
        if running is None and (versions := [one.id for one in self._in(*CALLED) if one.name == model]):
            raise ModelNotFound(f"model {model!r} is loaded as {', '.join(sorted(versions))}: name a version")
        if running is None:
            raise ModelNotFound(f"model {model[:128]!r} is not loaded; loaded are {', '.join(sorted(self._models.ids(*CALLED)))}")
        return running

    def _begin(self, change: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a change to its end, even if its caller is cancelled."""
        task = asyncio.create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # The caller may be gone; the error is already logged.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return task

    async def _load_beside(self, model: str, path: Path, use: bool) -> None:
        """Load a model while others serve. They are unaffected, whatever happens."""
        begun = time.monotonic()
        try:
            running = await self._announced(model, path)
        except (BadBundle, BadSettings, Unsupported) as error:
            self._fail(model, str(error))
            raise Unsupported(str(error)) from error
        except CannotServe as error:
            raise Unavailable(str(error)) from error
        except Exception as error:  # a failed load must not affect the models that serve
            self._fail(model, repr(error))
            raise
        self._failures.pop(model, None)
        self._add(running)
        self._count("loaded")
        digest = running.classifier.bundle.digest[:12]
        for reason in running.classifier.passed_over:
            self._log.warning("graph_passed_over", model=model, reason=reason, serving=running.classifier.graph.precision)
        self._log.info("model_loaded", model=model, digest=digest, seconds=round(time.monotonic() - begun, 2))
        # It is in use also if the version that was has been unloaded meanwhile, which the front ends did not know when they followed.
        if use or self._models.uses(running):
            await self._use(running)

    async def _announced(self, model: str, path: Path) -> RunningModel:
        """Load a model and announce it to the front ends."""
        try:
            await self._make_room(path)
            # Where the others are: with ``auto`` a GPU may have been passed over.
            devices = ",".join(device.name for device in self.running[0].loaded.devices)
            settings = self._settings.model_copy(update={"device": devices})
            one = await asyncio.to_thread(load_beside, settings, model, self.busy, self._load_no_more)
            running = self._start_running(one)
            self._models.move(model, Event.LOADED, running)
            try:
                await self.front_ends.add_model(running)
            except BaseException:
                await running.release()
                running.metrics.forget()
                raise
        except BaseException:
            self._models.move(model, Event.FAILED)
            raise
        return running

    def _add(self, running: RunningModel) -> None:
        self._newest[running.name] = max(running.version, self.newest(running.name))
        self._models.add(running.id)

    def _start_running(self, one: Loaded) -> RunningModel:
        try:
            running = RunningModel(
                one,
                self._settings,
                self._metrics,
                self._tracer,
                self.broken,
                self.busy,
                self._busy_share,
                self.offered,
                self._journal,
                self._weights,
            )
        except BaseException:
            for runner in one.runners:
                runner.close(0.0)
            raise
        running.samples = [samples.sample for samples in (self.shadow, self.hidden_drift) if samples is not None]
        settings = self._settings
        if running.classifier.manifest.effort is None:
            if settings.effort == ADAPTIVE:
                self._log.warning("effort_without_rule", model=running.id)
        elif settings.effort_audit_share:
            running.end_audit = audit(running, self._samples(), settings.effort_audit_share, settings.effort_fallback)
        return running

    def _samples(self) -> Sampling:
        """What reads texts once more; its threads begin when something needs it."""
        if self._sampling is None:
            self._sampling = Sampling(lambda: self._settings.explain_share if self.busy() else 1.0)
        return self._sampling

    async def _use(self, running: RunningModel) -> None:
        replaced = self._models.use(running.id)
        if replaced is not None:
            before = self._loaded(replaced)
            if self.hidden_drift is not None:
                self.hidden_drift.withdraw(before)
            self._begin(before.forget_graph())
            self._count("used")
            labels, of_before = (one.classifier.manifest.labels for one in (running, before))
            if labels != of_before:
                self._log.warning("labels_changed", model=running.id, labels=labels, before=of_before)
            self._log.info("model_in_use", model=running.id, digest=running.classifier.bundle.digest[:12], before=before.id)
        # In any case: front ends may follow another list, from when this version was announced.
        await self.front_ends.use_model(running)

    async def _make_room(self, path: Path) -> None:
        """Unload kept models, the longest kept first, until this bundle fits. Unloads nothing if that cannot be enough.

        Raises:
            BadBundle: the bundle's files are invalid; nothing is unloaded for it.
            Unsupported: it does not fit even without the kept models.
            CannotServe: it fits only once the models being unloaded are gone; or the load was abandoned.
        """
        size = await asyncio.to_thread(folders.size, path)
        checked = False
        while not fits(self._settings, self.running, size):
            staying, leaving = self._in(State.READY, State.IN_USE), self._in(State.LEAVING, State.ENDING)
            if not fits(self._settings, staying, size):
                raise Unsupported(no_room(self._settings, self.running, size))
            if not fits(self._settings, [*staying, *leaving], size):
                raise CannotServe(f"there is no room until {', '.join(running.id for running in leaving)} is unloaded; try again")
            if not checked:
                await asyncio.to_thread(check_beside, path, self.busy, self._load_no_more)
                checked = True
                continue
            oldest, *_ = self._in(State.KEPT)
            self._withdraw(oldest)
            await self._leave(oldest)

    def _withdraw(self, running: RunningModel) -> None:
        """Send a model no more requests."""
        self._models.move(running.id, Event.WITHDRAWN)
        running.end_audit()
        for samples in (self.shadow, self.hidden_drift):
            if samples is not None:
                samples.withdraw(running)

    async def _leave_all(self, chosen: Iterable[RunningModel]) -> None:
        """Unload models concurrently. A failure of one does not stop the others."""
        for found in await asyncio.gather(*map(self._leave, chosen), return_exceptions=True):
            if found is not None:
                raise found

    async def _leave(self, running: RunningModel) -> None:
        """Let a withdrawn model finish its requests, then unload it."""
        within_s = self._settings.deadline_max_s + LEAVE_S
        try:
            await self.front_ends.remove_model(running, within_s)
            self._models.move(running.id, Event.LET_GO)
            await running.leave(within_s)
        finally:
            self._models.move(running.id, Event.RELEASED)
            running.metrics.forget()
        self._count("unloaded")
        self._log.info("model_unloaded", model=running.id)

    def _fail(self, model: str, reason: str) -> None:
        self._failures.pop(model, None)
        self._failures[model] = reason
        while len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]
        self._log.error("model_not_loaded", model=model, reason=reason)
        self._count("failed")

    def _count(self, change: str) -> None:
        self._metrics.model_changes.labels(change).inc()
