"""Structured logs on standard error: one line per event, as fields; never a user's text."""

import atexit
import logging
import os
import sys

import structlog

from sentiment.observability.log_text import TextRenderer
from sentiment.observability.log_writer import LogLines

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

# Set in a process that serves.
_lines: LogLines | None = None


def configure_server(level: str, form: str, process: str = "") -> None:
    """Set up logging for a process that serves: as ``configure``, but logging never waits for the reader of standard error."""
    global _lines  # noqa: PLW0603  # a process has one standard error
    # gRPC's core reads this when it is loaded. Else it writes clients' bytes to standard error itself, and blocks on a slow reader.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.stderr = _lines = LogLines(sys.stderr.fileno(), lambda lines: logger().warning("log_lines_lost", lines=lines))
    atexit.register(_lines.thread.wait_written)
    configure(level, form, process)


def lines_dropped() -> float:
    """Log lines that this process could not write."""
    return _lines.thread.dropped if _lines is not None else 0


def wait_written() -> None:
    """Wait briefly for the last lines; for an exit that skips the atexit functions."""
    if _lines is not None:
        _lines.thread.wait_written()


def configure(level: str, form: str, process: str = "") -> None:
    """Set up logging for the process.

    Args:
        level: lowest level that is written, a key of ``LEVELS``.
        form: ``json`` (one object per line), ``text`` (for a person), or ``auto``: text if standard error is a terminal, else JSON.
            Text is coloured on a terminal, unless NO_COLOR is set (no-color.org). ``console`` is an older name of ``text``.
        process: name added to every line, where a server has several processes.
    """
    terminal = sys.stderr.isatty()
    as_text = terminal if form == "auto" else form != "json"
    coloured = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    render: structlog.typing.Processor = TextRenderer(coloured) if as_text else structlog.processors.JSONRenderer()
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if process:
        shared.append(lambda _logger, _method, event: {"process": process, **event})
    structlog.configure(
        processors=[*shared, render],
        # One write per line: several processes may share standard error.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        # Else a logger keeps its level when ``set_level`` changes that.
        cache_logger_on_first_use=False,
    )
    # Libraries that log through the standard library (asyncio, grpc, aiohttp) get the same format.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render]
        )
    )
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)


def set_level(level: str) -> None:
    """Change the lowest level that is written, a key of ``LEVELS``."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]))
    logging.getLogger().setLevel(max(LEVELS[level], logging.WARNING))


def logger() -> structlog.typing.FilteringBoundLogger:
    """The process's logger."""
    found: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return found
