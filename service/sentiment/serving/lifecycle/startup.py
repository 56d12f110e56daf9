"""How models are loaded: at the start, and beside others that serve. Both block; each in a thread."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sentiment.errors import BadBundle, BadSettings, CannotServe
from sentiment.model import folders
from sentiment.model.bundle import load_bundle
from sentiment.model.devices import CPU
from sentiment.model.lowest_priority import Beside
from sentiment.serving.lifecycle.loading import Loaded, load
from sentiment.settings import Settings

# A load that takes longer has met a graph that does not end, or a machine that has no time for it.
LOAD_S_MAX = 900.0
# For a runner that has nothing to do.
RUNNER_WAIT_S = 1.0


def load_all(settings: Settings, roots: Sequence[Path], no_more: threading.Event, failed: Callable[[str, str], None]) -> list[Loaded]:
    """Load what the settings name, at the start, the default first.

    With a watch, of a model without a version the highest one that can be served: else a bad one that changed nothing while the server
    ran would keep it from starting again. ``failed`` hears of each that cannot, with its reason.

    Raises:
        BadBundle, BadSettings: one cannot be served.
        DeviceLost: a device that was asked for is lost.
        CannotServe: ``no_more`` was set.
    """
    loaded: dict[str, Loaded] = {}

    def check() -> None:
        _check(no_more, float("inf"))

    try:
        for model in dict.fromkeys((settings.model, *settings.models)):
            check()
            one = _load_first(settings, model, roots, check, failed)
            if loaded.setdefault(one.classifier.bundle.id, one) is not one:
                _close(one)
    except BaseException:
        for one in loaded.values():
            _close(one)
        raise
    return list(loaded.values())


def _load_first(
    settings: Settings, model: str, roots: Sequence[Path], check: Callable[[], None], failed: Callable[[str, str], None]
) -> Loaded:
    versions = folders.versions_of(model, roots) if settings.models_watch_s and "/" not in model else {}
    errors: list[BadBundle | BadSettings] = []
    for version, path in versions.items():
        if folders.missing(path):
            continue
        # On the CPU nothing else asks for it.
        check()
        try:
            return load(settings, check=check, model=f"{model}/{version}")
        except (BadBundle, BadSettings) as error:
            errors.append(error)
            failed(f"{model}/{version}", str(error))
    if errors:
        said = "; ".join(dict.fromkeys(map(str, errors)))
        # Where no bundle is at fault the settings are.
        raise BadBundle(said) if any(isinstance(error, BadBundle) for error in errors) else BadSettings(said)
    return load(settings, check=check, model=model)


def _close(one: Loaded) -> None:
    for runner in one.runners:
        runner.close(RUNNER_WAIT_S)


def load_beside(settings: Settings, model: str, busy: Callable[[], bool], no_more: threading.Event) -> Loaded:
    """Load a model on the CPU beside others, to which its work gives way.

    Args:
        settings: of the server.
        model: as ``name/version``.
        busy: whether texts are classified now.
        no_more: set when it is of no use any more.

    Raises:
        BadBundle, BadSettings: it cannot be served, or was not loaded within LOAD_S_MAX.
        CannotServe: ``no_more`` was set.
    """
    until = time.monotonic() + LOAD_S_MAX

    def check() -> None:
        _check(no_more, until)

    beside = Beside(busy, check)
    try:
        return load(settings.model_copy(update={"device": CPU.name}), check=check, model=model, execute=beside)
    finally:
        beside.close()


def check_beside(path: Path, busy: Callable[[], bool], no_more: threading.Event) -> None:
    """Check a bundle's files, by their sizes and hashes, beside others that are served. As ``load_beside``."""
    until = time.monotonic() + LOAD_S_MAX
    beside = Beside(busy, lambda: _check(no_more, until))
    try:
        load_bundle(path.resolve(), beside)
    finally:
        beside.close()


def _check(no_more: threading.Event, until: float) -> None:
    """End a load that is of no use any more."""
    if no_more.is_set():
        raise CannotServe("stopped while it was loading")
    if time.monotonic() > until:
        raise BadBundle(f"it was not loaded within {LOAD_S_MAX:.0f} s")
