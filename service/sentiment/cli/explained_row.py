"""A row of input with its explanation, as ``sentiment explain --input`` writes it, and as its summary reads it again. Pure."""

import json
import math
from collections.abc import Mapping
from typing import Any

from sentiment.cli.answers import Asked, Names, question_of, reason_of, score_columns
from sentiment.client import CallFailed, Explanation
from sentiment.client.frames import SCORE
from sentiment.errors import BadSettings
from sentiment.explain.methods.column import Explained, Row, Unexplained
from sentiment.explain.methods.evidence import Verdict
from sentiment.files.rows import TEXT, is_missing

# Keys of the object that are the answer's.
KEYS = (
    "label", "score", "scores", "abstain", "explained", "against", "reason", "verdict", "method", "words", "notes", "truncated", "model",
    "error",
)  # fmt: skip
# Of values, which are logits.
DIGITS = 4
# No model has larger ones.
LOGIT_MAX = 1e6
# As this program, other programs and pandas write it.
_ABSTAIN = {"false": False, "true": True, "0": False, "1": True}


def explained_of(asked: Asked, found: Explanation | CallFailed) -> dict[str, Any]:  # Any: JSON
    """The JSON object of a row: the input's columns, the text, and its explanation or the error that it has instead.

    ``words`` has a list for each column of a table of the words: text, value, standard_error and sentence.
    """
    question = question_of(asked)
    if isinstance(found, CallFailed):
        return question | {"error": dict(zip(("code", "message"), reason_of(asked, found), strict=True))}
    method, first = next(iter(found.attributions.items()), ("", None))
    words = {
        "text": [word.text for word in found.words],
        "value": [round(value, DIGITS) for value in first.words.tolist()],
        "standard_error": [round(error, DIGITS) if math.isfinite(error) else None for error in first.standard_errors.tolist()],
        "sentence": [word.sentence for word in found.words],
    } if first else None  # fmt: skip
    evidence = found.evidence.get(method)
    return question | {
        "label": found.label,
        "score": found.score,
        "scores": dict(found.scores),
        "abstain": found.abstain,
        "explained": found.explained,
        "against": found.against,
        "reason": found.reason,
        "verdict": evidence.verdict if evidence else "",
        "method": method,
        "words": words,
        "notes": "; ".join(found.summary.notes),
        "truncated": found.truncated,
        "model": {"name": found.model.name, "version": found.model.version, "digest": found.model.digest},
    }


def explained_columns(names: Names) -> dict[str, type]:
    """The columns of a table that are an explanation's, and their types. ``words`` is JSON there."""
    return {"label": str, "score": float, **score_columns(names), "abstain": bool, "explained": str, "against": str, "reason": str,
            "verdict": str, "method": str, "words": str, "notes": str, "truncated": bool, "model": str, "model_digest": str,
            "error": str}  # fmt: skip


def labels_of(answer: Mapping[str, Any]) -> list[str]:  # Any: as above
    """The model's labels, as a row or a table's columns name them."""
    scores = answer.get("scores")
    if isinstance(scores, Mapping):
        return list(scores)
    # Columns of the input may be called so, too, and stand before the text.
    names = list(answer)
    own = names[names.index(TEXT) :] if TEXT in answer else names
    return [name.removeprefix(SCORE) for name in own if name.startswith(SCORE)]


def row_of(answer: Mapping[str, Any], by: str | None) -> Row:  # Any: as above
    """A row of the output, an object or the row of a table. ``by``: the column of its group.

    Raises:
        BadSettings: it is not of this command.
    """
    group = "" if by is None else _name(answer.get(by))
    if not is_missing(answer.get("error")) and answer["error"]:
        return Unexplained(group)
    try:
        words = answer["words"]
        words = json.loads(words) if isinstance(words, str) and words else words or {}
        texts, values, errors, sentences = (words.get(name, []) for name in ("text", "value", "standard_error", "sentence"))
        values = [float(value) for value in values]
        if not isinstance(answer[TEXT], str) or len({len(texts), len(values), len(errors), len(sentences)}) > 1:
            raise TypeError
        labels, verdict = labels_of(answer), answer["verdict"]
        if answer["label"] not in labels or (verdict and verdict not in Verdict.__members__):
            raise ValueError
        if not all(abs(value) < LOGIT_MAX for value in values):
            raise ValueError
        towards = answer["explained"] or None
        others = [label for label in labels if label != towards] if towards else []
        return Explained(
            text=answer[TEXT],
            label=answer["label"],
            abstain=_ABSTAIN[str(answer["abstain"]).lower()],
            towards=towards,
            against=others[0] if len(others) == 1 else answer["against"] or None,
            verdict=verdict,
            words=texts,
            values=values,
            errors=[math.inf if error is None else float(error) for error in errors],
            sentences=sentences,
            group=group,
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadSettings("is not a row that sentiment explain --input has written") from error


def _name(value: object) -> str:
    if is_missing(value):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
