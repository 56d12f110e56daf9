"""Compares two pictures of a page as a person would: what moved or is missing counts, how the edges of letters are drawn does not.

Both are shrunk to blocks of 8 x 8 pixels; a block differs if its mean colour does by more than a tenth of the scale.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

BLOCK = 8
BLOCK_DIFFERS = 24.0
# Full hinting of all letters makes a mean of 0.4 and a share of 0.07 %, a short column of numbers that moved 0.9 %.
MEAN_MAX = 1.5
SHARE_MAX = 0.0015

# What the approved pictures are drawn in: families, and the packages of Debian and Ubuntu that bring them.
FONTS = {"DejaVu Sans": "fonts-dejavu-core", "Noto Color Emoji": "fonts-noto-color-emoji"}

Blocks = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Difference:
    """``mean``: of all blocks, in 255ths; ``share``: of blocks that differ."""

    mean: float
    share: float

    @property
    def same(self) -> bool:
        """Whether both show the same."""
        return self.mean <= MEAN_MAX and self.share <= SHARE_MAX


def missing_fonts() -> list[str]:
    """The packages that this machine lacks; without fontconfig, all."""
    try:
        listed = subprocess.run(["fc-list", ":", "family"], capture_output=True, text=True, timeout=30, check=False).stdout
    except FileNotFoundError:
        listed = ""
    families = {family for line in listed.splitlines() for family in line.split(",")}
    return [package for family, package in FONTS.items() if family not in families]


def blocks(picture: Image.Image) -> Blocks:
    """Mean colours [rows, columns, 3] of whole and cut blocks."""
    rgb = np.asarray(picture.convert("RGB"), np.float32)
    height, width = rgb.shape[:2]
    padded = np.pad(rgb, ((0, -height % BLOCK), (0, -width % BLOCK), (0, 0)), mode="edge")
    return padded.reshape(len(padded) // BLOCK, BLOCK, -1, BLOCK, 3).mean((1, 3))


def compared(approved: Image.Image, found: Image.Image) -> Difference:
    """How far two pictures differ; wholly if their sizes do."""
    if approved.size != found.size:
        return Difference(255.0, 1.0)
    apart = np.abs(blocks(approved) - blocks(found)).max(-1)
    return Difference(float(apart.mean()), float((apart > BLOCK_DIFFERS).mean()))


def save_small(picture: Image.Image, path: Path) -> None:
    """Write a PNG of few colours, by which no block differs: a palette, or where it lacks rare ones steps of 4 of each channel."""
    whole = picture.convert("RGB")
    small: Image.Image = whole.quantize(256, dither=Image.Dither.NONE)
    if compared(small.convert("RGB"), whole).share > 0:
        small = whole.point(lambda value: min(255, (value + 2) // 4 * 4))
    small.save(path, optimize=True)
