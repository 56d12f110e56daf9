"""Student's t. Pure; no library is needed, so that a browser can compute the same."""

import math

# Of the continued fraction: it converges in far fewer terms for the degrees of freedom that a file has.
_TERMS_MAX, _PRECISE, _TINY = 300, 1e-12, 1e-300
_HALVINGS = 80


def chance(t: float, freedom: int) -> float:
    """The probability of a Student's t at least as far from 0 as this one, with ``freedom`` degrees of freedom, at least 1."""
    return _beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def quantile(outside: float, freedom: int) -> float:
    """The t beyond which, on both sides together, this probability lies: the inverse of ``chance``."""
    low, high = 0.0, 1.0
    while chance(high, freedom) > outside:
        low, high = high, high * 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle, freedom) > outside else (low, middle)
    return high


def _beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function, by its continued fraction (Lentz's method; Numerical Recipes, 6.4)."""
    if x <= 0 or x >= 1:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(1 - x)) / a
    d = 1 / _apart(1 - (a + b) * x / (a + 1))
    c, fraction = 1.0, d
    for m in range(1, _TERMS_MAX):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / _apart(1 + term * d), _apart(1 + term / c)
            fraction *= c * d
        if abs(c * d - 1) < _PRECISE:
            break
    return front * fraction


def _apart(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
