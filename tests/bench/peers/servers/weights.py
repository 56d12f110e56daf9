"""A bundle's weights in fp32, as a checkpoint of transformers. A bundle stores most of them in int8, as X.int8 and X.scale."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file


def read_weights(bundle: Path) -> Mapping[str, npt.NDArray[np.float32]]:
    """The weights by their names in a checkpoint."""
    stored = load_file(bundle / "model.safetensors")
    scales = {name.removesuffix(".int8"): stored[name.removesuffix("int8") + "scale"] for name in stored if name.endswith(".int8")}
    whole = {name: stored[f"{name}.int8"].astype(np.float32) * scale for name, scale in scales.items()}
    others = {name: array.astype(np.float32) for name, array in stored.items() if name.rpartition(".")[0] not in scales}
    return {**whole, **others}


def write_checkpoint(bundle: Path, folder: Path) -> None:
    """Make a folder that transformers reads as a classifier. It has no tokenizer."""
    folder.mkdir()
    (folder / "config.json").symlink_to((bundle / "config.json").resolve())
    save_file(dict(read_weights(bundle)), folder / "model.safetensors", metadata={"format": "pt"})
