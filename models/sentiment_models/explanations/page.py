"""The report of a study of explanations, as terminal text and as an HTML page with plots."""

from collections.abc import Iterator, Mapping

from sentiment_models.explanations import pictures, tables, training_page
from sentiment_models.explanations.attention_tables import attention_tables, not_measured
from sentiment_models.explanations.conclusions import in_words, percent
from sentiment_models.explanations.findings import DatasetFound, Difference, Findings
from sentiment_models.explanations.training_findings import TrainingFindings
from sentiment_models.reports.report import picture
from sentiment_tools.reports.html_report import Section, page, paragraph, table

AGAINST_RUNNER_UP = "the logit of the predicted label minus that of the runner-up; probability: its share in what both have together"


def as_text(found: Findings, training: TrainingFindings | None = None) -> str:
    """Format the figures for a terminal, conclusions first."""
    parts = [f"{found.bundle}, {found.graph}: how far its explanations can be trusted"]
    parts += [f"explained: {AGAINST_RUNNER_UP}"] if found.against_runner_up else []
    for name, one in found.datasets.items():
        parts.append("\n".join([_drawn(name, one), *(f"- {line}" for line in in_words(one, found.default_method, found.operators))]))
        for operator in found.operators:
            both = (tables.faithfulness(one, operator), tables.more_faithfulness(one, operator))
            parts += [item.text(f"{name}: words erased by {operator}") for item in both]
        several = (tables.comparisons(one, found.operators), tables.verdicts(one, found.operators), tables.costs(one))
        parts += [item.text(f"{name}: {item.title}") for item in several]
        if one.attention is not None:
            parts += [item.text(f"{name}: {item.title}", note=True) for item in attention_tables(one.attention)]
            parts += filter(None, [not_measured(one.attention)])
        if one.heads is not None:
            parts.append(tables.heads(one.heads).text(f"{name}: heads with the largest effect"))
    if found.plausibility is not None:
        parts.append(tables.plausibility(found.plausibility).text(note=True))
    if training is not None:
        parts.append(training_page.as_text(training))
    return "\n\n".join(parts)


def as_page(found: Findings, training: TrainingFindings | None = None) -> str:
    """Compose a self-contained HTML document; ``training``: results of ``attention-tests``, in further sections."""
    sections = [Section("Summary", "".join(_short(name, one, found) for name, one in found.datasets.items()))]
    for name, one in found.datasets.items():
        of = f", {name}" if len(found.datasets) > 1 else ""
        sections += [Section(section.title + of, section.html) for section in _dataset(one, found)]
    if found.plausibility is not None:
        sections.append(tables.plausibility(found.plausibility).section())
    if training is not None:
        # They do not measure this bundle's weights.
        sections += [Section(f"Small encoders: {section.title.lower()}", section.html) for section in training_page.sections(training)]
    facts = (
        ("bundle", f"{found.bundle}, digest {found.digest}"),
        ("graph", f"{found.graph}, SHA-256 {found.graph_sha256}"),
        *((("explained", AGAINST_RUNNER_UP),) if found.against_runner_up else ()),
        ("operators that erase words", ", ".join(found.operators)),
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
        f"{name}: {one.texts:,} of {one.rows:,} texts, {one.words:.1f} words on average, {one.words_max:,} at most, "
        f"{percent(one.accuracy)} answered correctly. "
        "Intervals are 95 %, by bootstrap over texts."
    )


def _dataset(one: DatasetFound, found: Findings) -> Iterator[Section]:
    operators, default = found.operators, found.default_method
    curves = picture(
        pictures.by_fraction(one, operators),
        "Comprehensiveness and sufficiency of every method by share of words; the tables have the means.",
    )
    for title, laid_out, drawn in (("Faithfulness", tables.faithfulness, curves), ("More on faithfulness", tables.more_faithfulness, "")):
        by_operator = [laid_out(one, operator) for operator in operators]
        parts = (f"<h3>by {item.title}</h3>{table(item.header, item.rows)}" for item in by_operator)
        yield Section(title, "".join([paragraph(by_operator[0].note), drawn, *parts]))
    yield Section("Compared with random orders", _against_random(one))
    if one.comparisons:
        yield tables.comparisons(one, operators).section(_against_others(one, default))
    yield tables.verdicts(one, operators).section()
    yield tables.costs(one).section()
    if one.agreement:
        note = "Mean rank agreement of word scores. Methods that disagree cannot all be right; methods that agree can all be wrong."
        drawn = picture(pictures.tau_matrix(one.agreement, "Kendall's tau-b of word scores"), "Rank agreement of each method with each.")
        yield Section("Do methods agree?", paragraph(note) + drawn)
    if one.attention is not None:
        tests = [f"<h3>{item.title}</h3>{item.section().html}" for item in attention_tables(one.attention)]
        yield Section("Does attention explain?", "".join([*tests, *map(paragraph, filter(None, [not_measured(one.attention)]))]))
    if one.heads is not None:
        drawn = picture(
            pictures.heads_map(one.heads, "Heads: mean effect and most frequent pattern"),
            "Mean absolute effect of each head on the answer; the table has the largest.",
        )
        yield tables.heads(one.heads).section(drawn)
        yield tables.patterns(one.heads).section()


def _against_random(one: DatasetFound) -> str:
    """Draw both measures as differences to random orders; above 0 is better for both."""
    drawn = []
    for measure, field, words in (
        ("comprehensiveness", "over_random", "comprehensiveness minus that of random"),
        ("sufficiency", "under_random", "random's sufficiency minus the method's"),
    ):
        methods = {name: method.operators for name, method in one.methods.items() if name != "random"}
        rows = {name: {operator: getattr(item, field) for operator, item in its.items()} for name, its in methods.items()}
        alt = f"{measure} of each method compared with random orders, with intervals; the tables have the figures."
        drawn.append(_forest(rows, f"{words} (right of 0: better than random)", measure, alt))
    return "".join(drawn)


def _against_others(one: DatasetFound, default: str) -> str:
    rows = {item.than: item.operators for item in one.comparisons if item.better == default}
    words = "difference in comprehensiveness (right of 0: the default is better)"
    alt = f"Comprehensiveness of {default} minus that of each other method, with intervals; the table has the figures."
    return _forest(rows, words, f"{default}, the default, minus ...", alt)


def _forest(rows: Mapping[str, Mapping[str, Difference | None]], words: str, title: str, alt: str) -> str:
    """Draw rows, the largest sum of differences first."""
    ordered = sorted(rows.items(), key=lambda row: -sum(item.mean for item in row[1].values() if item is not None))
    return picture(pictures.forest(dict(ordered), words, title), alt)
