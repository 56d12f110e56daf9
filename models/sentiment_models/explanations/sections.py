"""The register of what ``sentiment_models.study`` adds to a study of explanations: the tests of attention, and how their results are shown.

Nothing else outside of that package knows it. Its modules are named here and imported when they are used: figures are laid out without
torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from pkgutil import resolve_name

from sentiment_models.explanations.findings import AttentionFound
from sentiment_models.explanations.rankings import Scores
from sentiment_models.explanations.subject import Reading, Subject
from sentiment_models.explanations.training_findings import TrainingFindings
from sentiment_models.reports.report import Table
from sentiment_tools.reports.html_report import Section

STUDY = "sentiment_models.study"


def attention_found(
    subject: Subject, readings: Sequence[Reading], right: Sequence[int], scores: Sequence[Mapping[str, Scores]], seed: int
) -> AttentionFound:
    """Run the tests of attention on texts of one bundle, with progress bars."""
    found: AttentionFound = resolve_name(f"{STUDY}.attention_tests:attention_found")(subject, readings, right, scores, seed)
    return found


def attention_tables(found: AttentionFound) -> tuple[Iterable[Table], str]:
    """Return a table for each test of attention that has results, and which tests have none and why, or an empty text."""
    tables: Iterable[Table] = resolve_name(f"{STUDY}.attention_tables:attention_tables")(found)
    return tables, resolve_name(f"{STUDY}.attention_tables:not_measured")(found)


def training_text(found: TrainingFindings) -> str:
    """Format the results of ``attention-tests`` for a terminal, with their interpretation."""
    text: str = resolve_name(f"{STUDY}.training_page:as_text")(found)
    return text


def training_sections(found: TrainingFindings) -> Iterable[Section]:
    """Return a section of a page for each finished test of ``attention-tests``."""
    sections: Iterable[Section] = resolve_name(f"{STUDY}.training_page:sections")(found)
    return sections
