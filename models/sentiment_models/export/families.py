"""The families of encoders. An adapter holds everything in which the export and the server treat a family differently."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optimum.exporters.onnx.base import OnnxConfig
from optimum.exporters.onnx.convert import export_pytorch
from optimum.exporters.onnx.model_configs import (
    AlbertOnnxConfig,
    BertOnnxConfig,
    CamembertOnnxConfig,
    Data2VecTextOnnxConfig,
    DebertaOnnxConfig,
    DebertaV2OnnxConfig,
    DistilBertOnnxConfig,
    ElectraOnnxConfig,
    MPNetOnnxConfig,
    RemBertOnnxConfig,
    RobertaOnnxConfig,
    RoFormerOnnxConfig,
    XLMRobertaOnnxConfig,
)
from transformers import PretrainedConfig, PreTrainedModel

from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.modernbert import write_modernbert
from sentiment_models.export.positions import positions_of
from sentiment_models.export.xlnet import write_xlnet

Write = Callable[[PreTrainedModel, int, Path], None]
"""Writes a classifier, with eager attention and in eval mode, as an fp32 ONNX graph of the given opset."""

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""All possible inputs of a graph, each int64 [rows, tokens]."""


@dataclass(frozen=True, slots=True)
class Family:
    """The properties of one family's classifiers.

    ``reads`` is the token that the classifier reads; it must not be padding, so ``padding_side`` is the other side. ``dropouts`` are the
    names in the config of dropout on hidden layers and, if it is separate, on attention probabilities.
    """

    write: Write
    inputs: tuple[str, ...] = INPUTS
    padding_side: Literal["left", "right"] = "right"
    reads: Literal["first", "last"] = "first"
    dropouts: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")

    @property
    def segments(self) -> bool:
        """Whether an input marks the tokens of the second text of a pair. Otherwise only a separator does."""
        return "token_type_ids" in self.inputs

    def dropout(self, hidden: float) -> dict[str, float]:
        """Return config settings for training.

        Attention probabilities get no dropout, which the fused kernel does not support: 2,816 tokens/s with that kernel, 1,504 without.
        """
        return dict(zip(self.dropouts, (hidden, 0.0), strict=False))


def _optimum(kind: type[OnnxConfig]) -> Write:
    def write(model: PreTrainedModel, opset: int, path: Path) -> None:
        export_pytorch(model, kind(model.config, task="text-classification"), opset, path)

    return write


_WITHOUT_SEGMENTS = INPUTS[:2]

FAMILIES = {
    "bert": Family(_optimum(BertOnnxConfig)),
    "roberta": Family(_optimum(RobertaOnnxConfig), _WITHOUT_SEGMENTS),
    "distilbert": Family(_optimum(DistilBertOnnxConfig), _WITHOUT_SEGMENTS, dropouts=("dropout", "attention_dropout")),
    "albert": Family(_optimum(AlbertOnnxConfig)),
    "xlnet": Family(write_xlnet, padding_side="left", reads="last", dropouts=("dropout",)),
    "electra": Family(_optimum(ElectraOnnxConfig)),
    "mpnet": Family(_optimum(MPNetOnnxConfig), _WITHOUT_SEGMENTS),
    "xlm-roberta": Family(_optimum(XLMRobertaOnnxConfig), _WITHOUT_SEGMENTS),
    "camembert": Family(_optimum(CamembertOnnxConfig), _WITHOUT_SEGMENTS),
    "data2vec-text": Family(_optimum(Data2VecTextOnnxConfig), _WITHOUT_SEGMENTS),
    "deberta": Family(_optimum(DebertaOnnxConfig), _WITHOUT_SEGMENTS),
    "deberta-v2": Family(_optimum(DebertaV2OnnxConfig), _WITHOUT_SEGMENTS),
    "modernbert": Family(write_modernbert, _WITHOUT_SEGMENTS, dropouts=("mlp_dropout", "attention_dropout")),
    "rembert": Family(_optimum(RemBertOnnxConfig)),
    "roformer": Family(_optimum(RoFormerOnnxConfig)),
}
"""By the model_type of a checkpoint's config.json."""


def check_reads(base: str, config: PretrainedConfig, tokens_max: int) -> None:
    """Check that a model can be trained on ``tokens_max`` tokens: that it has positions for them, whatever its tokenizer was used for.

    Raises:
        BadCheckpoint: it has fewer. Names its limit.
    """
    most = positions_of(config.to_dict())
    if most is not None and tokens_max > most:
        raise BadCheckpoint(f"{base}: max_tokens must be at most {most} (the model's limit), got {tokens_max}; add --max-tokens {most}")
