"""What can be asked of an explanation, in plain Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
# The verdict, in the proto's words without their prefix.
VERDICTS = {number: name.removeprefix("VERDICT_") for name, number in pb.Verdict.items()}


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Which attention maps. ``layers`` and ``heads`` count from 0; empty: all. The proto's AttentionAggregation says what each is.

    Raises:
        ValueError: ``encoding`` or ``aggregation`` is not one of ENCODINGS or AGGREGATIONS, or ``layers`` or ``heads`` no sequence of
            numbers of 32 bits.
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
    """Which token of which head to take apart; all count from 0."""

    layer: int = 0
    head: int = 0
    token: int = 0


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """What to explain. Nothing set: an attribution by the model's default method, with evidence.

    A text that is longer than any the default was studied on, or too long for the time, gets another method; ``summary.notes`` say so.
    ``methods``: as ``get_model`` lists them; empty: the default one, but none where attention, heads, neuron or without is asked for.
    ``attribution``: the default one all the same. ``steps``: of integrated_gradients, or orders of shapley; 0: the method's own.
    ``by_embedding``: values split by token, segment and position embedding too. ``bytes_max``: of the whole explanation; 0: the server's.
    ``without``: sets of words, by their indices in ``Explanation.words``: the answer without each, among ``Explanation.counterfactuals``.

    Raises:
        ValueError: ``methods`` is no sequence of names, or ``without`` none of sequences of numbers of 32 bits.
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

    def __post_init__(self) -> None:
        _check_all("methods", self.methods, str)
        _check_all("without", self.without, Sequence)
        for number, words in enumerate(self.without):
            _check_all(f"without[{number}]", words, int)

    def message(self) -> pb.ExplainOptions:
        """The options on the wire.

        Raises:
            ValueError: a number does not fit 32 bits.
        """
        message = pb.ExplainOptions(
            methods=self.methods,
            evidence=self.evidence,
            counterfactuals=self.counterfactuals,
            heads=self.heads,
            bytes_max=self.bytes_max,
            without=[pb.WordSet(words=words) for words in self.without],
        )
        if self.attribution or self.steps or self.by_embedding:
            message.attribution.CopyFrom(pb.AttributionOptions(steps=self.steps, by_embedding=self.by_embedding))
        if self.attention is not None:
            asked = self.attention
            message.attention.CopyFrom(
                pb.AttentionOptions(
                    layers=asked.layers,
                    heads=asked.heads,
                    encoding=ENCODINGS[asked.encoding],
                    aggregation=AGGREGATIONS[asked.aggregation],
                    top_p=asked.top_p,
                )
            )
        if self.neuron is not None:
            message.neuron.CopyFrom(pb.NeuronOptions(layer=self.neuron.layer, head=self.neuron.head, token=self.neuron.token))
        return message


def _check(name: str, value: str, known: Mapping[str, object]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; known are {', '.join(known)}")


def _check_all(name: str, values: object, kind: type) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(value, kind) for value in values):
        raise ValueError(f"{name} is {values!r}; wanted is a sequence of {kind.__name__}")
    for value in values:
        if isinstance(value, int) and not -(2**31) <= value < 2**31:
            raise ValueError(f"{name} has {value}; the limits are {-(2**31)} and {2**31 - 1}")
