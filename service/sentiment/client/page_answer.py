"""The answer to a text as the viewer's page reads it: a ClassifyResponse as JSON. Pure."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentiment.client.explanations import Span
    from sentiment.client.results import Classification, Prediction


def answer_json(answer: "Classification") -> Mapping[str, Any]:  # JSON's values are of many kinds
    """The answer with its sentences and targets; of places, those that a browser counts."""
    return {
        "prediction": _prediction(answer),
        "model": asdict(answer.model),
        "tokens": answer.tokens,
        "truncated": answer.truncated,
        "language_suspect": answer.language_suspect,
        "early": answer.early,
        "sentences": [{"span": _span(one.span), "prediction": _prediction(one)} for one in answer.sentences],
        "sentences_total": answer.sentences_total,
        "targets": [
            {"target": one.target, "named": one.named, "mention": _span(one.mention), "prediction": _prediction(one)}
            for one in answer.targets.values()
        ],
    }


def _span(span: "Span | None") -> Mapping[str, int] | None:
    return None if span is None else {"utf16_start": span.utf16[0], "utf16_end": span.utf16[1]}


def _prediction(answer: "Prediction") -> Mapping[str, Any]:  # as above
    scores = [{"label": label, "score": score} for label, score in answer.scores.items()]
    return {"label": answer.label, "score": answer.score, "scores": scores, "abstain": answer.abstain, "mixed": answer.mixed}
