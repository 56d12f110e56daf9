"""The report of an evaluation, as terminal text and as an HTML page with plots."""

from sentiment_models.evaluation import tables
from sentiment_models.evaluation.findings import Evaluation
from sentiment_models.reports.report import Table, picture
from sentiment_tools.reports.html_report import Section, page, paragraph, table


def as_text(evaluation: Evaluation) -> str:
    """Format the figures for a terminal, without the notes on the columns."""
    graph = evaluation.graph
    size = f"graph {graph.bytes / 1e6:.1f} MB, bundle {graph.bundle_bytes / 1e6:.1f} MB"
    parts = [f"{evaluation.bundle}, {graph.precision}, {evaluation.threads} threads, {size}"]
    whole = tables.tables(evaluation)
    parts += [(tables.undecided_in_short(evaluation) if one.title == tables.UNDECIDED else _narrow(one)).text() for one in whole]
    if not evaluation.behaviours:
        parts.append(tables.BEHAVIOURS_SKIPPED)
    return "\n\n".join(parts)


def as_page(evaluation: Evaluation) -> str:
    """Compose a self-contained HTML document."""
    sections = []
    for one in tables.tables(evaluation):
        sections.append(one.section(below=_plots(one.title, evaluation)))
        if one.title == tables.BEHAVIOURS:
            sections.append(tables.failures(evaluation).section())
    if not evaluation.behaviours:
        sections.append(Section(tables.BEHAVIOURS, paragraph(tables.BEHAVIOURS_SKIPPED)))
    graph = evaluation.graph
    facts = (
        ("bundle", evaluation.bundle),
        ("graph", f"{graph.file} ({graph.precision}), SHA-256 {graph.sha256}"),
        ("temperature", str(evaluation.temperature)),
        ("truncation", evaluation.truncation),
        ("seed", str(evaluation.seed)),
        *((f"SHA-256 of {name}", one.sha256) for name, one in evaluation.datasets.items()),
    )
    sections.append(Section("What was measured", table(("", ""), facts)))
    return page(f"Evaluation of {evaluation.bundle}, {graph.precision}", sections)


def _plots(title: str, evaluation: Evaluation) -> str:
    """Return the plots that belong below a table."""
    from sentiment_models.reports import plots  # noqa: PLC0415  # the figures as text need no matplotlib

    found = ""
    for name, one in evaluation.datasets.items():
        if title == tables.CALIBRATION:
            alt = f"Reliability diagram of {name}: expected calibration error {one.ece:.4f}"
            found += picture(plots.reliability(one.reliability, f"{name}: predicted and measured accuracy"), alt)
        elif title == tables.LABELS:
            alt = f"Confusion matrix of {name}: accuracy {one.accuracy:.4f}"
            found += picture(plots.confusion(one.confusion, list(one.classes), name), alt)
    return found


def _narrow(one: Table) -> Table:
    """Remove the column that a terminal has no room for."""
    kept = [index for index, name in enumerate(one.header) if name != tables.EXPECTED]
    return Table(one.title, tuple(one.header[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in one.rows))
