"""Heads over a corpus are the means of what the service tells of them text by text."""

from collections import Counter

import numpy as np
import pytest

from sentiment.explain.methods.heads import MIXED, PATTERNS
from sentiment.explain.parts import ExplanationRequest, Heads
from sentiment_models.explanations import corpus_heads
from sentiment_models.explanations.corpus_heads import heads_found
from sentiment_models.explanations.subject import Subject
from tests.models.faithfulness.layers import TEXTS


def _told(subject: Subject, text: str) -> Heads:
    (found,) = (
        part for part in subject.explainer.explain(ExplanationRequest(text, attributions=False, heads=True)) if isinstance(part, Heads)
    )
    return found


def test_figures_of_heads_are_means_of_those_of_each_text(subject: Subject) -> None:
    told = [_told(subject, text) for text in TEXTS]

    found = heads_found(subject, [subject.read(text) for text in TEXTS])

    assert found.texts == len(TEXTS)
    np.testing.assert_allclose(found.effect, np.mean([np.abs(one.first_order) for one in told], axis=0), atol=1e-4)
    for layer in range(2):
        for head in range(4):
            counts = Counter(one.patterns.labels[layer][head] for one in told)
            assert counts[found.pattern[layer][head]] == max(counts.values())
            assert found.pattern_share[layer][head] == max(counts.values()) / len(TEXTS)
    for number, name in enumerate(PATTERNS):
        shown = [one.patterns.patterns[number].lift for one in told if one.patterns.patterns[number].defined]
        assert (name in found.lift) == bool(shown)
        if shown:
            np.testing.assert_allclose(found.lift[name], np.mean(shown, axis=0), atol=1e-4)


def test_of_equally_frequent_labels_a_pattern_precedes_mixed() -> None:
    assert corpus_heads._most(Counter({MIXED: 2, "cls": 2, "sep": 2, "next": 1})) == "sep"
    assert corpus_heads._most(Counter({"broad": 1, MIXED: 2})) == MIXED


def test_long_corpora_are_cut(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_heads, "TEXTS_MAX", 2)

    assert heads_found(subject, [subject.read(text) for text in TEXTS]).texts == 2
