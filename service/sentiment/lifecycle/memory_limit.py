"""Compares the memory limit of the container with what the settings can take, once the models are loaded."""

from collections.abc import Sequence

from sentiment.lifecycle.loading import Loaded
from sentiment.lifecycle.served_model import size_of
from sentiment.observability.logs import logger
from sentiment.settings import Settings

# One connection that sends requests without an end takes 1.7 times request_bytes_max.
OF_REQUESTS = 2
# What an explanation with everything takes: its graph in fp32, of weights in int8 or fp16, and 9 to 12.5 times its attention in fp32, by
# the models that were measured. Two are computed at once; their peaks mostly do not coincide.
OF_WEIGHTS, OF_ATTENTION, OF_TWO = {"int8": 4, "fp32": 2}, 12, 1.25
MIB = 2**20


def explanation_bytes(loaded: Loaded, settings: Settings) -> int:
    """About the most that an explanation takes, of the longest text, with its graph; 0 without one, where words are erased."""
    bundle = loaded.explained.bundle
    graphs = bundle.manifest.graphs
    if graphs.explain is None:
        return 0
    numbers = bundle.attention_layers * bundle.attention_heads * bundle.manifest.max_tokens**2
    # The first graph's weights are what all are stored as, but for fp32, of which fp16 is.
    weights = OF_WEIGHTS[graphs.classify[0].precision] * size_of(bundle.manifest.files)
    # A weight of attention is answered as a byte: larger maps are refused.
    return weights + OF_ATTENTION * 4 * min(numbers, settings.explain_bytes_max)


def within_memory(settings: Settings, models: Sequence[Loaded], limit: int | None, used: int) -> Settings:
    """The settings with which the server stays within a limit, as far as they can; logs what does not fit.

    Explanations, and the drift of hidden states, which their graphs compute, are switched off if not even one fits: the kernel would end
    the server with the first.

    Args:
        settings: of the server.
        models: the loaded models.
        limit: bytes of memory; None: there is no limit.
        used: bytes in use with the models, before the first call.
    """
    if limit is None:
        return settings
    requests = OF_REQUESTS * settings.request_bytes_max
    answers = settings.answer_cache_bytes * len(models)
    one = max(explanation_bytes(model, settings) for model in models) if settings.explain else 0
    free = limit - used - answers
    fits = one <= free
    needed = used + answers + max(requests, round(OF_TWO * one))
    if needed > limit:
        logger().warning(
            "memory_limit_low",
            limit_mib=limit // MIB,
            needed_mib=needed // MIB,
            models_mib=used // MIB,
            requests_mib=requests // MIB,
            answers_mib=answers // MIB,
            explanation_mib=one // MIB,
            explain="on" if settings.explain and fits else "off",
            advice="raise the container's memory limit, or lower request_bytes_max, answer_cache_bytes or explain",
        )
    return settings if fits else settings.model_copy(update={"explain": False, "hidden_drift_share": 0.0})
