"""Which extra has the package of a module that is missing. Imports nothing but Python's own: it speaks where little is installed."""

# By the names that are imported: of the extra ``commands``, which ``cpu`` and ``gpu`` contain.
COMMANDS = frozenset(
    ("aiohttp", "grpc_health", "grpc_reflection", "hdrh", "numpy", "prometheus_client", "pydantic", "shtab", "structlog", "tokenizers")
)
RUNTIME = "onnxruntime"
SERVES = "pip install 'sentiment-service[cpu]', or [gpu]"


def to_install(error: ModuleNotFoundError) -> str | None:
    """What to run to have the module that a command lacks; None if no extra for commands has it."""
    module = (error.name or "").partition(".")[0]
    if module == RUNTIME:
        return SERVES
    # A part of this distribution.
    if module.startswith("sentiment"):
        return "pip install --force-reinstall sentiment-service"
    return "pip install 'sentiment-service[commands]'; to serve or run a model, [cpu] or [gpu]" if module in COMMANDS else None
