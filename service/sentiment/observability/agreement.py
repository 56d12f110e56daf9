"""How the answers of two versions of a model differ, in a sentence for people. Pure.

It never says which version is better, since without labels nobody knows, but by how much at most: only texts with another label can be
right in one version and wrong in the other.
"""

import math
from collections.abc import Mapping

# The normal quantile of a two-sided interval of 95 %.
QUANTILE = 1.959964
# How many directions of flips the sentence names, the most frequent ones.
FLIPS_SHOWN = 4


def wilson(part: float, whole: float) -> tuple[float, float]:
    """Wilson's interval (1927) of a share, 95 %. ``whole`` is at least 1. Valid also where the share is 0 or 1."""
    share, square = part / whole, QUANTILE**2 / whole
    middle, half = share + square / 2, math.sqrt(square * (share * (1 - share) + square / 4))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def verdict(used: str, texts: float, flips: Mapping[tuple[str, str], float], shift: float, failed: float) -> str:
    """How another version differs from the version in use; empty before the first text.

    Args:
        used: the version in use.
        texts: how many texts both have answered.
        flips: how many of them have another label, by the label of the version in use and the other one's.
        shift: sum over the texts of the probability of the used version's label: the other version's minus the used one's.
        failed: how many texts the other version did not answer, besides.
    """
    if not texts:
        return f"answered none of {failed:,.0f} texts that {used} answered" if failed else ""
    differ = sum(flips.values())
    low, high = wilson(differ, texts)
    said = f"differs from {used} on {100 * differ / texts:.1f} % ({100 * low:.1f} to {100 * high:.1f}) of {texts:,.0f} texts"
    most = sorted((count, pair) for pair, count in flips.items() if count)[::-1]
    shown = [f"{before} to {after} {count:,.0f}" for count, (before, after) in most[:FLIPS_SHOWN]]
    if rest := sum(count for count, _ in most[FLIPS_SHOWN:]):
        shown.append(f"others {rest:,.0f}")
    parts = [": ".join(filter(None, (said, ", ".join(shown))))]
    parts += [f"accuracy differs by at most {100 * high:.1f} points", f"mean shift {shift / texts:+.3f}"]
    return "; ".join([*parts, f"did not answer {failed:,.0f} more"] if failed else parts)
