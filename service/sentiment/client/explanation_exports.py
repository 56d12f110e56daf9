"""An explanation as JSON, and as what bertviz and neat-vision read."""

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sentiment.client.explanations import Attention, Attribution, Explanation

# float32 has no more to tell of most numbers, and the encodings of attention less.
_DIGITS = 7
# exp of it is what neat-vision shows of a probability of 0; JSON has no infinity.
_LOG_MIN = -100.0


def json_of(explanation: "Explanation") -> dict[str, Any]:  # JSON's values are of many kinds
    """What ``sentiment explain --json`` prints: the dataclasses' fields by their names, nested as they are.

    Arrays become nested lists, their numbers rounded to 7 significant digits; what is not finite or not there is null. ``attributions``
    is a list, each with its ``evidence``; ``words`` of one are objects with the word's index, text, value and standard error. The
    maps of ``attention`` are a list of objects with layer, head, weights [rows][columns] and dropped [rows].
    """
    return _fields(explanation, without=("attributions", "evidence", "attention", "messages")) | {
        "attributions": [
            _attribution(explanation, found) | {"evidence": _plain(explanation.evidence.get(method))}
            for method, found in explanation.attributions.items()
        ],
        "attention": None if explanation.attention is None else _attention(explanation.attention),
    }


def bertviz_of(explanation: "Explanation") -> dict[str, Any]:  # torch's tensors, of which the client knows nothing
    """The arguments of ``bertviz.head_view`` and ``bertviz.model_view``: ``head_view(**explanation.to_bertviz())``.

    ``attention``: for each layer a tensor [1, heads, tokens, tokens]; ``tokens``: the pieces; ``sentence_b_start``: the first token of the
    second text, None without one. Of maps aggregated to words, the tokens are words. Needs torch, whose tensors bertviz takes; it is
    there where bertviz is. bertviz writes every weight as text into its page, of a pair twice: it is made for short texts.

    Raises:
        ValueError: the explanation has no maps of every layer and head, tokens by tokens or words by words.
        ModuleNotFoundError: torch is not installed.
    """
    layers, heads = _whole_maps(explanation)
    # Not imported with the client, which needs it nowhere else.
    torch = import_module("torch")
    maps = explanation.attention.maps if explanation.attention is not None else {}
    sides = explanation.sides
    stacks = [np.stack([maps[layer, head] for head in range(heads)])[np.newaxis] for layer in range(layers)]
    return {
        "attention": [torch.from_numpy(stack) for stack in stacks],
        "tokens": [text for text, _, _ in sides],
        "sentence_b_start": next((place for place, (_, special, pair) in enumerate(sides) if pair and not special), None),
    }


def neat_vision_of(explanation: "Explanation", sample_id: str, *, method: str = "", label: str = "") -> dict[str, Any]:  # as json_of
    """One sample of a data file of neat-vision's classification task: the file is a JSON list of them.

    ``text``: the words. ``attention``: one weight a word, the size of its attribution by ``method`` (empty: the first) as a share of
    the sum over all words, because neat-vision's colours take for granted that weights are not negative and sum to 1: its pictures
    tell neither direction nor scale. ``posterior``: the natural logarithm of each label's probability, of which neat-vision takes the
    softmax, which gives the probabilities back. ``label``: the true one's number, where empty the answer's; ``prediction``: the answer's.

    Raises:
        ValueError: there is no such attribution or label.
    """
    labels = list(explanation.scores)
    found = _by_method(explanation, method)
    sizes = np.abs(found.words.astype(np.float64))
    if label and label not in labels:
        raise ValueError(f"label is {label!r}; the model's labels are {', '.join(labels)}")
    return {
        "text": [word.text for word in explanation.words],
        "label": labels.index(label or explanation.label),
        "prediction": labels.index(explanation.label),
        "posterior": [max(_LOG_MIN, math.log(score)) if score > 0 else _LOG_MIN for score in explanation.scores.values()],
        "attention": (sizes / (sizes.sum() or 1)).tolist(),
        "id": sample_id,
    }


def _by_method(explanation: "Explanation", method: str) -> "Attribution":
    there = explanation.attributions
    if not there or (method and method not in there):
        raise ValueError(f"no attribution by {method or 'any method'}; the explanation has {', '.join(there) or 'none'}")
    return there[method] if method else next(iter(there.values()))


def _whole_maps(explanation: "Explanation") -> tuple[int, int]:
    """How many layers and heads there are.

    Raises:
        ValueError: not all of them, or maps of another kind.
    """
    attention = explanation.attention
    if attention is None:
        raise ValueError("the explanation has no attention maps; ask for them with ExplainOptions(attention=AttentionOptions())")
    if attention.aggregation not in ("maps", "words"):
        raise ValueError(f"the attention is aggregated to {attention.aggregation}; bertviz shows maps or words of every layer and head")
    layers, heads = (1 + max(place[axis] for place in attention.maps) for axis in (0, 1))
    if explanation.heads is not None:
        layers, heads = explanation.heads.gated.shape
    missing = [place for place in np.ndindex(layers, heads) if place not in attention.maps]
    if missing:
        layer, head = missing[0]
        raise ValueError(f"{len(missing)} of {layers * heads} maps are missing, the first of layer {layer}, head {head}; bertviz shows all")
    return layers, heads


def _attribution(explanation: "Explanation", found: "Attribution") -> dict[str, Any]:
    rows = zip(explanation.words, _plain(found.words), _plain(found.standard_errors), strict=True)
    words = [{"word": index, "text": word.text, "value": value, "standard_error": error} for index, (word, value, error) in enumerate(rows)]
    return _fields(found, without=("words", "standard_errors")) | {"words": words}


def _attention(attention: "Attention") -> dict[str, Any]:
    maps = [
        {"layer": place[0], "head": place[1], "weights": _plain(weights), "dropped": _plain(attention.dropped[place])}
        for place, weights in attention.maps.items()
    ]
    return _fields(attention, without=("maps", "dropped")) | {"maps": maps}


def _fields(value: Any, without: Sequence[str] = ()) -> dict[str, Any]:  # any dataclass, and JSON of its fields
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.name not in without}


def _plain(value: Any) -> Any:  # any field of a dataclass
    if is_dataclass(value):
        return _fields(value)
    if isinstance(value, np.ndarray):
        return _rounded(value)
    if hasattr(value, "items"):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return _number(value) if isinstance(value, float) else value


def _rounded(array: npt.NDArray[np.float32]) -> list[Any]:
    flat = array.astype(np.float64).ravel().tolist()
    numbers = np.array([_number(value) for value in flat], object)
    listed: list[Any] = numbers.reshape(array.shape).tolist()
    return listed


def _number(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
