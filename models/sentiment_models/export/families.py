"""The families of encoders: one adapter each, with all that the export and the server must know of what tells them apart."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optimum.exporters.onnx.base import OnnxConfig
from optimum.exporters.onnx.convert import export_pytorch
from optimum.exporters.onnx.model_configs import (
    AlbertOnnxConfig,
    BertOnnxConfig,
    DistilBertOnnxConfig,
    ElectraOnnxConfig,
    MPNetOnnxConfig,
    RobertaOnnxConfig,
)
from transformers import PretrainedConfig, PreTrainedModel

from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.xlnet import write_xlnet

Write = Callable[[PreTrainedModel, int, Path], None]
"""Writes a classifier, with eager attention and in eval mode, as an fp32 ONNX graph of the given opset."""

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""All that a graph may read, each int64 [rows, tokens]."""

# XLNet counts from token to token and has no last position; its authors fine-tuned on as many.
XLNET_TOKENS_MAX = 512


@dataclass(frozen=True, slots=True)
class Family:
    """What one family's classifiers need.

    ``max_tokens`` tells from the config how many tokens the model reads, the special ones among them. ``reads`` is the token that
    the classifier reads, never a pad: ``padding_side`` is the other one. ``dropouts`` are what its config calls dropout on hidden
    layers and on attention probabilities, if it parts them.
    """

    write: Write
    max_tokens: Callable[[PretrainedConfig], int]
    inputs: tuple[str, ...] = INPUTS
    padding_side: Literal["left", "right"] = "right"
    reads: Literal["first", "last"] = "first"
    dropouts: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")

    @property
    def segments(self) -> bool:
        """Whether the model is told which tokens are of the second text of a pair; else it sees a separator alone."""
        return "token_type_ids" in self.inputs

    def dropout(self, hidden: float) -> dict[str, float]:
        """Settings for training: none on attention probabilities, which rules out the fused kernel (1,504 against 2,816 tokens/s)."""
        return dict(zip(self.dropouts, (hidden, 0.0), strict=False))


def _optimum(kind: type[OnnxConfig]) -> Write:
    def write(model: PreTrainedModel, opset: int, path: Path) -> None:
        export_pytorch(model, kind(model.config, task="text-classification"), opset, path)

    return write


def _positions(config: PretrainedConfig) -> int:
    return int(config.max_position_embeddings)


def _positions_behind_padding(config: PretrainedConfig) -> int:
    """Positions count on from the padding's id, which takes a place itself."""
    return int(config.max_position_embeddings) - (config.pad_token_id or 0) - 1


def _positions_behind_one(config: PretrainedConfig) -> int:
    """MPNet takes 1 for the padding's id whatever its config says."""
    return int(config.max_position_embeddings) - 2


def _no_positions(_: PretrainedConfig) -> int:
    return XLNET_TOKENS_MAX


_WITHOUT_SEGMENTS = INPUTS[:2]

FAMILIES = {
    "bert": Family(_optimum(BertOnnxConfig), _positions),
    "roberta": Family(_optimum(RobertaOnnxConfig), _positions_behind_padding, _WITHOUT_SEGMENTS),
    "distilbert": Family(_optimum(DistilBertOnnxConfig), _positions, _WITHOUT_SEGMENTS, dropouts=("dropout", "attention_dropout")),
    "albert": Family(_optimum(AlbertOnnxConfig), _positions),
    "xlnet": Family(write_xlnet, _no_positions, padding_side="left", reads="last", dropouts=("dropout",)),
    "electra": Family(_optimum(ElectraOnnxConfig), _positions),
    "mpnet": Family(_optimum(MPNetOnnxConfig), _positions_behind_one, _WITHOUT_SEGMENTS),
}
"""By the model_type of a checkpoint's config.json."""


def check_reads(base: str, config: PretrainedConfig, tokens_max: int) -> None:
    """Refuse a model that does not read so many tokens.

    Raises:
        BadCheckpoint: says how many it reads.
    """
    most = FAMILIES[config.model_type].max_tokens(config)
    if tokens_max > most:
        raise BadCheckpoint(f"{base}: reads at most {most} tokens; max_tokens is {tokens_max}")
