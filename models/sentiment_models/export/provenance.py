"""Records of a bundle's origin, without paths of the machine that made it."""

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Facts = Mapping[str, Json]

NO_ORIGIN: Facts = {}
"""Where a bundle comes from, if nothing is known of it. Otherwise the name of a ``checkpoint`` that was not trained here, or of an own ONNX
``file``, its ``sha256`` and the ``changes`` of it in words; and of either ``licence`` and ``note``.
"""

LIBRARIES = ("torch", "transformers", "optimum-onnx", "onnx", "onnxruntime", "tokenizers", "safetensors")


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest distinct names of files: the file's name, with as many parent folders as needed.

    For example ``sst2/train.tsv.gz`` and ``imdb/train.tsv.gz``, but ``books.tsv.gz``.
    """
    wholes = [path.resolve() for path in paths]

    def name(path: Path, parts: int) -> str:
        return "/".join(path.parts[-parts:])

    names = []
    for path in wholes:
        others = [other for other in wholes if other != path]
        parts = 1
        while parts < len(path.parts) - 1 and any(name(other, parts) == name(path, parts) for other in others):
            parts += 1
        names.append(name(path, parts))
    return names


def files_trained_on(training: Json) -> set[str]:
    """Return the SHA-256 of every file that a record of training names, in all its stages."""
    return {str(facts(file).get("sha256")) for stage in stages(training) for file in items(stage.get("files"))}


def stages(training: Json) -> list[Facts]:
    """Return the stages of training, the first one first: a model may be fine-tuned from one with a record of its own."""
    last = facts(training)
    return [*stages(last.get("base_training")), last] if last else []


def facts(value: Json) -> Facts:
    """Return an object of a record; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def own_file(provenance: Facts) -> Facts:
    """Return the origin of a bundle of an own ONNX file; an empty object for another bundle."""
    origin = facts(provenance.get("origin"))
    return origin if "file" in origin else {}


def items(value: Json) -> Sequence[Json]:
    """Return an array of a record; an empty one for anything else."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def without_folders(value: Json) -> Json:
    """Replace every absolute path, and every path that starts with ``./``, ``../`` or ``~``, by its last part, at any depth.

    A name such as ``organisation/model`` stays whole.
    """
    if isinstance(value, str):
        return PurePath(value).name if os.path.isabs(value) or value.startswith(("./", "../", "~")) else value
    if isinstance(value, Mapping):
        return {str(without_folders(key)): without_folders(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [without_folders(item) for item in value]
    return value


def three_digits(values: Mapping[str, float]) -> dict[str, Json]:
    """Round floats to three significant digits for a record; integers stay."""
    return {name: float(f"{value:.3g}") if isinstance(value, float) else value for name, value in values.items()}


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that a bundle's bytes depend on, without a local suffix such as +cpu."""
    found: dict[str, str] = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue  # onnxruntime may be installed as onnxruntime-gpu
    return found
