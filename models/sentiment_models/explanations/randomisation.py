"""Does an attribution depend on what the model has learned? Adebayo et al. 2018, "Sanity Checks for Saliency Maps", section 3.

The upper half of the layers and the classifier lose what they learned; an attribution that still ranks the words as before was
never about the model. In torch: a bundle has no graph of a model that it does not serve.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sentiment.explain.methods.evidence import kendall_tau_b
from sentiment.explain.methods.gradients import Path, gradient_times_input, integrated_gradients, word_values
from sentiment.model.words import Encoded
from sentiment_models.export.families import FAMILIES

Floats = npt.NDArray[np.float64]

METHODS = ("gradient_x_input", "integrated_gradients")
# As many rank words nearly as the service's 16 do, see ``sentiment.explain.engine.attributions``.
STEPS = 8
# One draw may by chance answer as the model does, or the other way round, on all texts alike.
DRAWS = 3
# A batch of 10 places of 512 tokens would hold gigabytes on its way back.
BATCH_TOKENS_MAX = 2048


def randomised(model: Any, seed: int) -> Any:
    """A copy of a classifier whose numbers in the upper half of the layers and in all after them are shuffled within each tensor.

    So they keep their spread, also where it is that of training and not of a fresh model.

    Args:
        model: a PreTrainedModel with ``base_model.encoder.layer``, which transformers leaves untyped.
        seed: of the draw.
    """
    drawn = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    layers = drawn.base_model.encoder.layer
    pooler = getattr(drawn.base_model, "pooler", None)
    upper = [*layers[len(layers) - math.ceil(len(layers) / 2) :], *([] if pooler is None else [pooler]), drawn.classifier]
    with torch.no_grad():
        for parameter in (parameter for module in upper for parameter in module.parameters()):
            numbers = parameter.flatten()
            parameter.copy_(numbers[torch.randperm(len(numbers), generator=generator)].reshape(parameter.shape))
    return drawn


def agreement(model: Any, texts: Sequence[Encoded], pad_id: int, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """Kendall's tau-b between attributions by the model and by DRAWS models with shuffled upper layers, by method of METHODS.

    Args:
        model: as of ``randomised``.
        texts: at least one of two words or more; others have no order.
        pad_id: of the baseline, in the place of all but special tokens.
        seed: of the draws.

    Returns:
        The means over texts and draws, of signed values and of their sizes. The first is about 0 also where every draw keeps the words'
        order and turns the sign of half the texts; the second is not.
    """
    chosen = [text for text in texts if len(text.words) > 1]
    labels, own = _attributed(model, chosen, pad_id, None)
    signed: dict[str, list[float]] = {method: [] for method in METHODS}
    sizes: dict[str, list[float]] = {method: [] for method in METHODS}
    for draw in range(DRAWS):
        _, other = _attributed(randomised(model, seed + draw), chosen, pad_id, labels)
        for first, second in zip(own, other, strict=True):
            for method in METHODS:
                signed[method].append(kendall_tau_b(first[method], second[method]))
                sizes[method].append(kendall_tau_b(np.abs(first[method]), np.abs(second[method])))
    means = [{method: float(np.mean(values)) for method, values in found.items()} for found in (signed, sizes)]
    return means[0], means[1]


def attribute(model: Any, text: Encoded, label: int | None, pad_id: int) -> tuple[int, dict[str, Floats]]:
    """Word values [n] of METHODS in torch, as the service makes them of its explain graph.

    Args:
        model: a classifier.
        text: what is read.
        label: whose logit is explained; None: the answer's.
        pad_id: of the baseline.

    Returns:
        The label, and the values by method.
    """
    path = Path.of(STEPS)
    alpha = np.concatenate([[1.0], path.alpha, [0.0]]).astype(np.float32)
    ids = torch.tensor([text.ids])
    baseline = torch.tensor([[piece if token.special else pad_id for token, piece in zip(text.tokens, text.ids, strict=True)]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if text.type_ids is not None and FAMILIES[model.config.model_type].segments:
        inputs["token_type_ids"] = torch.tensor([text.type_ids])
    step = max(1, BATCH_TOKENS_MAX // len(text.ids))
    dots, logits = [], []
    for start in range(0, len(alpha), step):
        some, answers, label = _dots(model, inputs, baseline, torch.from_numpy(alpha[start : start + step]), label)
        dots.append(some)
        logits.append(answers)
    products, answer = np.concatenate(dots), np.concatenate(logits)
    assert label is not None
    # embedding_dots has more columns in the explain graph: segment and position, which neither method needs here.
    at_text = np.concatenate([products[0], np.zeros_like(products[0])], axis=-1)
    values = {
        "gradient_x_input": gradient_times_input(at_text).values,
        "integrated_gradients": integrated_gradients(products[1:-1], path, float(answer[0] - answer[-1])).values,
    }
    return label, {method: word_values(found, text.tokens, len(text.words)) for method, found in values.items()}


def _attributed(
    model: Any, texts: Sequence[Encoded], pad_id: int, labels: Sequence[int] | None
) -> tuple[list[int], list[dict[str, Floats]]]:
    found = [attribute(model, text, None if labels is None else labels[place], pad_id) for place, text in enumerate(texts)]
    return [label for label, _ in found], [values for _, values in found]


def _dots(
    model: Any, inputs: dict[str, torch.Tensor], baseline: torch.Tensor, alpha: torch.Tensor, label: int | None
) -> tuple[Floats, Floats, int]:
    """At places between baseline (0) and text (1): gradient times each embedding [places, tokens, 2], the label's logit [places]."""
    table = model.get_input_embeddings()
    words, base = (table(ids).detach() for ids in (inputs["input_ids"], baseline))
    between = (base + alpha[:, None, None] * (words - base)).requires_grad_()
    # Not as inputs_embeds: some families count their positions by the ids.
    handle = table.register_forward_hook(lambda *_: between)
    try:
        logits = model(**{name: array.expand(len(alpha), -1) for name, array in inputs.items()}).logits
    finally:
        handle.remove()
    label = int(logits[0].argmax()) if label is None else label
    (slopes,) = torch.autograd.grad(logits[:, label].sum(), between)
    dots = torch.stack([(slopes * embedding).sum(-1) for embedding in (words, base)], -1)
    return dots.numpy().astype(np.float64), logits[:, label].detach().numpy().astype(np.float64), label
