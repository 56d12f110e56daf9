"""Shared by the tests of the engine: a text, and helpers to select parts of an explanation."""

from collections.abc import Sequence
from typing import TypeVar

from sentiment.explain.engine import Explainer
from sentiment.explain.parts import ExplanationRequest, Header, Part, Summary
from sentiment.model.classifier import Classifier
from sentiment.model.tokenizer import Row

TEXT = "the film was not good at all , but i liked the end"

Wanted = TypeVar("Wanted")


def explained(explainer: Explainer, asked: ExplanationRequest) -> tuple[Header, list[Part], Summary]:
    """The header, what comes between, and the summary."""
    header, *parts, summary = explainer.explain(asked)
    assert isinstance(header, Header)
    assert isinstance(summary, Summary)
    return header, parts, summary


def all_of(parts: Sequence[Part], kind: type[Wanted]) -> list[Wanted]:
    """The parts of one kind."""
    return [part for part in parts if isinstance(part, kind)]


def one_of(parts: Sequence[Part], kind: type[Wanted]) -> Wanted:
    """The only part of this kind."""
    (found,) = all_of(parts, kind)
    return found


def logit(classifier: Classifier, row: Row, label: int, without: range | None = None) -> float:
    """The served logit, with the tokens ``without`` erased."""
    feeds = classifier.feeds([row])
    if without is not None:
        feeds["attention_mask"][0, without.start : without.stop] = 0
    return float(classifier.session.run(feeds)[0, label])
