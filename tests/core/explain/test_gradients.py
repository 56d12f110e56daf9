"""Attributions from gradients: quadrature, completeness, sums over words."""

import numpy as np
import pytest

from sentiment.explain.methods.gradients import (
    Path,
    gradient_times_input,
    integrated_gradients,
    special_total,
    unknown_total,
    word_values,
)
from sentiment.model.words import Token

TOKENS = [
    Token("[CLS]", 0, 0, -1, special=True, unknown=False, pair=False),
    Token("un", 0, 2, 0, special=False, unknown=False, pair=False),
    Token("##fun", 2, 5, 0, special=False, unknown=False, pair=False),
    Token("[UNK]", 6, 7, 1, special=False, unknown=True, pair=False),
    Token("[SEP]", 0, 0, -1, special=True, unknown=False, pair=False),
]


@pytest.mark.parametrize("steps", [1, 2, 5, 16, 50])
def test_a_path_lies_between_its_ends_and_integrates_polynomials_exactly(steps: int) -> None:
    path = Path.of(steps)

    assert ((path.alpha > 0) & (path.alpha < 1)).all()
    assert path.weights.sum() == pytest.approx(1)
    degree = min(2 * steps - 1, 9)
    assert path.weights @ path.alpha.astype(np.float64) ** degree == pytest.approx(1 / (degree + 1), abs=1e-6)


def _dots(path: Path, embedded: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """Of the logit sum(e ** 3 + 2 e), whose gradient is known, with embeddings of one number."""
    between = baseline + path.alpha[:, None] * (embedded - baseline)
    gradient = 3 * between**2 + 2
    return np.stack([gradient * embedded, gradient * baseline, gradient * 0.5, gradient * 0.25], axis=-1)


def test_integrated_gradients_sum_to_the_difference_up_to_the_residual() -> None:
    embedded, baseline = np.array([1.0, -2.0, 0.5, 0.0, 1.5]), np.array([1.0, 0.2, 0.2, 0.2, 1.5])
    difference = float((embedded**3 + 2 * embedded - baseline**3 - 2 * baseline).sum())

    path = Path.of(4)
    found = integrated_gradients(_dots(path, embedded, baseline), path, difference)
    rough = Path.of(1)
    missing = integrated_gradients(_dots(rough, embedded, baseline), rough, difference)

    assert found.residual == pytest.approx(0, abs=1e-5)
    assert found.values[[0, 4]] == pytest.approx([0, 0])
    assert found.values[1] == pytest.approx(-8 - 4 - 0.008 - 0.4, abs=1e-5)
    assert missing.residual == pytest.approx(missing.values.sum() - difference)
    assert missing.relative_residual == pytest.approx(abs(missing.residual) / abs(difference))
    assert missing.relative_residual > 0.05


def test_gradient_times_input_is_split_by_embedding() -> None:
    dots = np.array([[1.0, 9.0, 0.25, -0.5], [-2.0, 9.0, 0.0, 0.0]])

    found = gradient_times_input(dots)

    assert found.values.tolist() == [1.0, -2.0]
    assert found.by_embedding.tolist() == [[1.0, 0.25, -0.5], [-2.0, 0.0, 0.0]]
    assert np.isnan(found.residual)


def test_words_and_totals_add_up_to_the_sum() -> None:
    values = np.array([0.5, 1.0, 2.0, -4.0, 0.25])

    words = word_values(values, TOKENS, 2)

    assert words.tolist() == [3.0, -4.0]
    assert special_total(values, TOKENS) == 0.75
    assert unknown_total(values, TOKENS) == -4.0
    assert words.sum() + special_total(values, TOKENS) == values.sum()


def test_an_unread_word_has_the_value_0() -> None:
    assert word_values(np.ones(5), TOKENS, 4).tolist() == [2.0, 1.0, 0.0, 0.0]
