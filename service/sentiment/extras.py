"""Which extra has the package of a module that is missing. Imports nothing but Python's own: it speaks where little is installed."""

from collections.abc import Mapping

# By the names that are imported: of the extra ``commands``, which ``cpu`` and ``gpu`` contain.
COMMANDS = frozenset(
    ("aiohttp", "grpc_health", "grpc_reflection", "hdrh", "numpy", "prometheus_client", "pydantic", "shtab", "structlog", "tokenizers")
)
SERVES = "pip install 'sentiment-service[cpu]', or [gpu]"
# What to run for a module. Of the extras that have its package, the smallest.
HOW: Mapping[str, str] = {
    **dict.fromkeys(COMMANDS, "pip install 'sentiment-service[commands]'; to serve or run a model, [cpu] or [gpu]"),
    "onnxruntime": SERVES,
    "matplotlib": "pip install 'sentiment-service[plots]'",
    **dict.fromkeys(("cryptography", "onnx", "safetensors", "tqdm", "wheel"), "pip install 'sentiment-service[bundles]'"),
    **dict.fromkeys(("optimum", "tensorboard", "torch", "transformers", "vaderSentiment"), "pip install 'sentiment-service[models]'"),
}


def to_install(error: ModuleNotFoundError, extra: str = "") -> str | None:
    """Say which module a command lacks and what to run to have it; None if no extra has it.

    Args:
        error: of an import.
        extra: the extras to name, if one has the package; "": the smallest.
    """
    package = (error.name or "").partition(".")[0]
    # A part of this distribution, whose wheel need not be on an index.
    if package.startswith("sentiment"):
        return f"{error}: install sentiment-service again (pip install -e . in a checkout, or pip install --force-reinstall with its wheel)"
    if package not in HOW:
        return None
    return f"module {package} is missing: run " + (f"pip install 'sentiment-service[{extra}]'" if extra else HOW[package])
