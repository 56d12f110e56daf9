"""What an explanation takes, before it starts: the rows that it runs, times the seconds that rows of this length usually take."""

from dataclasses import dataclass, replace

from sentiment.explain.engine.attributions import AGREEMENT_STEPS, DECIDING_TOKENS_MAX, EVIDENCE_ROWS, STEPS_MIN
from sentiment.explain.engine.maps import outputs
from sentiment.explain.engine.runs import EXPLAINED, RUN_TOKENS_MAX, SERVED, UsualPaces
from sentiment.explain.methods.counterfactuals import PREFIXES, ROWS_BUDGET
from sentiment.explain.methods.deciding import rows_most
from sentiment.explain.methods.erasure import shapley_rows
from sentiment.explain.methods.registry import REGISTRY
from sentiment.explain.methods.two_step import SENTENCE_WORDS_MAX, tokens_run
from sentiment.explain.parts import ExplanationRequest
from sentiment.explain.wording import EVIDENCE_WORDS_MIN

# A sentence of 20 words takes 0.5 s on a core with VNNI, and 2 s without.
SHORT_S = 3.0
# Maps that may be kept while other explanations go on: those of 90 tokens in BERT-base.
MAPS_BYTES_MAX = 2**22
# [CLS] and [SEP].
SPECIAL_TOKENS = 2
# About how long a word is with the space behind it, to find the end marks in what the model reads of a text.
WORD_CHARACTERS = 6
SENTENCE_WORDS_MIN = 4


@dataclass(frozen=True, slots=True)
class Prediction:
    """What an explanation takes on a core of its own.

    ``work_s``: seconds of work for all that is asked. ``least_s``: for the least of use, the answer and the first method in few steps.
    ``short``: every run is short, and there are not many. ``heavy``: it keeps large attention maps.
    """

    work_s: float
    least_s: float
    short: bool
    heavy: bool


def words_of(tokens: int) -> int:
    """About how many words a text has: no more than this."""
    return max(0, tokens - SPECIAL_TOKENS)


def predict(
    request: ExplanationRequest, tokens: int, layers: int, heads: int, paces: UsualPaces, gradients: int = 1, part: int = 0
) -> Prediction:
    """Predict an explanation.

    Args:
        request: what to explain; its ``methods`` are those that are tried.
        tokens: of the text.
        layers: of the explain graph; 0 without one.
        heads: of each layer.
        paces: of earlier texts.
        gradients: rows of the explain graph that a gradient takes.
        part: tokens of the part of the text that adaptive effort reads first; 0: none.
    """

    def seconds(asked: ExplanationRequest) -> float:
        served, explained = _rows(asked, tokens, layers * heads, gradients)
        whole_s = served * paces.expected_s(SERVED, tokens) + explained * paces.expected_s(EXPLAINED, tokens)
        return whole_s + paces.expected_s(SERVED, part)

    steps = min(request.steps or STEPS_MIN, STEPS_MIN)
    least = replace(request, methods=request.methods[:1], steps=steps, counterfactuals=False, without=(), heads=False)
    maps = [name for name in outputs(request, layers) if name.startswith(("attention.", "attention_gradient.", "score."))]
    heavy = len(maps) * heads * tokens**2 * 4 > MAPS_BYTES_MAX
    work_s = seconds(request)
    return Prediction(work_s, min(work_s, seconds(least)), tokens <= RUN_TOKENS_MAX and work_s <= SHORT_S and not heavy, heavy)


def _rows(request: ExplanationRequest, tokens: int, heads: int, gradients: int) -> tuple[float, float]:
    """About how many rows the served graph and the explain graph run, in rows of the whole text. ``heads``: of all layers."""
    n = words_of(tokens)
    served, slopes = 1.0, float(heads > 0)
    for method in request.methods if request.attributions else request.methods[: request.counterfactuals]:
        steps = max(1, request.steps or REGISTRY[method].steps)
        if method == "shapley":
            served += shapley_rows(n, steps)
        elif method == "two_step_shapley":
            served += _rows_in_two_steps(request, tokens, steps)
        elif method == "integrated_gradients":
            slopes += steps + 1
        if request.evidence:
            served += EVIDENCE_ROWS
            slopes += (AGREEMENT_STEPS + 1) * (heads > 0 and REGISTRY[method].unrelated == "integrated_gradients")
        if method == "occlusion" or (request.evidence and REGISTRY[method].unrelated == "occlusion"):
            served += n
    if request.evidence and request.methods and n >= EVIDENCE_WORDS_MIN and tokens <= DECIDING_TOKENS_MAX:
        served += rows_most(n)
    # The search for words that flip the answer tries prefixes and each word. That for words that keep it mostly ends at once.
    served += min(ROWS_BUDGET, PREFIXES + n) * request.counterfactuals
    # No set of words runs twice.
    served = min(served, 2.0 ** min(n, 64))
    return served + len(request.without), gradients * slopes + (2 * heads + 2) * request.heads


def _rows_in_two_steps(request: ExplanationRequest, tokens: int, steps: int) -> float:
    """About how many rows of the whole text ``two_step_shapley`` runs, by the end marks in what the model reads."""
    n = words_of(tokens)
    marks = sum(text[: WORD_CHARACTERS * n].count(sign) for text in request.texts for sign in ".!?")
    sentences = max(1, min(max(marks, -(-n // SENTENCE_WORDS_MAX)), n // SENTENCE_WORDS_MIN))
    words = -(-n // sentences)
    return tokens_run([(words, words + SPECIAL_TOKENS)] * sentences, steps) / tokens
