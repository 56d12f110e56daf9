"""The last layer of a classifier in torch, with replaceable attention of the token that the classifier reads.

The classifier reads the last state of the first token. The last layer's attention enters that state through one row per head. With
everything below fixed, an answer for another row costs only one token's pass through one layer. Computes in fp32, whatever precision is
served.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row
from sentiment_models.export.checkpoint import from_pretrained
from sentiment_models.export.families import FAMILIES
from sentiment_models.export.manifest import CONFIG_FILE, WEIGHTS_FILE, read_object

# Families with BERT's layer structure: encoder.layer[i].attention.self, attention.output, intermediate, output.
LIKE_BERT = ("bert", "roberta", "electra")
# 4 rows of 512 tokens take 100 MB of attention with 12 heads.
BATCH_TOKENS_MAX = 2048


@dataclass(frozen=True, slots=True)
class Below:
    """The inputs of the last layer's attention for texts, padded on the right to the longest.

    Attributes:
        values: the value vector of each token, [texts, heads, tokens, width].
        state: the state of the token that the classifier reads, [texts, heads x width].
        attention: the model's own attention of that token, [texts, heads, tokens]; each row sums to 1, 0 at padding.
        real: true for tokens, false for padding, [texts, tokens].
        logits: the model's own logits, [texts, labels].
    """

    values: torch.Tensor
    state: torch.Tensor
    attention: torch.Tensor
    real: torch.Tensor
    logits: torch.Tensor

    def text(self, index: int) -> "Below":
        """Return one text, without padding."""
        one, tokens = slice(index, index + 1), int(self.real[index].sum())
        values, attention = self.values[one, :, :tokens], self.attention[one, :, :tokens]
        return Below(values, self.state[one], attention, self.real[one, :tokens], self.logits[one])


class LastLayer:
    """A bundle's classifier in torch with separate access to its last layer. For one thread at a time."""

    def __init__(self, model: Any, pad_id: int) -> None:
        """Wrap a classifier of one of LIKE_BERT, with eager attention. Use ``load_last_layer`` for a bundle.

        Args:
            model: a PreTrainedModel, whose layers are untyped in transformers.
            pad_id: the padding token.
        """
        self.model = model.eval().requires_grad_(False)
        self._pad_id = pad_id
        self._layer = model.base_model.encoder.layer[-1]
        self._inputs = FAMILIES[model.config.model_type].inputs

    def below(self, rows: Sequence[Row]) -> Below:
        """Run at least one text up to the last layer's attention, in batches of at most BATCH_TOKENS_MAX tokens."""
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
        """Return the logits with ``weights`` instead of ``below.attention``; differentiable with respect to them.

        Args:
            below: texts; a single text broadcasts to any number of weights.
            weights: [..., texts, heads, tokens], at least 0; 0 at padding.

        Returns:
            [..., texts, labels].
        """
        layer = self._layer
        context = torch.einsum("...nht,nhtd->...nhd", weights, below.values).flatten(-2)
        # The layer's modules expect [rows, tokens, width]: here one token per row.
        attended = layer.attention.output(context, below.state).reshape(-1, 1, context.shape[-1])
        logits: torch.Tensor = self._classified(layer.output(layer.intermediate(attended), attended))
        return logits.reshape(*context.shape[:-1], -1)

    def whole(self, rows: Sequence[Row], weights: torch.Tensor) -> torch.Tensor:
        """Return the logits [texts, labels] of the whole model with these weights [texts, heads, tokens], replaced while it runs.

        It shares no arithmetic with ``logits``, so it can verify its results.
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
        """Return the logits of last states [rows, 1, width]."""
        pooler = getattr(self.model.base_model, "pooler", None)
        logits: torch.Tensor = self.model.classifier(states if pooler is None else pooler(states))
        return logits

    def _feeds(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(array) for name, array in pad(rows, self._inputs, self._pad_id, left=False).items()}

    @contextmanager
    def _replaced(self, weights: torch.Tensor) -> Iterator[None]:
        # The dropout, inactive outside of training, is the last module between the attention probabilities and the values.
        handle = self._layer.attention.self.dropout.register_forward_hook(partial(_put_in, weights))
        try:
            yield
        finally:
            handle.remove()


def load_last_layer(bundle: Path, pad_id: int) -> LastLayer | None:
    """Load a bundle's weights; None if the bundle has no weights file, or its family is not one of LIKE_BERT."""
    if not (bundle / WEIGHTS_FILE).is_file() or read_object(bundle / CONFIG_FILE).get("model_type") not in LIKE_BERT:
        return None
    model = from_pretrained(bundle, attn_implementation="eager", dtype=torch.float32, local_files_only=True)
    return LastLayer(model, pad_id)


def jensen_shannon(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the divergence in nats, from 0 to ln 2, over the last dimension; differentiable even at weights of 0.

    JS(p, q) = KL(p || m) / 2 + KL(q || m) / 2 with m = (p + q) / 2: Lin 1991, "Divergence Measures Based on the Shannon Entropy".
    """
    middle = torch.clamp((first + second) / 2, min=torch.finfo(first.dtype).tiny)
    parts = [(torch.xlogy(one, torch.clamp(one, min=torch.finfo(one.dtype).tiny)) - one * middle.log()).sum(-1) for one in (first, second)]
    return torch.clamp(sum(parts[1:], parts[0]) / 2, min=0)


def total_variation(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return half the sum of absolute differences over the last dimension, from 0 to 1."""
    return (first - second).abs().sum(-1) / 2


def _put_in(weights: torch.Tensor, module: object, inputs: object, probabilities: torch.Tensor) -> torch.Tensor:  # noqa: ARG001 # a hook's
    """Replace the first token's row of attention probabilities [texts, heads, tokens, tokens]."""
    replaced = probabilities.clone()
    replaced[:, :, 0] = weights
    return replaced


def _batches(rows: Sequence[Row]) -> Iterator[range]:
    """Yield ranges of rows with at most BATCH_TOKENS_MAX tokens after padding, or of a single row."""
    start = longest = 0
    for place, row in enumerate(rows):
        longest = max(longest, row.tokens)
        if place > start and (place + 1 - start) * longest > BATCH_TOKENS_MAX:
            yield range(start, place)
            start, longest = place, row.tokens
    yield range(start, len(rows))


def _widened(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Append zeros up to a size of one dimension."""
    shape = list(tensor.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)
