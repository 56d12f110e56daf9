"""Explanations as the clients return them: frozen dataclasses with read-only NumPy arrays, without protobuf.

Values are logits: of the explained label, less those of the label that it is explained against (``Explanation.against``). Nothing is
normalised per text. Attention shows where heads look; attributions show what moved the answer. This module itself needs no NumPy: the
client reads explanations only where it is installed.
"""

from __future__ import annotations  # the arrays' types are NumPy's

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any

from sentiment.client.model_id import ModelId
from sentiment.client.page_answer import answer_json
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.wings import wing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sentiment.client.results import Classification, Prediction

    Floats = npt.NDArray[np.float32]
    Indices = npt.NDArray[np.int32]

# A notebook file stores the whole page of each explanation that it shows.
NOTEBOOK_BYTES_MAX = 20_000_000
# Characters in a page per byte of attention.
BASE64 = 4 / 3
# Precision of float32; encoded attention has less.
_DIGITS = 7
# Stands for the logarithm of a probability of 0: JSON has no infinity.
_LOG_MIN = -100.0


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of one text in code points, UTF-16 code units and UTF-8 bytes."""

    code_points: tuple[int, int]
    utf16: tuple[int, int]
    utf8: tuple[int, int]


def span_of(span: pb.Span) -> Span:
    """Convert a range from protobuf."""
    return Span((span.code_point_start, span.code_point_end), (span.utf16_start, span.utf16_end), (span.byte_start, span.byte_end))


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the model. ``word`` is an index in ``Explanation.words``. ``span`` and ``word`` are None for special tokens."""

    piece: str
    span: Span | None
    special: bool
    pair: bool
    word: int | None
    unknown: bool


@dataclass(frozen=True, slots=True)
class Word:
    """A word, its place in the text (``pair``: in the second text), and its tokens [token_start, token_end).

    ``sentence``: the number of its sentence, from 0; the second text continues the count of the first.
    """

    text: str
    span: Span
    pair: bool
    token_start: int
    token_end: int
    sentence: int


@dataclass(frozen=True, slots=True)
class Unseen:
    """A part of the text (``pair``: of the second text) that the model did not read."""

    text: str
    span: Span
    pair: bool


@dataclass(frozen=True, slots=True)
class SentenceValue:
    """How much a sentence, or a part of a long one, moved the explained logit: the sum of its words' values.

    ``span``: from its first word that the model reads to the last. ``standard_error``: None where unknown. ``words_valued``: whether its
    words have values of their own; otherwise each has an equal part.
    """

    span: Span
    pair: bool
    value: float
    standard_error: float | None
    words_valued: bool


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """How much each word moved the explained logit, signed.

    ``words`` [words]. ``standard_errors`` [words]: 0 where exact, nan where unknown. ``tokens`` [tokens] and ``by_embedding`` [tokens, 3]
    (by token, segment and position embedding): None if the method does not compute them or they are not requested. ``residual``: the sum
    of the values minus the sum that they should have; None if that is unknown. ``unknown_total``: sum of unknown tokens, which are part of
    words. ``special_total``: sum of special tokens, which belong to no word. ``sentences``: of whole sentences, by which the words of long
    texts have their values; empty for other methods.
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
    sentences: tuple[SentenceValue, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Whether one attribution can be trusted. Values are calibrated probabilities of the explained label.

    If it is explained against another label, they are its share in what both have together.

    ``verdict``: BETTER_THAN_RANDOM, INCONCLUSIVE, NOT_FAITHFUL or FLAT. ``words``: how many words were erased at a time. ``agreement``:
    Kendall's tau-b with an unrelated method; None without one. Other fields: see the proto's Evidence.
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
class DecidingWords:
    """The words that decide the answer, found by a search and tested in another way than they were found.

    ``words``: indices in ``Explanation.words``, ascending: a fifth of the words. ``verdict`` and what follows: of the test, as in Evidence.
    ``changing_words``: the fewest words found without which the answer is ``label`` with probability ``score``; empty if it does not change
    within half of the words.
    """

    words: tuple[int, ...]
    verdict: str
    comprehensiveness: float
    random_sets: int
    p_value: float
    rank: int
    random_median: float
    random_max: float
    operator: str
    changing_words: tuple[int, ...]
    label: str
    score: float


@dataclass(frozen=True, slots=True, repr=False)
class Counterfactual:
    """A set of words with the answer that the served model gives for it.

    ``kind``: flip (the answer changes without these words), keep (these words alone give the label) or asked (the answer without words that
    you named).

    ``words``: indices in ``Explanation.words``; empty: the empty text is enough. ``label`` and ``score``: the resulting answer. If
    ``found`` is false, these three have no meaning. Other fields: see the proto's Counterfactual.
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

    def __repr__(self) -> str:
        found = f"words={self.words}, label={self.label!r}, score={self.score:.4f}, minimal={self.minimal}" if self.found else "found=False"
        return f"Counterfactual({self.kind!r}, {found})"


