"""The last layer of a classifier in torch, with the attention of the token that the classifier reads replaced at will.

Of a text the classifier reads the last state of its first token, into which the last layer's attention comes by one row a head. With that
row free, all else below it fixed, an answer costs one token's way through one layer. In fp32, whatever precision is served.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row
from sentiment_models.export.families import FAMILIES
from sentiment_models.export.manifest import CONFIG_FILE, WEIGHTS_FILE, read_object

# Families whose layers are built as BERT's are: encoder.layer[i].attention.self, attention.output, intermediate, output.
LIKE_BERT = ("bert", "roberta", "electra")
# 4 rows of 512 tokens take 100 MB of attention in 12 heads.
BATCH_TOKENS_MAX = 2048


@dataclass(frozen=True, slots=True)
class Below:
    """What texts bring to the last layer's attention, padded on the right to the longest: all that does not depend on it.

    Attributes:
        values: what each token gives to whoever attends to it, [texts, heads, tokens, width].
        state: of the token that the classifier reads, [texts, heads x width].
        attention: the model's own weights of that token, [texts, heads, tokens]; each row sums to 1, 0 at padding.
        real: no padding, [texts, tokens].
        logits: the model's own, [texts, labels].
    """

    values: torch.Tensor
    state: torch.Tensor
    attention: torch.Tensor
    real: torch.Tensor
    logits: torch.Tensor

    def text(self, index: int) -> "Below":
        """One text, without padding."""
        one, tokens = slice(index, index + 1), int(self.real[index].sum())
        values, attention = self.values[one, :, :tokens], self.attention[one, :, :tokens]
        return Below(values, self.state[one], attention, self.real[one, :tokens], self.logits[one])


class LastLayer:
    """A bundle's classifier in torch, its last layer apart. For one thread at a time."""

    def __init__(self, model: Any, pad_id: int) -> None:
        """Take a classifier of one of LIKE_BERT, with eager attention; use ``load_last_layer`` for a bundle.

        Args:
            model: a PreTrainedModel, whose layers transformers leaves untyped.
            pad_id: fills rows; padding is not attended to.
        """
        self.model = model.eval().requires_grad_(False)
        self._pad_id = pad_id
        self._layer = model.base_model.encoder.layer[-1]
        self._inputs = FAMILIES[model.config.model_type].inputs

    def below(self, rows: Sequence[Row]) -> Below:
        """Run texts up to the last layer's attention; at least one row, in batches of at most BATCH_TOKENS_MAX tokens."""
        parts = [self._below(rows[part.start : part.stop]) for part in _batches(rows)]
        tokens = max(row.tokens for row in rows)
        return Below(
            values=torch.cat([_widened(part.values, 2, tokens) for part in parts]),
            state=torch.cat([part.state for part in parts]),
            attention=torch.cat([_widened(part.attention, 2, tokens) for part in parts]),
            real=torch.cat([_widened(part.real, 1, tokens) for part in parts]),
            logits=torch.cat([part.logits for part in parts]),
        )

    def logits(self, below: Below, weights: torch.Tensor) -> torch.Tensor:
        """The logits with other weights in the place of ``below.attention``; can be differentiated by them.

        Args:
            below: texts; a single one answers any number of weights.
            weights: [..., texts, heads, tokens], each from 0; 0 at padding.

        Returns:
            [..., texts, labels].
        """
        layer = self._layer
        context = torch.einsum("...nht,nhtd->...nhd", weights, below.values).flatten(-2)
        # A text of one token: what reads the first token reads its only one.
        attended = layer.attention.output(context, below.state).reshape(-1, 1, context.shape[-1])
        logits: torch.Tensor = self._classified(layer.output(layer.intermediate(attended), attended))
        return logits.reshape(*context.shape[:-1], -1)

    def whole(self, rows: Sequence[Row], weights: torch.Tensor) -> torch.Tensor:
        """The logits of the whole model, untouched but for these weights [texts, heads, tokens], put in while it runs; [texts, labels].

        It shares no arithmetic with ``logits``, whose answers it proves.
        """
        found = []
        for part in _batches(rows):
            some = rows[part.start : part.stop]
            tokens = max(row.tokens for row in some)
            with self._replaced(weights[part.start : part.stop, :, :tokens]), torch.no_grad():
                found.append(self.model(**self._feeds(some)).logits)
        return torch.cat(found)

    def _below(self, rows: Sequence[Row]) -> Below:
        feeds = self._feeds(rows)
        with torch.no_grad():
            found = self.model(**feeds, output_hidden_states=True, output_attentions=True)
            attention = found.attentions[-1][:, :, 0]
            states = found.hidden_states[-2]
            values = self._layer.attention.self.value(states)
        split = values.unflatten(-1, (attention.shape[1], -1)).transpose(1, 2)
        return Below(split, states[:, 0], attention, feeds["attention_mask"].bool(), found.logits)

    def _classified(self, states: torch.Tensor) -> torch.Tensor:
        """The logits of last states [rows, 1, width]."""
        pooler = getattr(self.model.base_model, "pooler", None)
        logits: torch.Tensor = self.model.classifier(states if pooler is None else pooler(states))
        return logits

    def _feeds(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(array) for name, array in pad(rows, self._inputs, self._pad_id, left=False).items()}

    @contextmanager
    def _replaced(self, weights: torch.Tensor) -> Iterator[None]:
        # The dropout, which does nothing outside of training, is the last to see the probabilities before they meet the values.
        handle = self._layer.attention.self.dropout.register_forward_hook(partial(_put_in, weights))
        try:
            yield
        finally:
            handle.remove()


