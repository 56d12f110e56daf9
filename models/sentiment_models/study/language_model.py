"""Models that predict masked tokens and, for BERT, whether one segment follows another."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AlbertForPreTraining,
    BertForPreTraining,
    DistilBertForMaskedLM,
    ElectraForMaskedLM,
    MPNetForMaskedLM,
    PreTrainedModel,
    RobertaForMaskedLM,
)

from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.checkpoint import base_tokenizer, config_of, from_pretrained, loading
from sentiment_models.export.families import FAMILIES, check_reads
from sentiment_models.training.recipe import Shape
from sentiment_models.training.scratch import bert_config

Model = Any  # each family has its own class and its own names for the parts of its head


def _distilbert(model: Model, hidden: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model.vocab_projector(model.vocab_layer_norm(model.activation(model.vocab_transform(hidden))))
    return logits


# By family: the class with the head that predicts tokens, and a call of that head alone. Computing the head for the 85 % of the positions
# that are not predicted would cost as much as the encoder. The classes of BERT and ALBERT keep the pooler that a classifier reads.
HEADS: dict[str, tuple[type[Any], Callable[[Model, torch.Tensor], torch.Tensor]]] = {
    "albert": (AlbertForPreTraining, lambda model, hidden: model.predictions(hidden)),
    "bert": (BertForPreTraining, lambda model, hidden: model.cls.predictions(hidden)),
    "distilbert": (DistilBertForMaskedLM, _distilbert),
    "electra": (ElectraForMaskedLM, lambda model, hidden: model.generator_lm_head(model.generator_predictions(hidden))),
    "mpnet": (MPNetForMaskedLM, lambda model, hidden: model.lm_head(hidden)),
    "roberta": (RobertaForMaskedLM, lambda model, hidden: model.lm_head(hidden)),
}


@dataclass(frozen=True, slots=True)
class Predictions:
    """Logits. ``tokens``: [chosen positions, vocabulary]; ``follows``: [rows, 2], index 0 for "the second segment follows the first"."""

    tokens: torch.Tensor
    follows: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A model with its tokenizer. ``module`` is trained and saved."""

    module: PreTrainedModel
    tokenizer: Any  # transformers has no one type for its tokenizers
    next_sentence: bool

    def __call__(self, ids: torch.Tensor, types: torch.Tensor, attended: torch.Tensor, chosen: torch.Tensor) -> Predictions:
        """Predict at the ``chosen`` positions; all arguments are [rows, tokens]."""
        family = self.module.config.model_type
        segments = {"token_type_ids": types} if getattr(self.module.config, "type_vocab_size", 0) > 1 else {}
        outputs = self.module.base_model(input_ids=ids, attention_mask=attended, **segments)
        tokens = HEADS[family][1](self.module, outputs[0][chosen])
        module: Model = self.module
        return Predictions(tokens, module.cls.seq_relationship(outputs[1]) if self.next_sentence else None)


def load(base: str, dropout: float, tokens_max: int, *, next_sentence: bool) -> LanguageModel:
    """Load an encoder. If it has no head that predicts tokens, a new one is tied to its word embeddings.

    Raises:
        BadCheckpoint: the encoder cannot be loaded, its family has no masked-token head, it reads fewer tokens, or its tokenizer has no
            mask.
    """
    with loading(base, "an encoder") as family:
        if family not in HEADS:
            raise BadCheckpoint(f"{base}: pretrain supports {', '.join(HEADS)}, got {family}")
        config = config_of(base)
        if next_sentence and family != "bert":
            raise BadCheckpoint(f"{base}: next-sentence prediction needs bert, got {family}; add --no-nsp")
        check_reads(base, config, tokens_max)
        for name, value in FAMILIES[family].dropout(dropout).items():
            setattr(config, name, value)
        module = from_pretrained(base, config, HEADS[family][0], dtype=torch.float32)
    tokenizer = load_tokenizer(base)
    if len(tokenizer) > config.vocab_size:
        raise BadCheckpoint(f"{base}: the tokenizer has {len(tokenizer)} entries, but the word embeddings have {config.vocab_size} rows")
    return LanguageModel(module, tokenizer, next_sentence)


def load_tokenizer(folder: str) -> Any:  # transformers has no one type for its tokenizers
    """Load a fast tokenizer with a mask token.

    Raises:
        BadCheckpoint: the folder has none.
    """
    try:
        tokenizer = base_tokenizer(folder)
    except (OSError, ValueError, KeyError) as error:
        raise BadCheckpoint(f"{folder}: the tokenizer cannot be loaded: {error}") from error
    if tokenizer.mask_token_id is None or not tokenizer.is_fast:
        raise BadCheckpoint(f"{folder}: the tokenizer has no mask token or no tokenizer.json; masked tokens need both")
    return tokenizer


def fresh(shape: Shape, tokenizer: Any, dropout: float, tokens_max: int, *, next_sentence: bool) -> LanguageModel:
    """Make an untrained BERT that reads at most ``tokens_max`` tokens."""
    module = BertForPreTraining(bert_config(shape, len(tokenizer), tokens_max, dropout))  # type: ignore[no-untyped-call]  # untyped there
    return LanguageModel(module, tokenizer, next_sentence)
