"""Loads models at startup, and at low priority while others serve. Both functions block; call them in a thread."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from sentiment.errors import BadBundle, BadSettings, CannotServe
from sentiment.lifecycle.loading import Loaded, load
from sentiment.lifecycle.served_model import size_of
from sentiment.model import folders
from sentiment.model.bundle import find_bundle, load_bundle
from sentiment.model.lowest_priority import LowPriorityLoad
from sentiment.settings import Settings

# A longer load has a graph that does not end, or a machine without free cores.
LOAD_S_MAX = 900.0


def load_all(settings: Settings, roots: Sequence[Path], no_more: threading.Event, failed: Callable[[str, str], None]) -> list[Loaded]:
    """Load the models that the settings name, the default first.

    With a folder watch, a model without a version is loaded in its highest version that can be served. Else a bad version, which a running
    server refuses, would prevent a restart. ``failed`` is called with each version that cannot be served and the reason.

    Raises:
        BadBundle, BadSettings: a model cannot be served.
        DeviceLost: a requested device is lost.
        CannotServe: ``no_more`` was set.
    """
    loaded: dict[str, Loaded] = {}
    check = partial(_check, no_more, float("inf"))
    try:
        for model in dict.fromkeys((settings.model, *settings.models)):
            check()
            one = _load_first(settings, model, roots, check, failed, loaded)
            if loaded.setdefault(one.classifier.bundle.id, one) is not one:
                _close(one)
    except BaseException:
        for one in loaded.values():
            _close(one)
        raise
    return list(loaded.values())


def _load_first(
    settings: Settings,
    model: str,
    roots: Sequence[Path],
    check: Callable[[], None],
    failed: Callable[[str, str], None],
    others: Mapping[str, Loaded],
) -> Loaded:
    """``others``: the models before it, by their ids."""
    versions = folders.versions_of(model, roots) if settings.models_watch_s and "/" not in model else {}
    errors: list[BadBundle | BadSettings] = []
    for version, path in versions.items():
        if folders.missing(path):
            continue
        # ``load`` calls it only for GPUs.
        check()
        try:
            _check_room(settings, others, path)
            return load(settings, check=check, model=f"{model}/{version}")
        except (BadBundle, BadSettings) as error:
            errors.append(error)
            failed(f"{model}/{version}", str(error))
    if errors:
        reasons = "; ".join(dict.fromkeys(map(str, errors)))
        # If no bundle is at fault, the settings are.
        raise BadBundle(reasons) if any(isinstance(error, BadBundle) for error in errors) else BadSettings(reasons)
    _check_room(settings, others, find_bundle(model, roots))
    return load(settings, check=check, model=model)


def _check_room(settings: Settings, others: Mapping[str, Loaded], path: Path) -> None:
    """Check that the bundle in a folder fits beside the others, as a load while models serve does."""
    model, limit = f"{path.parent.name}/{path.name}", settings.models_bytes_max
    size = folders.size(path) + sum(size_of(one.classifier.manifest.files) for other, one in others.items() if other != model)
    if limit and size > limit:
        raise BadSettings(f"with {model} the models have {size} bytes; the limit is {limit} (models_bytes_max)")


def _close(one: Loaded) -> None:
    for runner in one.runners:
        runner.close()


def load_beside(settings: Settings, model: str, busy: Callable[[], bool], no_more: threading.Event) -> Loaded:
    """Load a model while others serve, at a lower priority than theirs; on a GPU its runs have the same as theirs.

    Args:
        settings: the server's settings, with the devices of the other models.
        model: as ``name/version``.
        busy: whether texts are being classified.
        no_more: set to abandon the load.

    Raises:
        BadBundle, BadSettings: it cannot be served, or did not load within LOAD_S_MAX.
        CannotServe: ``no_more`` was set.
    """
    check = partial(_check, no_more, time.monotonic() + LOAD_S_MAX)
    with closing(LowPriorityLoad(busy, check)) as runs:
        return load(settings, check=check, model=model, execute=runs)


def check_beside(path: Path, busy: Callable[[], bool], no_more: threading.Event) -> None:
    """Check the sizes and hashes of a bundle's files while others serve; arguments and errors are those of ``load_beside``."""
    with closing(LowPriorityLoad(busy, partial(_check, no_more, time.monotonic() + LOAD_S_MAX))) as runs:
        load_bundle(path.resolve(), runs)


def _check(no_more: threading.Event, until: float) -> None:
    """Raise if a load must end."""
    if no_more.is_set():
        raise CannotServe("the load was abandoned: the server is stopping")
    if time.monotonic() > until:
        raise BadBundle(f"the load took longer than {LOAD_S_MAX:.0f} s")
