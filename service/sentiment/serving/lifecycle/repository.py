"""Which models are loaded, and how that changes while they serve: load beside, prove, warm, exchange, keep for a return, unload.

One change at a time. Whatever fails, what served before goes on as if nothing had been tried.
"""

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

from sentiment.api.grpc.admin import LOADING, READY, UNAVAILABLE, UNLOADING, Entry
from sentiment.errors import BadBundle, BadSettings, CannotServe, ModelNotFound, Unavailable, Unsupported
from sentiment.model import folders
from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.devices import CPU
from sentiment.observability.logs import logger
from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing.trace import Tracer
from sentiment.serving.lifecycle.loading import Loaded
from sentiment.serving.lifecycle.served_model import Hosted, classifies, fits, make_served, no_room
from sentiment.serving.lifecycle.startup import check_beside, load_all, load_beside
from sentiment.serving.registry import Models
from sentiment.settings import MODEL, Settings

# Reasons of failures that are remembered, the latest ones.
FAILURES_MAX = 100
# After the last deadline of what began with a model; what is left then is ended.
LEAVE_S = 5.0


class Repository:
    """Owns the loaded models. Lives on one event loop."""

    def __init__(
        self, settings: Settings, metrics: Metrics, models: Models, tracer: Tracer | None = None, broken: asyncio.Event | None = None
    ) -> None:
        """Nothing is loaded yet; must be called in the event loop.

        Args:
            settings: of the server.
            metrics: where models are counted.
            models: what requests find them by.
            tracer: of this process, if it traces.
            broken: set when a runner of any of them is lost.
        """
        self.broken = broken or asyncio.Event()
        self._settings, self._metrics, self._models, self._tracer = settings, metrics, models, tracer
        self._roots = bundle_roots(settings.bundles)
        self._log = logger()
        self._hosted: dict[str, Hosted] = {}
        self._leaving: dict[str, Hosted] = {}
        # Not in use any more, and only there for a return: the first one has been so for longest, and goes first.
        self._kept: list[Hosted] = []
        # The highest version of each name that was unloaded.
        self._gone: dict[str, int] = {}
        # Of ids that were tried in vain.
        self._failures: dict[str, str] = {}
        self._loading = ""
        self._tasks: set[asyncio.Task[None]] = set()
        # Set when what is being loaded is of no use any more.
        self._load_no_more = threading.Event()

    @property
    def hosted(self) -> list[Hosted]:
        """What runs here, also what is about to go."""
        return [*self._hosted.values(), *self._leaving.values()]

    def busy(self) -> bool:
        """Whether texts are being classified; from any thread."""
        return any(classifies(hosted.batcher) for hosted in list(self._hosted.values()))

    def newest(self, name: str) -> int:
        """The highest version that is loaded of a model, or was and is not any more; 0 if none was."""
        manifests = [hosted.classifier.manifest for hosted in self._hosted.values()]
        return max(self._gone.get(name, 0), *(manifest.version for manifest in manifests if manifest.name == name), 0)

    async def start(self) -> Loaded:
        """Load what the settings name, the default first, and serve it; returns the default.

        Raises:
            BadBundle, DeviceLost: one of them cannot be served; a device that was asked for is lost.
            BadSettings: a device is not there, batches are too large for it, or there is no room for all.
            CannotServe: it was stopped meanwhile.
        """
        for one in await asyncio.to_thread(load_all, self._settings, self._roots, self._load_no_more, self._fail):
            hosted = self._host(one)
            self._hosted[hosted.id] = hosted
        size, limit = sum(hosted.size for hosted in self.hosted), self._settings.models_bytes_max
        if limit and size > limit:
            raise BadSettings(f"the models have {size} bytes; the limit is {limit} (models_bytes_max)")
        default, *_ = self._hosted.values()
        for hosted in self._hosted.values():
            manifest = hosted.classifier.manifest
            self._models.add(hosted, use=manifest.version == self.newest(manifest.name))
        self._models.use(default)
        return default.loaded

    async def load(self, model: str, use: bool = True) -> None:
        """Load ``name/version``, or ``name``, its highest version on disk, and let its name mean it.

        One that is loaded is only put to use. Goes on if the caller is cancelled. ``use``: False to load it beside the one in use.

        Raises:
            ModelNotFound: there is no such bundle.
            Unsupported: it cannot be served, there is no room, or the device is none on which models can be exchanged.
            Unavailable: another is being loaded, or it is being unloaded.
        """
        path = await asyncio.to_thread(self._find, model)
        wanted = f"{path.parent.name}/{path.name}"
        hosted = self._hosted.get(wanted)
        if hosted is not None:
            found = await asyncio.to_thread(folders.digest, path)
            if found not in ("", hosted.classifier.bundle.digest):
                raise Unsupported(
                    f"{wanted} is loaded with the digest {hosted.classifier.bundle.digest[:12]} and its folder has {found[:12]}: "
                    "a version is never changed, a new one gets a new number"
                )
            if self._hosted.get(wanted) is not hosted:
                raise Unavailable(f"{wanted} is being unloaded")
            if use:
                self._use(hosted)
            return
        if self._loading or wanted in self._leaving:
            raise Unavailable(f"{self._loading} is being loaded" if self._loading else f"{wanted} is being unloaded")
        self._check_device()
        self._loading = wanted
        await asyncio.shield(self._begin(self._load_beside(wanted, path, use)))

    def use(self, model: str) -> None:
        """Let a name mean this loaded ``name/version``, from the next request on.

        Raises:
            ModelNotFound: it is not loaded.
        """
        self._use(self._loaded(model))

    async def unload(self, model: str) -> None:
        """Unload ``name/version``, or all versions of ``name``; returns when what began with them is answered and they are gone.

        Raises:
            ModelNotFound: it is not loaded.
            Unsupported: it is a version that its name means, or the name is the default's; or models are not on the CPU.
        """
        self._check_device()
        chosen = [hosted for hosted in self._hosted.values() if model in (hosted.id, hosted.classifier.manifest.name)]
        chosen = chosen or [self._loaded(model)]
        name = chosen[0].classifier.manifest.name
        if name == self._models.default if model == name else any(map(self._models.uses, chosen)):
            said = "requests that name no model" if name == self._models.default else f"requests for {name} without a version"
            raise Unsupported(f"{chosen[0].id if len(chosen) == 1 else name} answers {said}: put another version to use first")
        for hosted in chosen:
            self._withdraw(hosted)
        await asyncio.shield(self._begin(self._leave_all(chosen)))

    async def index(self) -> list[Entry]:
        """Every version that is loaded, was tried in vain, or stands on disk."""
        found = await asyncio.to_thread(lambda: {model: folders.missing(path) for model, path in folders.on_disk(self._roots).items()})
        entries = []
        models = {*found, *self._hosted, *self._leaving, *self._failures, *filter(None, [self._loading])}
        for name, version in sorted((name, int(version)) for name, _, version in (model.partition("/") for model in models)):
            model = f"{name}/{version}"
            state = self._state(model)
            reason = self._said(model, found.get(model, "")) if state in (READY, UNAVAILABLE) else ""
            entries.append(Entry(name, str(version), state, reason))
        return entries

    def load_no_more(self) -> None:
        """End what is being loaded, and refuse what would be; at once."""
        self._load_no_more.set()

    async def close(self) -> None:
        """Answer what began, then end all models. No calls come any more."""
        self.load_no_more()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LEAVE_S)
        for hosted in self.hosted:
            await hosted.batcher.drained()
            hosted.end()

    def _state(self, model: str) -> str:
        if model == self._loading:
            return LOADING
        return READY if model in self._hosted else UNLOADING if model in self._leaving else UNAVAILABLE

    def _said(self, model: str, missing: str) -> str:
        hosted = self._hosted.get(model)
        if hosted is None:
            return self._failures.get(model) or missing
        if self._models.uses(hosted):
            return "default" if hosted.classifier.manifest.name == self._models.default else "in use"
        return "kept" if hosted in self._kept else ""

    def _check_device(self) -> None:
        if any(hosted.loaded.devices != (CPU,) for hosted in self._hosted.values()):
            raise Unsupported("models on a GPU are not exchanged while they serve: start a server with the new one and stop this one")

    def _find(self, model: str) -> Path:
        if not re.fullmatch(MODEL, model):
            raise ModelNotFound(f"model {model[:128]!r} is not found: it is no name or name/version")
        try:
            return find_bundle(model, self._roots)
        except BadBundle as error:
            raise ModelNotFound(str(error)) from error

    def _loaded(self, model: str) -> Hosted:
        hosted = self._hosted.get(model)
        if hosted is None:
            raise ModelNotFound(f"model {model[:128]!r} is not loaded; loaded are {', '.join(sorted(self._hosted))}")
        return hosted

    def _begin(self, change: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Make a change to its end, also if whoever asked for it leaves."""
        task = asyncio.create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Whoever asked may have left: what it raised has been told in the log.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return task

    async def _load_beside(self, model: str, path: Path, use: bool) -> None:
        """Load a model while others serve; whatever happens, they go on."""
        begun = time.monotonic()
        try:
            await self._make_room(path)
            one = await asyncio.to_thread(load_beside, self._settings, model, self.busy, self._load_no_more)
            hosted = self._host(one)
        except (BadBundle, BadSettings, Unsupported) as error:
            self._fail(model, str(error))
            raise Unsupported(str(error)) from error
        except CannotServe as error:
            raise Unavailable(str(error)) from error
        except Exception as error:  # whatever is wrong with it, what serves does not bear it
            self._fail(model, repr(error))
            raise
        finally:
            self._loading = ""
        self._failures.pop(model, None)
        self._hosted[model] = hosted
        self._count("loaded")
        digest = hosted.classifier.bundle.digest[:12]
        for reason in hosted.classifier.passed_over:
            self._log.warning("graph_passed_over", model=model, reason=reason, serving=hosted.classifier.graph.precision)
        self._log.info("model_loaded", model=model, digest=digest, seconds=round(time.monotonic() - begun, 2))
        self._models.add(hosted, use=False)
        if use:
            self._use(hosted)

    def _host(self, one: Loaded) -> Hosted:
        try:
            return make_served(one, self._settings, self._metrics, self._tracer, self.broken, self.busy)
        except BaseException:
            for runner in one.runners:
                runner.close(0.0)
            raise

    def _use(self, hosted: Hosted) -> None:
        before = self._models.use(hosted)
        with contextlib.suppress(ValueError):
            self._kept.remove(hosted)
        if before is None:
            return
        assert isinstance(before, Hosted)
        self._kept.append(before)
        self._begin(before.forget_graph())
        self._count("used")
        self._log.info("model_in_use", model=hosted.id, digest=hosted.classifier.bundle.digest[:12], before=before.id)

    async def _make_room(self, path: Path) -> None:
        """Unload what is kept, the longest kept first, until there is room for this bundle; nothing if all of it were not enough.

        Raises:
            BadBundle: the bundle's files are not what they should be: no room is made for it.
            Unsupported: there is none even without what is kept.
            CannotServe: there will be, once what is being unloaded is gone; or the load was stopped.
        """
        size = await asyncio.to_thread(folders.size, path)
        checked = False
        while not fits(self._settings, self.hosted, size):
            staying = [hosted for hosted in self._hosted.values() if hosted not in self._kept]
            if not fits(self._settings, staying, size):
                raise Unsupported(no_room(self._settings, self.hosted, size))
            if not fits(self._settings, [*staying, *self._leaving.values()], size):
                raise CannotServe(f"there is no room before {', '.join(self._leaving)} is unloaded")
            if not checked:
                await asyncio.to_thread(check_beside, path, self.busy, self._load_no_more)
                checked = True
                continue
            oldest = self._kept[0]
            self._withdraw(oldest)
            await self._leave(oldest)

    def _withdraw(self, hosted: Hosted) -> None:
        """Give a model no requests any more."""
        self._leaving[hosted.id] = self._hosted.pop(hosted.id)
        manifest = hosted.classifier.manifest
        self._gone[manifest.name] = max(manifest.version, self._gone.get(manifest.name, 0))
        with contextlib.suppress(ValueError):
            self._kept.remove(hosted)
        self._models.remove(hosted)

    async def _leave_all(self, chosen: Iterable[Hosted]) -> None:
        """Let them leave at once, each to its end whatever becomes of the others."""
        for found in await asyncio.gather(*map(self._leave, chosen), return_exceptions=True):
            if found is not None:
                raise found

    async def _leave(self, hosted: Hosted) -> None:
        """Let a model that was withdrawn answer what began with it, then unload it."""
        try:
            await hosted.leave(self._settings.deadline_max_s + LEAVE_S)
        finally:
            del self._leaving[hosted.id]
            hosted.metrics.forget()
        self._count("unloaded")
        self._log.info("model_unloaded", model=hosted.id)

    def _fail(self, model: str, reason: str) -> None:
        self._failures.pop(model, None)
        self._failures[model] = reason
        while len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]
        self._log.error("model_not_loaded", model=model, reason=reason)
        self._count("failed")

    def _count(self, change: str) -> None:
        self._metrics.model_changes.labels(change).inc()
