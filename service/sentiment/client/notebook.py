"""Shows the server's models in IPython and notebooks. Their class is protobuf's, which cannot show itself."""

import html
import sys
from typing import Any, TypeVar

from sentiment.v1 import sentiment_pb2 as pb

M = TypeVar("M", pb.Model, pb.ListModelsResponse)


def shown(message: M) -> M:
    """The message, which IPython, if this runs in it, now shows as a short line or a table."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        formatters = shell.display_formatter.formatters
        formatters["text/html"].for_type(type(message), table)
        formatters["text/plain"].for_type(type(message), _plain)
    return message


def line(message: pb.Model | pb.ListModelsResponse) -> str:
    """The models in a line."""
    if isinstance(message, pb.ListModelsResponse):
        return f"ListModelsResponse({', '.join(_name(model) for model in message.models)})"
    return f"Model({_name(message)}, labels={list(message.labels)})"


def table(message: pb.Model | pb.ListModelsResponse) -> str:
    """The models as an HTML table with a row for each. Colours are the notebook's own."""
    models = message.models if isinstance(message, pb.ListModelsResponse) else [message]
    head = "".join(
        f"<th>{name}</th>" for name in ("model", "labels", "tokens", "pairs", "targets", "precision", "accuracy", "explained by")
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, models))}</tbody></table>"


def _row(model: pb.Model) -> str:
    cells = [
        ", ".join(model.labels),
        f"at most {model.max_tokens}",
        "yes" if model.pairs else "no",
        "yes" if model.targets else "no",
        model.classify_graph.precision,
        "; ".join(f"{found.dataset} {found.accuracy:.4f}" for found in model.accuracy),
        ", ".join(model.explanation_methods),
    ]
    return f"<tr><th>{html.escape(_name(model))}</th>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def _name(model: pb.Model) -> str:
    return f"{model.id.name}/{model.id.version}" + (" (default)" if model.is_default else "")


def _plain(message: pb.Model | pb.ListModelsResponse, printer: Any, _cycle: bool) -> None:  # IPython's pretty printer
    printer.text(line(message))