def load_last_layer(bundle: Path, pad_id: int) -> LastLayer | None:
    """Load a bundle's weights; None where there are none in fp16 beside the graphs, or its family is not one of LIKE_BERT."""
    if not (bundle / WEIGHTS_FILE).is_file() or read_object(bundle / CONFIG_FILE).get("model_type") not in LIKE_BERT:
        return None
    model = AutoModelForSequenceClassification.from_pretrained(
        bundle, attn_implementation="eager", dtype=torch.float32, local_files_only=True
    )
    return LastLayer(model, pad_id)


def jensen_shannon(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Divergence in nats of distributions in the last dimension, from 0 to ln 2; differentiable also where a weight is 0.

    JS(p, q) = KL(p || m) / 2 + KL(q || m) / 2 with m = (p + q) / 2: Lin 1991, "Divergence Measures Based on the Shannon Entropy".
    """
    middle = torch.clamp((first + second) / 2, min=torch.finfo(first.dtype).tiny)
    parts = [(torch.xlogy(one, torch.clamp(one, min=torch.finfo(one.dtype).tiny)) - one * middle.log()).sum(-1) for one in (first, second)]
    return torch.clamp(sum(parts[1:], parts[0]) / 2, min=0)


def total_variation(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Half the sum of the absolute differences of distributions in the last dimension, from 0 to 1."""
    return (first - second).abs().sum(-1) / 2


def _put_in(weights: torch.Tensor, module: object, inputs: object, probabilities: torch.Tensor) -> torch.Tensor:  # noqa: ARG001 # a hook's
    """The attention probabilities [texts, heads, tokens, tokens] with other ones of the first token."""
    replaced = probabilities.clone()
    replaced[:, :, 0] = weights
    return replaced


def _batches(rows: Sequence[Row]) -> Iterator[range]:
    """Ranges of rows that are padded to one length and have at most BATCH_TOKENS_MAX tokens then, or are one row."""
    start = longest = 0
    for place, row in enumerate(rows):
        longest = max(longest, row.tokens)
        if place > start and (place + 1 - start) * longest > BATCH_TOKENS_MAX:
            yield range(start, place)
            start, longest = place, row.tokens
    yield range(start, len(rows))


def _widened(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """With zeros behind, up to a size of one dimension."""
    shape = list(tensor.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)
