"""Whether attention explains the answers of one bundle: the tests of the papers that doubt it, on texts that have been scored.

Correlation and adversarial attention (Jain and Wallace 2019), erasure of attention (Serrano and Smith 2019), accuracy with uniform
attention (Wiegreffe and Pinter 2019, section 3.2, here without training anew), and whether gradients see what was learned (Adebayo et al.
2018). What is trained for the purpose is in ``small_encoder`` and beside it.
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from sentiment.model.cores import cores_granted
from sentiment.model.tokenizer import Row
from sentiment_models.explanations.adversarial import find_adversarial
from sentiment_models.explanations.drawing import drawn
from sentiment_models.explanations.findings import AttentionFound, Difference
from sentiment_models.explanations.intervals import paired_intervals
from sentiment_models.explanations.last_layer import LastLayer, load_last_layer
from sentiment_models.explanations.measures import tau
from sentiment_models.explanations.randomisation import agreement
from sentiment_models.explanations.rankings import Scores
from sentiment_models.explanations.subject import Reading, Subject
from sentiment_models.explanations.weight_erasure import erase_weights
from sentiment_models.export.checkpoint import one_thread

CORRELATED = ("attention_last_cls", "attention_mean_cls")

# Texts and tokens that each test takes at most, drawn at random: the first holds for sentences, the second for long texts. On a core
# that has other work too, with 6 layers of 384: 100 sentences of SST-2 are searched in 90 s, 200 erased in 30 s, 50 randomised in 70 s.
ADVERSARIAL_MAX = (100, 40_000)
ERASED_MAX = (200, 40_000)
# 10 rows there and back, of four models.
RANDOMISED_MAX = (50, 2_500)
# A run of the explain graph for each layer and two more: 500 sentences in 55 s.
UNIFORM_MAX = (1_000, 40_000)
# Half of the largest divergence that there can be: above it two attentions have more apart than in common.
FAR = math.log(2) / 2


class _Adversarial(TypedDict):
    adversarial: dict[str, tuple[float, float]]
    adversarial_shown: dict[str, tuple[float, float]]
    adversarial_texts: int


class _Erased(TypedDict):
    top_weight: Difference | None
    top_weight_flips: tuple[float, float]
    flip_share: dict[str, float]
    flips: dict[str, float]
    erased_texts: int


class _Randomised(TypedDict, total=False):
    randomisation: dict[str, float]
    randomisation_sizes: dict[str, float]
    randomisation_texts: int


def attention_found(
    subject: Subject,
    readings: Sequence[Reading],
    labels_right: Sequence[int] | npt.NDArray[np.integer],
    scores: Sequence[Mapping[str, Scores]],
    seed: int,
) -> AttentionFound:
    """Run all tests on texts, with progress bars. Torch keeps to one thread, the explain graph takes all cores.

    Accuracies are the explain graph's and what is done in torch is done in fp32, also where int8 is served. Those tests take at most so
    many texts, drawn by the seed, as their constants say.

    Args:
        subject: the bundle, with an explain graph.
        readings: at least one text.
        labels_right: the index of each text's right label.
        scores: of each text the word scores towards its answer, by method; both of CORRELATED, gradient_x_input and occlusion.
        seed: of what is drawn.

    Raises:
        ModelsError: there is no explain graph, or the whole model does not answer as a search says.
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
    """With learned attention, and with that of each layer and then all made uniform."""

    def answers(reading: Reading) -> npt.NDArray[np.int64]:
        own = subject.explained(reading, ["logits"], reading.label)["logits"]
        found: npt.NDArray[np.int64] = np.concatenate([own, subject.uniform(reading)]).argmax(axis=1)
        return found

    with ThreadPoolExecutor(cores_granted()) as pool:
        found = np.stack(list(tqdm(pool.map(answers, readings), desc="uniform attention", unit="text", total=len(readings), mininterval=5)))
    accuracy = (found == np.array(right)[:, None]).mean(axis=0)
    return float(accuracy[0]), tuple(float(one) for one in accuracy[1:])


def _taus(scores: Sequence[Mapping[str, Scores]], method: str) -> dict[str, float]:
    """Mean tau-b with the size of an importance, by attention method: Jain and Wallace 2019, section 4.1 and algorithm 1.

    Theirs have no sign either: attention cannot tell what speaks for the answer from what speaks against it.
    """
    found = {}
    for name in CORRELATED:
        taus = [tau(text[name].values, np.abs(text[method].values)) for text in scores]
        there = [one for one in taus if one is not None]
        # Of texts of one word there is no order, and nothing to be told.
        if there:
            found[name] = float(np.mean(there))
    return found


def _adversarial(layer: LastLayer, readings: Sequence[Reading], temperature: float, seed: int) -> _Adversarial:
    found = find_adversarial(layer, _rows(readings), temperature, seed)
    return {
        "adversarial": {f"{change:g}": _median_and_far(one.divergence) for change, one in found.items()},
        "adversarial_shown": {f"{change:g}": _median_and_far(one.shown) for change, one in found.items()},
        "adversarial_texts": len(readings),
    }


def _median_and_far(divergence: torch.Tensor) -> tuple[float, float]:
    values = divergence.numpy()
    return float(np.median(values)), float((values > FAR).mean())


def _erased(layer: LastLayer, readings: Sequence[Reading], temperature: float, seed: int) -> _Erased:
    found = erase_weights(layer, _rows(readings), temperature, seed)
    return {
        "top_weight": paired_intervals((found.top - found.other)[:, None], seed)[0],
        "top_weight_flips": (float(found.top_flips.mean()), float(found.other_flips.mean())),
        "flip_share": {ranking: float(shares.mean()) for ranking, shares in found.shares.items()},
        "flips": {ranking: float(flips.mean()) for ranking, flips in found.flips.items()},
        "erased_texts": len(readings),
    }


def _randomised(layer: LastLayer, readings: Sequence[Reading], pad_id: int, seed: int) -> _Randomised:
    texts = [reading.encoded for reading in readings if reading.count > 1]
    if not texts:
        return {}
    signed, sizes = agreement(layer.model, texts, pad_id, seed)
    return {"randomisation": signed, "randomisation_sizes": sizes, "randomisation_texts": len(texts)}


def _rows(readings: Sequence[Reading]) -> list[Row]:
    return [Row(reading.encoded.ids, reading.encoded.type_ids, reading.encoded.truncated) for reading in readings]
