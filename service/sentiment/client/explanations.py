"""An explanation as the clients return it: frozen dataclasses with NumPy arrays that cannot be written, no protobuf.

Values are logits of the explained label on an absolute scale; nothing is normalised per text. Attention says where heads look,
attribution what moved the answer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from sentiment.client.model_id import ModelId
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.viewer.page import notebook_frame, saved_page

# What a notebook keeps of every answer that it shows.
NOTEBOOK_BYTES_MAX = 20_000_000
# Characters a byte of attention takes in a page.
BASE64 = 4 / 3
# float32 has no more to tell of most numbers, and the encodings of attention less.
_DIGITS = 7
# exp of it is what neat-vision shows of a probability of 0; JSON has no infinity.
_LOG_MIN = -100.0

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of one text in code points, UTF-16 code units and UTF-8 bytes."""

    code_points: tuple[int, int]
    utf16: tuple[int, int]
    utf8: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Token:
    """One piece that the model reads. ``span`` and ``word``, an index in ``Explanation.words``, are None for special tokens."""

    piece: str
    span: Span | None
    special: bool
    pair: bool
    word: int | None
    unknown: bool


@dataclass(frozen=True, slots=True)
class Word:
    """A word, its place in the text (``pair``: in the second one), and its tokens [token_start, token_end)."""

    text: str
    span: Span
    pair: bool
    token_start: int
    token_end: int


@dataclass(frozen=True, slots=True)
class Unseen:
    """A part of the text (``pair``: of the second one) that the model did not read."""

    text: str
    span: Span
    pair: bool


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """How much each word moved the explained label's logit, signed.

    ``words`` [words]; ``standard_errors`` [words], 0 where exact, nan where nothing says; ``tokens`` [tokens] and ``by_embedding`` [tokens,
    3], by token, segment and position embedding, None where the method or the request gives none. ``residual``: the sum less what
    it should be, None where nothing says what. ``unknown_total`` is part of the words' values, ``special_total`` of no word's.
    """

    method: str
    words: Floats
    standard_errors: Floats
    tokens: Floats | None
    by_embedding: Floats | None
    residual: float | None
    special_total: float
    unknown_total: float
    unseen_total: float
    steps: int
    steps_asked: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Whether one attribution can be trusted; in calibrated probability of the explained label.

    ``verdict``: BETTER_THAN_RANDOM, INCONCLUSIVE, NOT_FAITHFUL or FLAT. ``words``: how many were left out at a time. ``agreement``:
    Kendall's tau-b with an unrelated method, None where there was none. The rest as in the proto's Evidence.
    """

    method: str
    verdict: str
    comprehensiveness: float
    sufficiency: float
    random_sets: int
    p_value: float
    empty_text_logit: float
    agreement: float | None
    words: int
    rank: int
    random_median: float
    random_mean: float
    random_max: float
    operator: str


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """A fact about the served model.

    ``kind``: flip (without these words the answer changes), keep (these alone make the label) or asked (the answer without these words).

    ``words``: indices in ``Explanation.words``; none: the empty text does it. ``label`` and ``score``: the answer then. Without
    ``found`` these say nothing. The rest as in the proto's Counterfactual.
    """

    kind: str
    found: bool
    words: tuple[int, ...]
    label: str
    score: float
    minimal: bool
    exhaustive_below: int
    stopped: bool
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class HeadPattern:
    """How far heads follow one pattern; ``score`` and ``lift`` [layers, heads], None where this text cannot show it."""

    name: str
    score: Floats | None
    uniform: float
    lift: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """What each head does with this text, in logits of the explained label.

    ``gated`` and ``uniform`` [layers, heads]: change when the head alone is switched off, or looks everywhere alike. Not ``exact``:
    ``gated`` is a slope, and ``uniform``, ``all_uniform`` and ``all_uniform_changes_label`` are None. ``labels[layer][head]``: the name of
    one of ``patterns``, or mixed.
    """

    gated: Floats
    uniform: Floats | None
    exact: bool
    all_uniform: float | None
    all_uniform_changes_label: bool | None
    labels: tuple[tuple[str, ...], ...]
    patterns: Mapping[str, HeadPattern]


@dataclass(frozen=True, slots=True, eq=False)
class Neuron:
    """One token's attention in one head, taken apart: the proto's NeuronView, put together.

    ``query`` [width]; ``key`` and ``product`` [tokens, width]; ``dot``, ``scaled``, ``bias``, ``score``, ``softmax`` and ``attention``
    [tokens], over the tokens from ``key_start`` on.
    """

    layer: int
    head: int
    token: int
    scale: float
    key_start: int
    query: Floats
    key: Floats
    product: Floats
    dot: Floats
    scaled: Floats
    bias: Floats
    score: Floats
    softmax: Floats
    attention: Floats
    max_abs_error: float


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Attention maps by (layer, head), [rows, columns]; -1 where a map combines layers or heads, or has heads as rows.

    ``error_max``: the most by which a weight differs from the one computed; ``dropped`` [rows] of each map: the sum of a row's weights
    that are given as 0, all 0 unless ``encoding`` is top_p.
    """

    aggregation: str
    encoding: str
    maps: Mapping[tuple[int, int], Floats]
    dropped: Mapping[tuple[int, int], Floats]
    error_max: float


