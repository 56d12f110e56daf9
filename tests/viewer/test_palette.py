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
# The least CIEDE2000 between two colours of a table, over normal vision and the three simulations, that the search came to.
LEAST = {("LIGHT", 8): 19.1, ("LIGHT", 12): 14.3, ("LIGHT", 16): 11.4, ("DARK", 8): 20.4, ("DARK", 12): 15.3, ("DARK", 16): 12.3}
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
DEFICIENCIES = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]


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


def lab(rgb: Floats) -> Floats:
    xyz = rgb @ np.array(TO_XYZ).T / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], -1)


def ciede2000(one: Floats, other: Floats) -> Floats:
    """Sharma, Wu and Dalal 2005, equations 2 to 22."""
    (l1, a1, b1), (l2, a2, b2) = np.moveaxis(one, -1, 0), np.moveaxis(other, -1, 0)
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    stretch = 1.5 - 0.5 * np.sqrt(mean**7 / (mean**7 + 25.0**7))
    c1, c2 = np.hypot(a1 * stretch, b1), np.hypot(a2 * stretch, b2)
    h1, h2 = np.degrees(np.arctan2(b1, a1 * stretch)) % 360, np.degrees(np.arctan2(b2, a2 * stretch)) % 360
    grey = c1 * c2 == 0
    turn = np.where(grey, 0, (h2 - h1 + 180) % 360 - 180)
    hue_change = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2))
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    far = np.abs(h1 - h2) > 180
    hue = (h1 + h2) / 2 + np.where(far, np.where(h1 + h2 < 360, 180, -180), 0)
    hue = np.where(grey, h1 + h2, hue)
    cosines = [np.cos(np.radians(angle)) for angle in (hue - 30, 2 * hue, 3 * hue + 6, 4 * hue - 63)]
    t = 1 + np.tensordot(np.array([-0.17, 0.24, 0.32, -0.20]), np.array(cosines), 1)
    lightness = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2))
    chromas = (c2 - c1) / (1 + 0.045 * chroma)
    hues = hue_change / (1 + 0.015 * chroma * t)
    rotation = -2 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7)) * np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    return np.asarray(np.sqrt(lightness**2 + chromas**2 + hues**2 + rotation * chromas * hues))


def least_difference(colours: list[str], vision: str) -> float:
    rgb = linear(colours)
    seen = rgb if vision == "normal" else np.clip(rgb @ np.array(DEFICIENCIES[vision]).T, 0, 1)
    points = lab(seen)
    differences = ciede2000(points[:, None], points[None])
    return float(differences[np.triu_indices(len(colours), 1)].min())


def contrast(one: str, other: str) -> float:
    darker, lighter = np.sort(linear([one, other]) @ np.array([0.2126, 0.7152, 0.0722]))
    return float((lighter + 0.05) / (darker + 0.05))


def test_ciede2000_matches_the_paper() -> None:
    # Sharma, Wu and Dalal 2005, table 1: pairs 1, 7 and 25.
    one = np.array([[50.0, 2.6772, -79.7751], [50.0, 0.0, 0.0], [60.2574, -34.0099, 36.2677]])
    other = np.array([[50.0, 0.0, -82.7485], [50.0, -1.0, 2.0], [60.4626, -34.1751, 39.4387]])

    assert ciede2000(one, other) == pytest.approx([2.0425, 2.3669, 1.2644], abs=1e-4)


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
