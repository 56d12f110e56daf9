"""A study of explanations for a terminal and as a page with plots."""

from collections.abc import Iterator

from sentiment.files.html_report import Section, page, paragraph, plain, table
from sentiment_models.evaluation.tables import Table
from sentiment_models.explanations import pictures, tables, training_page
from sentiment_models.explanations.attention_tables import attention_tables, not_measured
from sentiment_models.explanations.findings import DatasetFound, Findings
from sentiment_models.explanations.pictures import Row
from sentiment_models.explanations.told import in_words, percent
from sentiment_models.explanations.training_findings import TrainingFindings
from sentiment_models.reports.report import picture


def as_text(found: Findings, training: TrainingFindings | None = None) -> str:
    """Lay the figures out for a terminal, what holds and what does not first."""
    parts = [f"{found.bundle}, {found.graph}: how far its explanations can be trusted"]
    for name, one in found.datasets.items():
        parts.append("\n".join([_drawn(name, one), *(f"- {line}" for line in in_words(one, found.default_method, found.operators))]))
        for operator in found.operators:
            both = (tables.faithfulness(one, operator), tables.more_faithfulness(one, operator))
            parts += [f"{name}: words erased by {operator}\n{_plain(told)}" for told in both]
        several = (tables.comparisons(one, found.operators), tables.verdicts(one, found.operators), tables.costs(one))
        parts += [f"{name}: {told.title}\n{_plain(told)}" for told in several]
        if one.attention is not None:
            parts += [f"{name}: {told.title}\n{_plain(told)}\n{told.note}" for told in attention_tables(one.attention)]
            parts += [left] if (left := not_measured(one.attention)) else []
        if one.heads is not None:
            parts.append(f"{name}: heads that the answers hang on most\n{_plain(tables.heads(one.heads))}")
    if found.plausibility is not None:
        told = tables.plausibility(found.plausibility)
        parts.append(f"{told.title}\n{_plain(told)}\n{told.note}")
    if training is not None:
        parts.append(training_page.as_text(training))
    return "\n\n".join(parts)


def as_page(found: Findings, training: TrainingFindings | None = None) -> str:
    """Compose a self-contained HTML document; ``training``: what ``attention-tests`` found, in sections of its own."""
    sections = [Section("In short", "".join(_short(name, one, found) for name, one in found.datasets.items()))]
    for name, one in found.datasets.items():
        # Of one file nothing has to be told apart.
        of = f", {name}" if len(found.datasets) > 1 else ""
        sections += [Section(section.title + of, section.html) for section in _dataset(one, found)]
    if found.plausibility is not None:
        sections.append(_section(tables.plausibility(found.plausibility)))
    if training is not None:
        sections += _training(training)
    facts = (
        ("bundle", f"{found.bundle}, digest {found.digest}"),
        ("graph", f"{found.graph}, SHA-256 {found.graph_sha256}"),
        ("words are erased by", ", ".join(found.operators)),
        ("seed", str(found.seed)),
        *((f"texts of {name}", f"{one.texts:,} of {one.rows:,}, SHA-256 {one.sha256}") for name, one in found.datasets.items()),
        *((f"core seconds for {name}", f"{one.seconds:,.0f}") for name, one in found.datasets.items()),
        *((("SHA-256 of the rationales", found.plausibility.sha256),) if found.plausibility else ()),
    )
    sections.append(Section("What was studied", table(("", ""), facts)))
    return page(f"How far explanations of {found.bundle} can be trusted", sections)


def _short(name: str, one: DatasetFound, found: Findings) -> str:
    return "".join(map(paragraph, [_drawn(name, one), *in_words(one, found.default_method, found.operators)]))


def _drawn(name: str, one: DatasetFound) -> str:
    return (
        f"{name}: {one.texts:,} of {one.rows:,} texts, {one.words:.1f} words each in the mean, {one.words_max:,} at most, "
        f"{percent(one.accuracy)} answered rightly. "
        "Intervals are of 95 %, by bootstrap over texts."
    )