@dataclass(frozen=True, slots=True, eq=False)
class HeadPattern:
    """How well heads match one pattern. ``score`` and ``lift`` are [layers, heads], or None if this text cannot show the pattern."""

    name: str
    score: Floats | None
    uniform: float
    lift: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """The effect and the pattern of each head on this text, in logits as of attributions.

    ``gated`` and ``uniform`` [layers, heads]: change of the logit when the head is switched off, or gets uniform attention. If ``exact`` is
    false, ``gated`` is an estimate (a slope), and ``uniform``, ``all_uniform`` and ``all_uniform_changes_label`` are None.
    ``labels[layer][head]``: the name of one of ``patterns``, or mixed.
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
    """How one token's attention in one head comes about: the proto's NeuronView, assembled.

    ``query`` [width]; ``key`` and ``product`` [tokens, width]; ``dot``, ``scaled``, ``bias``, ``score``, ``softmax`` and ``attention``
    [tokens]. The first of these tokens is ``key_start``.
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
class WordGeometry:
    """Where the words of the text lie after one layer, among the words of the bundle's golden texts: the proto's WordGeometry.

    >>> english.explain("a good film", options=ExplainOptions(geometry=True)).geometry[-1].points.shape
    (3, 2)

    ``layer``: 0 for the embeddings, n for the output of the n-th layer. ``golden``: the golden words, the same in all layers; a word stands
    as often as the texts have it. ``points`` [words, 2] and ``golden_points`` [golden words, 2]: x and y on the two principal components of
    the golden words in this layer, with no unit. ``variance`` [2]: the shares of the golden words' variance along x and y; what they lack
    to 1 is not in the picture. ``nearest`` [words, n], n at most 5: indices in ``golden`` of the closest words by cosine in all dimensions,
    the closest first, each spelling once. ``cosines`` [words, n]: of these, from -1 to 1.
    """

    layer: int
    points: Floats
    golden: tuple[str, ...]
    golden_points: Floats
    variance: Floats
    nearest: Indices
    cosines: Floats

    def nearest_words(self, word: int) -> tuple[tuple[str, float], ...]:
        """The golden words closest to a word, each with its cosine, the closest first. ``word``: an index in ``Explanation.words``."""
        pairs = zip(self.nearest[word].tolist(), self.cosines[word].tolist(), strict=True)
        return tuple((self.golden[index], cosine) for index, cosine in pairs)


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Attention maps [rows, columns] by (layer, head). A key is -1 if the map combines layers or heads, or if its rows are heads.

    ``error_max``: the largest difference between a weight and the computed one. ``dropped`` [rows] per map: sum of the weights of a row
    that were dropped and read as 0; always 0 unless ``encoding`` is top_p.
    """

    aggregation: str
    encoding: str
    maps: Mapping[tuple[int, int], Floats]
    dropped: Mapping[tuple[int, int], Floats]
    error_max: float


@dataclass(frozen=True, slots=True)
class Summary:
    """How the explanation ended. If ``complete`` is false, ``notes`` says what was left out or shortened, and why."""

    complete: bool
    notes: tuple[str, ...]
    served_rows: int
    explanation_rows: int
    queue_s: float
    run_s: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Explanation:
    """The explanation of one answer.

    >>> explanation = client.explain("a good film")
    >>> explanation
    Explanation(label='positive', score=0.8808, explained='positive', words=3, attributions=['occlusion'], complete=True)
    >>> dict(zip((word.text for word in explanation.words), explanation.attributions["occlusion"].words.tolist()))
    {'a': 0.0, 'good': 1.0, 'film': 0.0}

    ``target``: what the answer is towards, None for the whole text; ``mention``: where the text names it, which is what was read around.
    ``label`` to ``model``: the answer, as in Classification. ``reason``: the explanation in one English sentence, with the phrases that
    decide the answer; empty without an attribution, and from a server that knows none. ``explained``: the label that is explained.
    ``against``: the label whose logit is subtracted, None if none is. ``logit``: what is explained, the logit of the former less that of
    the latter. ``labels_agree``: whether the explain graph predicts the same label for this text. ``logit_error``: the largest difference
    between the logits of both graphs; None if none ran first. ``precision`` and ``provider``: of the graph that gave the answer and
    the evidence, on a GPU server the fp32 graph on the CPU. ``explain_provider``: what ran the explain graph, empty without one.
    ``attributions`` and ``evidence``: by method, in the requested order. ``deciding``: None for very short and long texts, and without
    evidence or time. ``geometry``: of the embeddings and of each layer, in this order;
    empty unless requested, and if time was too short for all layers. ``adaptive``: the answer that effort adaptive gives from a part of the
    text, if its label, abstain or mixed is another. ``messages``: the source messages, each a serialized ExplainResponse.
    """

    text: str
    text_pair: str | None
    target: str | None
    mention: Span | None
    label: str
    score: float
    scores: Mapping[str, float]
    abstain: bool
    model: ModelId
    reason: str
    explained: str
    against: str | None
    logit: float
    labels_agree: bool
    logit_error: float | None
    precision: str
    provider: str
    explain_provider: str
    truncated: bool
    tokens: tuple[Token, ...]
    words: tuple[Word, ...]
    unseen: tuple[Unseen, ...]
    attributions: Mapping[str, Attribution]
    evidence: Mapping[str, Evidence]
    deciding: DecidingWords | None
    counterfactuals: tuple[Counterfactual, ...]
    heads: Heads | None
    neuron: Neuron | None
    geometry: tuple[WordGeometry, ...]
    attention: Attention | None
    adaptive: Prediction | None
    summary: Summary
    messages: tuple[bytes, ...] = field(default=(), repr=False, compare=False)

    def __repr__(self) -> str:
        explained = f"{self.explained!r}" if self.against is None else f"{self.explained!r}, against={self.against!r}"
        fields = f"label={self.label!r}, score={self.score:.4f}, explained={explained}, words={len(self.words)}"
        return f"Explanation({fields}, attributions={list(self.attributions)}, complete={self.summary.complete})"

    @property
    def units(self) -> tuple[tuple[str, bool, bool], ...]:
        """Words and special tokens in text order, as (text, special, pair)."""
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
        """Columns of the attention maps (and rows, except for cls_rows), as (text, special, pair): ``units`` for words, else tokens."""
        if self.attention is not None and self.attention.aggregation == "words":
            return self.units
        return tuple((token.piece, token.special, token.pair) for token in self.tokens)

    def to_json(self) -> dict[str, Any]:  # JSON's values are of many kinds
        """The JSON that ``sentiment explain --json`` prints, without nan or infinity: the fields of the dataclasses by name, nested alike.

        Arrays become nested lists, with numbers rounded to 7 significant digits; missing and non-finite values are null. ``attributions``
        is a list, each with its ``evidence``; their ``words`` are objects with index, text, value and standard error of the word. The maps
        of ``attention`` are a list of objects with layer, head, weights [rows][columns] and dropped [rows].

        >>> client.explain("a good film").to_json()["words"][1]["text"]
        'good'
        """
        return _fields(self, without=("attributions", "evidence", "attention", "messages")) | {
            "attributions": [
                _attribution(self, found) | {"evidence": _plain(self.evidence.get(method))} for method, found in self.attributions.items()
            ],
            "attention": None if self.attention is None else _attention(self.attention),
        }

    def to_bertviz(self) -> dict[str, Any]:  # torch's tensors, of which the client knows nothing
        """The arguments of ``bertviz.head_view`` and ``bertviz.model_view``: ``head_view(**explanation.to_bertviz())``.

        ``attention``: a tensor [1, heads, tokens, tokens] per layer. ``tokens``: the pieces, or words if maps are aggregated to words.
        ``sentence_b_start``: the first token of the second text; None without a pair. Needs torch, which comes with bertviz. Use it for
        short texts: bertviz writes each weight as text into its page, and twice for a pair.

        >>> options = ExplainOptions(attention=AttentionOptions())
        >>> arguments = english.explain("a good film", options=options).to_bertviz()  # english: a client of a model with attention
        >>> arguments["tokens"]
        ['[CLS]', 'a', 'good', 'film', '[SEP]']

        Raises:
            ValueError: the explanation does not have maps of all layers and heads, over tokens or words.
            ModuleNotFoundError: torch is not installed.
        """
        maps, (layers, heads) = _whole_maps(self)
        # Imported here: the client does not need torch otherwise.
        torch = import_module("torch")
        sides = self.sides
        return {
            "attention": [torch.stack([torch.tensor(maps[layer, head]) for head in range(heads)])[None] for layer in range(layers)],
            "tokens": [text for text, _, _ in sides],
            "sentence_b_start": next((place for place, (_, special, pair) in enumerate(sides) if pair and not special), None),
        }

    def to_neat_vision(self, sample_id: str, *, method: str = "", label: str = "") -> dict[str, Any]:  # as to_json
        """One sample of a data file for neat-vision's classification task. Such a file is a JSON list of samples.

        ``text``: the words. ``attention``: one weight per word: the absolute attribution by ``method`` (empty: the first), divided by the
        sum over all words. neat-vision needs weights that are not negative and sum to 1, so its pictures show neither direction nor scale.
        ``posterior``: the natural logarithm of each label's probability; neat-vision takes the softmax, which gives the probabilities.
        ``label``: index of the true label; empty: the predicted one. ``prediction``: index of the predicted label.

        >>> client.explain("a good film").to_neat_vision("first")["attention"]
        [0.0, 1.0, 0.0]

        Raises:
            ValueError: the explanation has no such attribution, or the model no such label.
        """
        labels, there = list(self.scores), self.attributions
        if not there or (method and method not in there):
            raise ValueError(f"the explanation has no attribution by {method or 'any method'}; it has {', '.join(there) or 'none'}")
        if label and label not in labels:
            raise ValueError(f"label must be one of {', '.join(labels)}, got {label!r}")
        found = there[method] if method else next(iter(there.values()))
        sizes = abs(found.words.astype(float))
        return {
            "text": [word.text for word in self.words],
            "label": labels.index(label or self.label),
            "prediction": labels.index(self.label),
            "posterior": [max(_LOG_MIN, math.log(score)) if score > 0 else _LOG_MIN for score in self.scores.values()],
            "attention": (sizes / (sizes.sum() or 1)).tolist(),
            "id": sample_id,
        }

    def to_html(self, model: Mapping[str, Any] | None = None, answer: Classification | None = None) -> str:  # as to_json
        """The viewer page with this explanation, as a single file that needs no network.

        ``model``: the result of ``model_json``, for the scorecard. ``answer``: that to the same text, for its sentences and targets.

        The page shows only what the explanation has: also request attention, heads, neuron and geometry.

        >>> page = client.explain("a good film").to_html()
        >>> page[:15]
        '<!doctype html>'

        Raises:
            ValueError: the explanation has no ``messages``.
        """
        answer_shown = None if answer is None else answer_json(answer)
        return str(_page().saved_page(self.messages, self.text, self.text_pair, model, answer=answer_shown, target=self.target))

    def _repr_html_(self) -> str:
        """The viewer in a frame, for notebooks. Without attention if the page would be too large."""
        size = sum(map(len, self.messages)) * BASE64
        if size <= NOTEBOOK_BYTES_MAX:
            return str(_page().notebook_frame(self.to_html()))
        sizes = f"the page would have {size / 1e6:.0f} MB, and the limit in notebooks is {NOTEBOOK_BYTES_MAX / 1e6:.0f} MB"
        kept = tuple(message for message in self.messages if not pb.ExplainResponse.FromString(message).HasField("tile"))
        shown = with_notes(replace(self, attention=None, messages=kept), [f"attention is left out here: {sizes}; use to_html() to see it"])
        return str(_page().notebook_frame(shown.to_html()))


def _page() -> Any:  # Any: a module, sentiment_viewer.page
    return wing("sentiment.views", "page")


def with_notes(explanation: Explanation, notes: Sequence[str]) -> Explanation:
    """The explanation with more notes, marked as incomplete."""
    all_notes = (*explanation.summary.notes, *notes)
    last = pb.ExplainResponse.FromString(explanation.messages[-1])
    last.summary.complete = False
    last.summary.notes.extend(notes)
    summary = replace(explanation.summary, complete=False, notes=all_notes)
    return replace(explanation, summary=summary, messages=(*explanation.messages[:-1], last.SerializeToString()))


def _whole_maps(explanation: Explanation) -> tuple[Mapping[tuple[int, int], Floats], tuple[int, int]]:
    """The maps of all heads, and the numbers of layers and heads.

    Raises:
        ValueError: maps are missing or have another aggregation.
    """
    attention = explanation.attention
    if attention is None:
        raise ValueError("the explanation has no attention maps; request them with ExplainOptions(attention=AttentionOptions())")
    if attention.aggregation not in ("maps", "words"):
        raise ValueError(f"bertviz needs attention with aggregation maps or words, got {attention.aggregation}")
    layers, heads = (1 + max(place[axis] for place in attention.maps) for axis in (0, 1))
    if explanation.heads is not None:
        layers, heads = explanation.heads.gated.shape
    missing = [place for place in product(range(layers), range(heads)) if place not in attention.maps]
    if missing:
        layer, head = missing[0]
        first = f"the first is layer {layer}, head {head}"
        raise ValueError(f"bertviz needs the maps of all layers and heads, but {len(missing)} of {layers * heads} are missing; {first}")
    return attention.maps, (layers, heads)


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
    # First what there is most of: the numbers of maps.
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if is_dataclass(value):
        return _fields(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return {name: _plain(part) for name, part in value.items()} if hasattr(value, "items") else value