@dataclass(frozen=True, slots=True)
class Summary:
    """How the explanation ended. Not ``complete``: ``notes`` say what was left out or shortened, and why."""

    complete: bool
    notes: tuple[str, ...]
    served_rows: int
    explanation_rows: int
    queue_s: float
    run_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """One answer explained.

    ``label`` to ``model``: the answer, as in Classification; ``explained``: the label whose ``logit`` is explained. Not ``labels_agree``:
    the explanation graph decides otherwise on this text. ``logit_error``: the most that a logit of it differs, None without one.
    ``attributions`` and ``evidence`` are by method, in the order asked for. ``messages``: what it was read from, each a serialized
    ExplainResponse.
    """

    text: str
    text_pair: str | None
    label: str
    score: float
    scores: Mapping[str, float]
    abstain: bool
    model: ModelId
    explained: str
    logit: float
    labels_agree: bool
    logit_error: float | None
    truncated: bool
    tokens: tuple[Token, ...]
    words: tuple[Word, ...]
    unseen: tuple[Unseen, ...]
    attributions: Mapping[str, Attribution]
    evidence: Mapping[str, Evidence]
    counterfactuals: tuple[Counterfactual, ...]
    heads: Heads | None
    neuron: Neuron | None
    attention: Attention | None
    summary: Summary
    messages: tuple[bytes, ...] = field(default=(), repr=False, compare=False)

    @property
    def units(self) -> tuple[tuple[str, bool, bool], ...]:
        """Words and special tokens in the order of the text, as (text, special, pair)."""
        found: list[tuple[str, bool, bool]] = []
        last: int | None = None
        for token in self.tokens:
            if token.word is None:
                found.append((token.piece, True, token.pair))
            elif token.word != last:
                found.append((self.words[token.word].text, False, token.pair))
            last = token.word
        return tuple(found)

    @property
    def sides(self) -> tuple[tuple[str, bool, bool], ...]:
        """What the columns of the attention maps stand for, and the rows but of CLS rows: ``units``, or tokens where not of words."""
        if self.attention is not None and self.attention.aggregation == "words":
            return self.units
        return tuple((token.piece, token.special, token.pair) for token in self.tokens)

    def to_json(self) -> dict[str, Any]:  # JSON's values are of many kinds
        """Plain strict JSON, without nan or infinity; see ``json_of``."""
        return json_of(self)

    def to_bertviz(self) -> dict[str, Any]:  # torch's tensors, of which the client knows nothing
        """The arguments of bertviz's head_view and model_view; see ``bertviz_of``."""
        return bertviz_of(self)

    def to_neat_vision(self, sample_id: str, *, method: str = "", label: str = "") -> dict[str, Any]:  # as to_json
        """A sample of neat-vision's data file; see ``neat_vision_of``."""
        return neat_vision_of(self, sample_id, method=method, label=label)

    def to_html(self, model: Mapping[str, Any] | None = None) -> str:  # as to_json
        """The viewer with this explanation as one file, which needs no network. ``model``: as ``model_json`` gives it, for its scorecard.

        Only what the explanation has can be looked at: ask for attention, heads and neuron, too.

        Raises:
            ValueError: it was not read from messages.
        """
        return saved_page(self.messages, self.text, self.text_pair, model)

    def _repr_html_(self) -> str:
        """What notebooks show: the viewer in a frame; of a long text without attention, which is most of a page."""
        size = sum(map(len, self.messages)) * BASE64
        if size <= NOTEBOOK_BYTES_MAX:
            return notebook_frame(self.to_html())
        sizes = f"with it the page has {size / 1e6:.0f} MB, notebooks show up to {NOTEBOOK_BYTES_MAX / 1e6:.0f}"
        return notebook_frame(without_attention(self, f"attention is left out here: {sizes}; to_html() has it").to_html())


def without_attention(explanation: Explanation, why: str) -> Explanation:
    """The explanation without its maps, and the note why."""
    kept = tuple(message for message in explanation.messages if not pb.ExplainResponse.FromString(message).HasField("tile"))
    return with_notes(replace(explanation, attention=None, messages=kept), [why])


def with_notes(explanation: Explanation, notes: Sequence[str]) -> Explanation:
    """The explanation, which is not complete any more, and says why."""
    told = (*explanation.summary.notes, *notes)
    last = pb.ExplainResponse.FromString(explanation.messages[-1])
    last.summary.complete = False
    last.summary.notes.extend(notes)
    summary = replace(explanation.summary, complete=False, notes=told)
    return replace(explanation, summary=summary, messages=(*explanation.messages[:-1], last.SerializeToString()))


def json_of(explanation: Explanation) -> dict[str, Any]:  # JSON's values are of many kinds
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


def bertviz_of(explanation: Explanation) -> dict[str, Any]:  # torch's tensors, of which the client knows nothing
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


def neat_vision_of(explanation: Explanation, sample_id: str, *, method: str = "", label: str = "") -> dict[str, Any]:  # as json_of
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


def _by_method(explanation: Explanation, method: str) -> Attribution:
    there = explanation.attributions
    if not there or (method and method not in there):
        raise ValueError(f"no attribution by {method or 'any method'}; the explanation has {', '.join(there) or 'none'}")
    return there[method] if method else next(iter(there.values()))


def _whole_maps(explanation: Explanation) -> tuple[int, int]:
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


def _attribution(explanation: Explanation, found: Attribution) -> dict[str, Any]:
    rows = zip(explanation.words, _plain(found.words), _plain(found.standard_errors), strict=True)
    words = [{"word": index, "text": word.text, "value": value, "standard_error": error} for index, (word, value, error) in enumerate(rows)]
    return _fields(found, without=("words", "standard_errors")) | {"words": words}


def _attention(attention: Attention) -> dict[str, Any]:
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
