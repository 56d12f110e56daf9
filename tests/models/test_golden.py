"""The choice of golden texts and their tolerance."""

from typing import Any, cast

import numpy as np

from sentiment_models.export.golden import GOLDEN_PAIRS, GOLDEN_TEXTS, MEANT, golden_set, misordered
from sentiment_models.export.inference import Graph


class _Graph:
    """Answers (-2, 2) to every text, but (0.1, -0.1) to the last one; ``errors``: of these two."""

    tokenizer: Any = None  # itself: a row is the text

    def __init__(self, errors: tuple[float, float]) -> None:
        self.tokenizer, self._errors = self, errors

    def encode(self, *text: str) -> tuple[str, ...]:
        return text

    def logits(self, rows: list[tuple[str, ...]]) -> np.ndarray[Any, np.dtype[np.float32]]:
        last = rows == [(GOLDEN_TEXTS[-1],)]
        first = 0.1 if last else -2.0
        return np.array([[first + self._errors[last], -first]], np.float32)


def test_a_text_between_two_labels_does_not_set_the_tolerance_of_the_others() -> None:
    graphs = {"fp32": _Graph((0.0, 0.0)), "int8": _Graph((0.01, 1.9))}

    found = golden_set(cast("dict[str, Graph]", graphs), ["negative", "positive"])

    assert [entry["text"] for entry in found.entries] == list(GOLDEN_TEXTS[:-1])
    assert found.tolerance == {"fp32": 1e-3, "int8": 0.015}


def test_single_texts_alone_show_labels_in_a_wrong_order() -> None:
    other = {"positive": "Negative", "negative": "Positive"}
    labels = ["Negative", "Positive"]
    wrong = [{"text": text, "label": other[meant]} for text, meant in MEANT.items()]
    right = [{"text": text, "label": meant.capitalize()} for text, meant in MEANT.items()]
    pairs = [{"text": one, "text_pair": second, "label": "Positive"} for one, second in GOLDEN_PAIRS * 3]

    (line,) = misordered([*wrong, *pairs], labels)

    assert line.startswith("16 of 16 golden texts are answered against their meaning, such as 'Wonderful.' with Negative: ")
    assert not [*misordered(right, labels)]
    assert not [*misordered(wrong, ["0", "1"])]
