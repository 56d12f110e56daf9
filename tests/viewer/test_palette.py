"""Head colours are distinguishable, with each kind of colour blindness, and words on their values' colours readable, in both themes."""

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

Floats = npt.NDArray[np.float64]
ASSETS = Path(__file__).parents[2] / "service/sentiment_viewer/assets"
CONTRAST_MIN = 3.0
# Of a text with what is behind it (WCAG 2.2, 1.4.3).
TEXT_CONTRAST_MIN = 4.5
# The least difference in Oklab between two colours of a table, over normal vision and the three simulations.
LEAST = {("LIGHT", 8): 0.07, ("LIGHT", 12): 0.066, ("LIGHT", 16): 0.041, ("DARK", 8): 0.067, ("DARK", 12): 0.045, ("DARK", 16): 0.037}
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
DEFICIENCIES = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# Ottosson 2020: linear RGB to the responses of the cones, and their cube roots to Oklab, in which a distance is a difference that is seen.
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_OKLAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


def table(theme: str, count: int) -> list[str]:
    source = (ASSETS / "palette.js").read_text(encoding="utf-8").split(f"PALETTE_{theme} = ")[1].split("};")[0]
    colours = re.findall(r"#[0-9a-f]{6}", source.split(f"{count}: [")[1].split("]")[0])
    assert len(colours) == count
    return colours


def backgrounds(theme: str) -> list[str]:
    """The panel, and the page around it."""
    variables = (ASSETS / "viewer.css").read_text(encoding="utf-8").split(f"color-scheme: {theme.lower()};")[1].split("}")[0]
    return re.findall(r"--(?:background|panel): (#[0-9a-f]{6})", variables)


def linear(colours: list[str]) -> Floats:
    """[colours, 3] of linear RGB in [0, 1]."""
    values = np.array([[int(colour[place : place + 2], 16) for place in (1, 3, 5)] for colour in colours]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def least_difference(colours: list[str], vision: str) -> float:
    rgb = linear(colours)
    seen = rgb if vision == "normal" else np.clip(rgb @ np.array(DEFICIENCIES[vision]).T, 0, 1)
    points = np.cbrt(seen @ np.array(TO_CONES).T) @ np.array(TO_OKLAB).T
    differences = np.linalg.norm(points[:, None] - points, axis=-1)
    return float(differences[np.triu_indices(len(colours), 1)].min())


def contrast(one: str, other: str) -> float:
    darker, lighter = np.sort(linear([one, other]) @ np.array([0.2126, 0.7152, 0.0722]))
    return float((lighter + 0.05) / (darker + 0.05))


@pytest.mark.parametrize("vision", ["normal", *DEFICIENCIES])
@pytest.mark.parametrize(("theme", "count"), LEAST)
def test_head_colours_differ_for_each_kind_of_colour_vision(theme: str, count: int, vision: str) -> None:
    assert least_difference(table(theme, count), vision) >= LEAST[theme, count]


@pytest.mark.parametrize(("theme", "count"), LEAST)
def test_head_colours_contrast_with_the_background(theme: str, count: int) -> None:
    behind = backgrounds(theme)
    least = min(contrast(colour, background) for colour in table(theme, count) for background in behind)

    assert len(behind) == 2
    assert least >= CONTRAST_MIN


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_contrast_with_the_colour_of_every_value(theme: str) -> None:
    source = (ASSETS / "theme.js").read_text(encoding="utf-8").split("VALUE_STEPS = {")[1].split(f"  {theme}: {{")[1].split("  },")[0]
    *behind, text = re.findall(r"#[0-9a-f]{6}", source)

    assert len(behind) == 5 * 6
    assert min(contrast(text, colour) for colour in behind) >= TEXT_CONTRAST_MIN
