"""Options of an explanation, as Python dataclasses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sentiment.proto_fields import message_of
from sentiment.v1 import sentiment_pb2 as pb

AGGREGATIONS = {
    "maps": pb.ATTENTION_AGGREGATION_UNSPECIFIED,
    "words": pb.ATTENTION_AGGREGATION_WORDS,
    "cls_rows": pb.ATTENTION_AGGREGATION_CLS_ROWS,
    "head_mean": pb.ATTENTION_AGGREGATION_HEAD_MEAN,
    "rollout": pb.ATTENTION_AGGREGATION_ROLLOUT,
    "rollout_value_norms": pb.ATTENTION_AGGREGATION_ROLLOUT_VALUE_NORMS,
    "rollout_gradient": pb.ATTENTION_AGGREGATION_ROLLOUT_GRADIENT,
}
ENCODINGS = {
    "u8": pb.ATTENTION_ENCODING_U8,
    "fp16": pb.ATTENTION_ENCODING_FP16,
    "fp32": pb.ATTENTION_ENCODING_FP32,
    "top_p": pb.ATTENTION_ENCODING_TOP_P,
}
# Names of verdicts, as in the proto without the prefix.
VERDICTS = {number: name.removeprefix("VERDICT_") for name, number in pb.Verdict.items()}


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Which attention maps to return. ``layers`` and ``heads`` count from 0; empty: all. The proto describes each AttentionAggregation.

    >>> AttentionOptions(layers=[0], aggregation="words").encoding
    'u8'

    Raises:
        ValueError: ``encoding`` is not one of ENCODINGS, ``aggregation`` is not one of AGGREGATIONS, or ``layers`` or ``heads`` is not a
            sequence of 32-bit integers.
    """

    layers: Sequence[int] = ()
    heads: Sequence[int] = ()
    encoding: str = "u8"
    aggregation: str = "maps"
    top_p: float = 0.0

    def __post_init__(self) -> None:
        _check("encoding", self.encoding, ENCODINGS)
        _check("aggregation", self.aggregation, AGGREGATIONS)
        _check_all("layers", self.layers, int)
        _check_all("heads", self.heads, int)


@dataclass(frozen=True, slots=True)
class NeuronOptions:
    """The layer, head and query token of a neuron view; all count from 0."""

    layer: int = 0
    head: int = 0
    token: int = 0


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """What to explain. By default: an attribution by the model's default method, with evidence.

    >>> options = ExplainOptions(methods=["occlusion"], without=[[1]])
    >>> client.explain("a good film", options=options).counterfactuals[0].score
    0.5

    If the text is longer than those on which the default method was studied, or too long for the timeout, another method is used and
    ``summary.notes`` says so.

    ``methods``: names as listed by ``get_model``. Empty: the default method, or none if attention, heads, neuron, geometry or without is
    requested.
    ``attribution``: the default method in any case. ``steps``: steps of integrated_gradients, or orders of shapley or two_step_shapley; 0:
    the method's default. ``by_embedding``: also split values by token, segment and position embedding. ``bytes_max``: limit on the whole
    explanation; 0: the server's limit. ``without``: sets of word indices in ``Explanation.words``; ``Explanation.counterfactuals`` then
    has the answer without each set. ``geometry``: where the words lie among those of the bundle's golden texts, by layer; needs an explain
    graph with hidden states. ``against``: the label whose logit is subtracted from that of the explained one; empty: with two labels none,
    with more the likeliest other label of the text. ``label_alone``: subtract none, whatever the number of labels.

    Raises:
        ValueError: ``methods`` is not a sequence of strings, ``without`` is not a sequence of sequences of 32-bit integers, or ``against``
            and ``label_alone`` are both given.
    """

    methods: Sequence[str] = ()
    attribution: bool = False
    steps: int = 0
    by_embedding: bool = False
    evidence: bool = True
    counterfactuals: bool = False
    heads: bool = False
    attention: AttentionOptions | None = None
    neuron: NeuronOptions | None = None
    bytes_max: int = 0
    without: Sequence[Sequence[int]] = ()
    geometry: bool = False
    against: str = ""
    label_alone: bool = False

    def __post_init__(self) -> None:
        _check_all("methods", self.methods, str)
        _check_all("without", self.without, Sequence)
        for number, words in enumerate(self.without):
            _check_all(f"without[{number}]", words, int)
        if self.against and self.label_alone:
            raise ValueError(f"against must be empty with label_alone, got {self.against!r}")

    def message(self) -> pb.ExplainOptions:
        """Convert the options to protobuf.

        Raises:
            ValueError: an integer does not fit 32 bits, or a string is not valid Unicode.
        """
        attributed, maps, attention = self.attribution or self.steps or self.by_embedding, self.attention, None
        if maps is not None:
            known = {"encoding": ENCODINGS[maps.encoding], "aggregation": AGGREGATIONS[maps.aggregation]}
            attention = message_of(pb.AttentionOptions, maps, **known)
        return message_of(
            pb.ExplainOptions,
            self,
            without=[pb.WordSet(words=words) for words in self.without],
            attribution=message_of(pb.AttributionOptions, self) if attributed else None,
            attention=attention,
            neuron=None if self.neuron is None else message_of(pb.NeuronOptions, self.neuron),
        )


def _check(name: str, value: str, known: Mapping[str, object]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def _check_all(name: str, values: object, kind: type) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(value, kind) for value in values):
        raise ValueError(f"{name} must be a sequence of {kind.__name__}, got {values!r}")
    for value in values:
        if isinstance(value, int) and not -(2**31) <= value < 2**31:
            raise ValueError(f"{name} must have integers from {-(2**31)} to {2**31 - 1}, got {value}")
