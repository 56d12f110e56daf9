"""Structured logs on standard error: one line an event, fields not prose, never a user's text."""

import atexit
import logging
import os
import sys

import structlog

from sentiment.observability.log_writer import LogLines, take_standard_error

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

# Of a server.
_lines: LogLines | None = None


def configure_server(level: str, form: str, process: str = "") -> None:
    """Set up logging for a process that serves: it never waits for whoever reads its standard error. Else as ``configure``."""
    global _lines  # noqa: PLW0603  # a process has one standard error
    # gRPC's core, which reads this when it is loaded, would write what clients sent it, past our lines and waiting for their reader.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    _lines = take_standard_error(lambda lines: logger().warning("log_lines_lost", lines=lines))
    atexit.register(_lines.wait_written)
    configure(level, form, process)
    logging.getLogger("grpc").addFilter(_without_clients_bytes)
    logging.getLogger("grpc._cython.cygrpc").addFilter(_without_clients_bytes)


def _without_clients_bytes(record: logging.LogRecord) -> bool:
    """Of headers that are no UTF-8 grpc.aio tells with their bytes. What ends its server is told by ``api.grpc.port``."""
    return not (record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError))


def lines_dropped() -> float:
    """Log lines that this process could not write."""
    return _lines.dropped if _lines is not None else 0


def wait_written() -> None:
    """Wait for the last lines, a moment at most: before an end that runs nothing else."""
    if _lines is not None:
        _lines.wait_written()


def configure(level: str, form: str, process: str = "") -> None:
    """Set up logging for the process.

    Args:
        level: least level that is written, a key of ``LEVELS``.
        form: ``json`` (one object a line) or ``console``.
        process: its name, where a server has several; every line has it.
    """
    render: structlog.typing.Processor = structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer()
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if process:
        shared.append(lambda _logger, _method, event: {"process": process, **event})
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        # One write a line: several processes may share standard error.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # What libraries log through the standard library (asyncio, grpc, aiohttp) takes the same form.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render]
        )
    )
    logging.basicConfig(level=max(LEVELS[level], logging.WARNING), handlers=[handler], force=True)


def logger() -> structlog.typing.FilteringBoundLogger:
    """The process's logger."""
    found: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return found
