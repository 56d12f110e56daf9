"""The journal of a process that serves, as the settings want it."""

from pathlib import Path

from sentiment.errors import BadSettings
from sentiment.observability.journal import Journal
from sentiment.observability.journal_files import JournalFiles
from sentiment.observability.metrics import Metrics
from sentiment.settings import Settings


def journal_of(settings: Settings, metrics: Metrics, process: str) -> Journal | None:
    """The journal of a process with this name, and its metrics; None without the setting.

    Raises:
        BadSettings: the folder cannot be used, or the limits do not fit together, or feedback is to be bound and cannot be.
    """
    if settings.feedback_bound and not (settings.journal and settings.auth_tokens):
        raise BadSettings("feedback_bound is true; it needs journal and auth_tokens: answers are bound to the names of tokens there")
    journal = None
    if settings.journal:
        # The executor and each front end write.
        processes = 1 + max(0, settings.front_ends)
        files = JournalFiles(Path(settings.journal), process, processes, settings.journal_bytes_max, settings.journal_file_bytes_max)
        journal = Journal(files, settings.journal_share, settings.journal_texts, settings.feedback_bound)
    metrics.journal_lines.watch(lambda: 0.0 if journal is None else journal.thread.written)
    metrics.journal_lines_dropped.watch(lambda: 0.0 if journal is None else journal.thread.dropped)
    return journal