def _dataset(one: DatasetFound, found: Findings) -> Iterator[Section]:
    operators, default = found.operators, found.default_method
    curves = picture(
        pictures.by_fraction(one, operators),
        "Comprehensiveness and sufficiency of every method by the share of words; the tables have their means.",
    )
    for title, laid_out, drawn in (("Faithfulness", tables.faithfulness, curves), ("More on faithfulness", tables.more_faithfulness, "")):
        by_operator = [laid_out(one, operator) for operator in operators]
        parts = [paragraph(by_operator[0].note) + drawn, *(f"<h3>by {told.title}</h3>{_table(told)}" for told in by_operator)]
        yield Section(title, "".join(parts))
    yield Section("Against orders at random", _against_random(one))
    if one.comparisons:
        yield _section(tables.comparisons(one, operators), _against_others(one, default))
    yield _section(tables.verdicts(one, operators))
    yield _section(tables.costs(one))
    if one.agreement:
        told = "Mean rank agreement of word scores. Methods that do not agree cannot all be right; those that do may all be wrong."
        drawn = picture(pictures.tau_matrix(one.agreement, "Kendall's tau-b of word scores"), "Rank agreement of each method with each.")
        yield Section("Do methods agree?", paragraph(told) + drawn)
    if one.attention is not None:
        parts = [f"<h3>{told.title}</h3>{paragraph(told.note)}{_table(told)}" for told in attention_tables(one.attention)]
        parts += [paragraph(left)] if (left := not_measured(one.attention)) else []
        yield Section("Does attention explain?", "".join(parts))
    if one.heads is not None:
        drawn = picture(
            pictures.heads_map(one.heads, "Heads: mean effect, and the commonest pattern"),
            "Mean size of each head's effect on the answer; the table has the largest.",
        )
        yield _section(tables.heads(one.heads), drawn)
        yield _section(tables.patterns(one.heads))


def _against_random(one: DatasetFound) -> str:
    """Both measures as differences to chance, above 0 being better in both."""
    drawn = []
    for measure, field in (("comprehensiveness", "over_random"), ("sufficiency", "under_random")):
        rows = [
            Row(name, {operator: getattr(told, field) for operator, told in method.operators.items()})
            for name, method in one.methods.items()
            if name != "random"
        ]
        rows.sort(key=lambda row: -sum(told.mean for told in row.operators.values() if told is not None))
        words = f"{measure} less random's" if field == "over_random" else f"random's {measure} less the method's"
        png = pictures.forest(rows, f"{words} (right of 0: better than random)", measure)
        drawn.append(picture(png, f"{measure} of each method against random orders, with intervals; the tables have the figures."))
    return "".join(drawn)


def _against_others(one: DatasetFound, default: str) -> str:
    rows = [Row(told.than, told.operators) for told in one.comparisons if told.better == default]
    rows.sort(key=lambda row: -sum(told.mean for told in row.operators.values() if told is not None))
    drawn = pictures.forest(
        rows, "difference in comprehensiveness (right of 0: the default is better)", f"{default}, the default, less ..."
    )
    return picture(drawn, f"Comprehensiveness of {default} less that of each other method, with intervals; the table has the figures.")


def _training(found: TrainingFindings) -> Iterator[Section]:
    """The tests that trained encoders of their own, which say nothing of this bundle's weights."""
    whole = found.adversaries is not None and found.seeds is not None
    for told in training_page.tables(found):
        drawn = ""
        if whole and told.title == training_page.ADVERSARIES:
            drawn = picture(training_page.curve_png(found), "Change of the answer against divergence of attention, as in the table.")
        yield _section(Table(f"Small encoders: {told.title.lower()}", told.header, told.rows, told.note), drawn)


def _section(told: Table, drawn: str = "") -> Section:
    return Section(told.title, (paragraph(told.note) if told.note else "") + drawn + _table(told))


def _table(told: Table) -> str:
    return table(told.header, told.rows)


def _plain(told: Table) -> str:
    return plain(told.header, told.rows)
