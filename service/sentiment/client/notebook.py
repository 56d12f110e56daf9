"""Shows the server's models as a line, and in notebooks as a table."""

import html

from sentiment.v1 import sentiment_pb2 as pb


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


# Their classes are protobuf's, which show every field.
for _kind in (pb.Model, pb.ListModelsResponse):
    for _method, _shown in {"__repr__": line, "__str__": line, "_repr_html_": table}.items():
        setattr(_kind, _method, _shown)
