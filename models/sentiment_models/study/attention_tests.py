"""Tests of whether attention explains the answers of one bundle.

Correlation and adversarial attention (Jain and Wallace 2019), erasure of attention (Serrano and Smith 2019), accuracy with uniform
attention (Wiegreffe and Pinter 2019, section 3.2, here without retraining), and model randomisation (Adebayo et al. 2018). The
tests that train models of their own are in ``training_tests``.
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from sentiment.model.cores import cores_granted
from sentiment_models.explanations.drawing import drawn
from sentiment_models.explanations.findings import AttentionFound
from sentiment_models.explanations.intervals import paired_intervals
from sentiment_models.explanations.measures import tau
from sentiment_models.explanations.rankings import Scores
from sentiment_models.explanations.subject import Reading, Subject
from sentiment_models.export.checkpoint import one_thread
from sentiment_models.study.adversarial import find_adversarial
from sentiment_models.study.last_layer import LastLayer, load_last_layer
from sentiment_models.study.randomisation import agreement
from sentiment_models.study.weight_erasure import erase_weights

CORRELATED = ("attention_last_cls", "attention_mean_cls")

# The most texts and tokens of each test, drawn at random: the first limit binds for sentences, the second for long texts. On a busy core,
# with 6 layers of width 384, sentences of SST-2 take: adversarial 90 s for 100, erasure 30 s for 200, randomisation 70 s for 50.
ADVERSARIAL_MAX = (100, 40_000)
ERASED_MAX = (200, 40_000)
# 10 rows forward and backward, of four models.
RANDOMISED_MAX = (50, 2_500)
# The explain graph runs once per layer and twice more: 55 s for 500 sentences.
UNIFORM_MAX = (1_000, 40_000)
# Half of the maximum divergence.
FAR = math.log(2) / 2


def attention_found(
    subject: Subject,
    readings: Sequence[Reading],
    labels_right: Sequence[int] | npt.NDArray[np.integer],
    scores: Sequence[Mapping[str, Scores]],
    seed: int,
) -> AttentionFound:
    """Run all tests on texts, with progress bars. Torch uses one thread, the explain graph all cores.

    Accuracies are the explain graph's, and torch computes in fp32, also where int8 is served. The costly tests draw at most as many
    texts as their constants say.

    Args:
        subject: the bundle, with an explain graph.
        readings: at least one text.
        labels_right: the index of each text's correct label.
        scores: the word scores of each text for its answer, by method; with both of CORRELATED, gradient_x_input and occlusion.
        seed: of the draws.

    Raises:
        ModelsError: there is no explain graph, or the whole model does not confirm a search.
    """
    rng = np.random.default_rng(seed)
    tokens = [reading.tokens for reading in readings]
    uniform_places, *places = (drawn(tokens, *most, rng) for most in (UNIFORM_MAX, ADVERSARIAL_MAX, ERASED_MAX, RANDOMISED_MAX))
    chosen, right = [readings[place] for place in uniform_places], [int(labels_right[place]) for place in uniform_places]
    accuracy, uniform = _accuracies(subject, chosen, right)
    layer = load_last_layer(subject.bundle, subject.classifier.tokenizer.pad_id)
    found = AttentionFound(
        accuracy=accuracy,
        uniform_accuracy=uniform,
        uniform_texts=len(chosen),
        tau_gradient=_taus(scores, "gradient_x_input"),
        tau_loo=_taus(scores, "occlusion"),
    )
    if layer is None:
        return found
    searched, erased, randomised = ([readings[place] for place in some] for some in places)
    with one_thread():
        return found.model_copy(
            update={
                **_adversarial(layer, searched, subject.temperature, seed),
                **_erased(layer, erased, subject.temperature, seed),
                **_randomised(layer, randomised, subject.classifier.tokenizer.pad_id, seed),
            }
        )


def _accuracies(subject: Subject, readings: Sequence[Reading], right: Sequence[int]) -> tuple[float, tuple[float, ...]]:
    """Return the accuracy with learned attention, and those with each layer's and then all attention made uniform."""

    def answers(reading: Reading) -> npt.NDArray[np.int64]:
        own = subject.explained(reading, ["logits"], reading.target())["logits"]
        found: npt.NDArray[np.int64] = np.concatenate([own, subject.uniform(reading)]).argmax(axis=1)
        return found

    with ThreadPoolExecutor(cores_granted()) as pool:
        found = np.stack(list(tqdm(pool.map(answers, readings), desc="uniform attention", unit="text", total=len(readings), mininterval=5)))
    accuracy = (found == np.array(right)[:, None]).mean(axis=0)
    return float(accuracy[0]), tuple(float(one) for one in accuracy[1:])


def _taus(scores: Sequence[Mapping[str, Scores]], method: str) -> dict[str, float]:
    """Return the mean tau-b with an absolute importance, by attention method: Jain and Wallace 2019, section 4.1 and algorithm 1.

    The paper uses absolute values too: attention does not distinguish words for the answer from words against it. Empty if the method
    was not studied.
    """
    found = {}
    for name in CORRELATED:
        taus = [tau(text[name].values, np.abs(text[method].values)) for text in scores if method in text]
        there = [one for one in taus if one is not None]
        # Texts of one word have no order.
        if there:
            found[name] = float(np.mean(there))
    return found


def _adversarial(layer: LastLayer, readings: Sequence[Reading], temperature: float, seed: int) -> dict[str, Any]:
    """Return fields of ``AttentionFound`` by name, as do those below."""
    found = find_adversarial(layer, [reading.row for reading in readings], temperature, seed)
    return {
        "adversarial": {f"{change:g}": _median_and_far(one.divergence) for change, one in found.items()},
        "adversarial_shown": {f"{change:g}": _median_and_far(one.shown) for change, one in found.items()},
        "adversarial_texts": len(readings),
    }


def _median_and_far(divergence: torch.Tensor) -> tuple[float, float]:
    values = divergence.numpy()
    return float(np.median(values)), float((values > FAR).mean())


def _erased(layer: LastLayer, readings: Sequence[Reading], temperature: float, seed: int) -> dict[str, Any]:
    found = erase_weights(layer, [reading.row for reading in readings], temperature, seed)
    return {
        "top_weight": paired_intervals((found.top - found.other)[:, None], seed)[0],
        "top_weight_flips": (float(found.top_flips.mean()), float(found.other_flips.mean())),
        "flip_share": {ranking: float(shares.mean()) for ranking, shares in found.shares.items()},
        "flips": {ranking: float(flips.mean()) for ranking, flips in found.flips.items()},
        "erased_texts": len(readings),
    }


def _randomised(layer: LastLayer, readings: Sequence[Reading], pad_id: int, seed: int) -> dict[str, Any]:
    texts = [reading.encoded for reading in readings if reading.count > 1]
    if not texts:
        return {}
    signed, sizes = agreement(layer.model, texts, pad_id, seed)
    return {"randomisation": signed, "randomisation_sizes": sizes, "randomisation_texts": len(texts)}
