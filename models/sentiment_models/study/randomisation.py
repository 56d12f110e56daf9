"""Model randomisation: Adebayo et al. 2018, "Sanity Checks for Saliency Maps", section 3.

The parameters of the upper half of the layers and of the classifier are shuffled. An attribution that still ranks the words as before
does not depend on what the model learned. In torch, because a bundle has no graph of a shuffled model.
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
from sentiment.explain.methods.registry import GRADIENT_METHODS
from sentiment.explain.methods.target import Target, target_of
from sentiment.model.words import Encoded
from sentiment_models.export.checkpoint import between
from sentiment_models.export.families import FAMILIES

Floats = npt.NDArray[np.float64]

# 8 steps rank words nearly as the service's 16 do, see ``sentiment.explain.engine.attributions``.
STEPS = 8
# A single shuffled model may by chance agree, or disagree, with the model on all texts.
DRAWS = 3
# The backward pass of a batch of 10 places of 512 tokens would take gigabytes.
BATCH_TOKENS_MAX = 2048


def randomised(model: Any, seed: int) -> Any:
    """Return a copy of a classifier with shuffled parameters in the upper half of the layers and everything above.

    Each tensor is shuffled within itself, so it keeps the distribution of its values.

    Args:
        model: a PreTrainedModel with ``base_model.encoder.layer``, which is untyped in transformers.
        seed: of the shuffle.
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
    """Return Kendall's tau-b between attributions of the model and of DRAWS models with shuffled upper layers, by GRADIENT_METHODS.

    Args:
        model: as for ``randomised``.
        texts: at least one with two words or more; shorter texts are skipped.
        pad_id: the baseline token, which replaces all but special tokens.
        seed: of the shuffles.

    Returns:
        The means over texts and draws for signed and for absolute values. The signed mean is also near 0 if the draws keep the order of
        the words but flip the sign of half the texts; the other is not.
    """
    chosen = [text for text in texts if len(text.words) > 1]
    targets, own = _attributed(model, chosen, pad_id, None)
    signed: dict[str, list[float]] = {method: [] for method in GRADIENT_METHODS}
    sizes: dict[str, list[float]] = {method: [] for method in GRADIENT_METHODS}
    for draw in range(DRAWS):
        _, other = _attributed(randomised(model, seed + draw), chosen, pad_id, targets)
        for first, second in zip(own, other, strict=True):
            for method in GRADIENT_METHODS:
                signed[method].append(kendall_tau_b(first[method], second[method]))
                sizes[method].append(kendall_tau_b(np.abs(first[method]), np.abs(second[method])))
    means = [{method: float(np.mean(values)) for method, values in found.items()} for found in (signed, sizes)]
    return means[0], means[1]


def attribute(model: Any, text: Encoded, target: Target | None, pad_id: int) -> tuple[Target, dict[str, Floats]]:
    """Compute word values [n] of GRADIENT_METHODS in torch, as the service computes them from its explain graph.

    Args:
        model: a classifier.
        text: the text.
        target: what is explained; None: the answer, as by default.
        pad_id: the baseline token.

    Returns:
        The target, and the values by method.
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
        some, answers, target = _dots(model, inputs, baseline, torch.from_numpy(alpha[start : start + step]), target)
        dots.append(some)
        logits.append(answers)
    products, answer = np.concatenate(dots), np.concatenate(logits)
    assert target is not None
    # The explain graph's embedding_dots has further columns for segment and position, which neither method needs here.
    at_text = np.concatenate([products[0], np.zeros_like(products[0])], axis=-1)
    values = {
        "gradient_x_input": gradient_times_input(at_text).values,
        "integrated_gradients": integrated_gradients(products[1:-1], path, float(answer[0] - answer[-1])).values,
    }
    return target, {method: word_values(found, text.tokens, len(text.words)) for method, found in values.items()}


def _attributed(
    model: Any, texts: Sequence[Encoded], pad_id: int, targets: Sequence[Target] | None
) -> tuple[list[Target], list[dict[str, Floats]]]:
    found = [attribute(model, text, None if targets is None else targets[place], pad_id) for place, text in enumerate(texts)]
    return [target for target, _ in found], [values for _, values in found]


def _dots(
    model: Any, inputs: dict[str, torch.Tensor], baseline: torch.Tensor, alpha: torch.Tensor, target: Target | None
) -> tuple[Floats, Floats, Target]:
    """Return, at places from baseline (0) to text (1), gradient times each embedding [places, tokens, 2], and explained logits [places]."""
    with between(model, inputs["input_ids"], baseline, alpha) as (point, ends):
        logits = model(**{name: array.expand(len(alpha), -1) for name, array in inputs.items()}).logits
    if target is None:
        answers = logits[0].detach().numpy()
        target = target_of(answers, int(answers.argmax()), None)
    explained = logits[:, target.label] - (0 if target.against is None else logits[:, target.against])
    (slopes,) = torch.autograd.grad(explained.sum(), point)
    dots = torch.stack([(slopes * embedding).sum(-1) for embedding in ends], -1)
    return dots.numpy().astype(np.float64), explained.detach().numpy().astype(np.float64), target
