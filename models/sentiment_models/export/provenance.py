"""What a bundle says of its origin, without a word about the machine that made it."""

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

LIBRARIES = ("torch", "transformers", "optimum-onnx", "onnx", "onnxruntime", "tokenizers", "safetensors")


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Name files as shortly as tells them apart: the file's name, with as many folders before it as that needs.

    ``sst2/train.tsv.gz`` and ``imdb/train.tsv.gz``, but ``books.tsv.gz``.
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


def without_folders(value: Json) -> Json:
    """Replace every absolute path, and every one that starts with a dot or ``~``, by its last part, however deep it stands.

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
    """Round what was measured for a record; whole numbers stay."""
    return {name: float(f"{value:.3g}") if isinstance(value, float) else value for name, value in values.items()}


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that a bundle's bytes depend on; a local build's mark, such as +cpu, is left out."""
    found: dict[str, str] = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue  # onnxruntime may be installed as onnxruntime-gpu
    return found
