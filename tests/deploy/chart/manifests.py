"""The deployment's files as documents."""

import sys
from collections.abc import Iterable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
CHART = DEPLOY / "chart"
VALUES = Path(__file__).parent / "values"
# The values files for users, and further ones that cover the rest of the chart.
FLAVOURS: dict[str, tuple[Path, ...]] = {
    "default": (),
    **{name: (CHART / f"values-{name}.yaml",) for name in ("cpu", "gpu", "mig")},
    "single": (VALUES / "single.yaml",),
    "everything": (VALUES / "everything.yaml",),
    "secured": (VALUES / "secured.yaml",),
    "extended": (VALUES / "extended.yaml",),
    "laid_over": (CHART / "values-mig.yaml", VALUES / "laid_over.yaml"),
}
VERSIONS = tuple(f"1.{minor}" for minor in range(31, 38))
# Paths to the pod of a Deployment or a Job, and to its container.
POD = ("spec", "template", "spec")
CONTAINER = (*POD, "containers", 0)
# Any: documents of YAML have no better type.
Document = dict[str, Any]

sys.path.insert(0, str(DEPLOY))
import render as made_by  # noqa: E402  # deploy/ is not a package


def read(text: str) -> list[Document]:
    """The documents of a YAML text."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def values_of(flavour: str) -> list[str]:
    """Helm's flags for its files."""
    return [flag for path in FLAVOURS[flavour] for flag in ("-f", str(path))]


@cache
def rendered(flavour: str, version: str = VERSIONS[-1]) -> tuple[Document, ...]:
    """The rendered chart."""
    return tuple(made_by.template(*values_of(flavour), "--kube-version", version))


def of_kind(documents: Iterable[Document], *kinds: str) -> list[Document]:
    """The documents of these kinds."""
    return [document for document in documents if document["kind"] in kinds]


def with_one_change(documents: Iterable[Document], kind: str, path: Sequence[str | int], value: object) -> list[Document]:
    """A copy in which the first document of the kind has another value at the path."""
    changed = deepcopy(list(documents))
    place: Any = of_kind(changed, kind)[0]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed
