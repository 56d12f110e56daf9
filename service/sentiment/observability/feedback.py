"""The right labels that callers tell: they go to the journal and into the measured accuracy."""

import asyncio
import contextlib
import hashlib
import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentiment.errors import AnswerNotFound, Expired, InvalidInput, Refused, Unavailable
from sentiment.observability.callers import name_of
from sentiment.observability.journal import Journal, Labelled
from sentiment.observability.journal_index import Asked, JournalIndex, Row
from sentiment.observability.metrics import ModelMetrics

# Searches that may wait: of all callers, and of one caller, so that one cannot take all places. Callers wait for as long as the disk
# hangs, or for 0.1 s if the journal does not have the answer.
WAITING_MAX, WAITING_MAX_OF_ONE = 1024, 64
RETRY_S = 1.0
# A front end may not have written its answer yet (``journal.PAUSE_S``): it is unknown if it is not in the journal this much later, and this
# much after this process has written all that it had to write when the search began.
PAUSE_S = 0.1
# What is read of the journal in one go, while the interpreter and the event loop wait for 4 ms at most.
READ_BYTES = 2**21
# How long the thread then rests, as a multiple of its CPU time: while it catches up with the journal, and after that. So a caller
# that asks for unknown ids without end takes at most a fifth of a core.
REST_READING, REST = 0.5, 4.0
NOT_IN_TIME = "the answer was not found in the journal within the deadline"


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer that feedback is for. ``key``: the same for each label of it. ``text``: None if the journal does not have it."""

    key: tuple[str, Asked, str] | bytes
    model: str
    digest: str
    labels: tuple[str, ...]
    label: str
    abstain: bool
    request_id: str = ""
    item: int = 0
    caller: str = ""
    text: str | None = None
    text_pair: str | None = None


@dataclass(slots=True, eq=False)
class _Search:
    """A search for an answer.

    ``added``: lines of the journal when it began. ``unknown_at``: from when on an answer that the journal does not have is unknown.
    ``left``: its caller has gone.
    """

    asked: Asked
    caller: str
    added: int
    unknown_at: float
    deadline_at: float
    outcome: asyncio.Future[Kept]
    left: bool = False


class Feedback:
    """Finds answers in the journal, and writes right labels to it. For one event loop."""

    def __init__(self, journal: Journal, folder: Path) -> None:
        """Start the thread. ``folder``: of the journal."""
        self._journal = journal
        self._index = JournalIndex(folder)
        self._inbox: queue.SimpleQueue[_Search | None] = queue.SimpleQueue()
        self._waiting: Counter[str] = Counter()
        self._closed = threading.Event()
        # A daemon, so that a disk that hangs does not hold up the exit.
        threading.Thread(target=self._work, name="feedback", daemon=True).start()

    def close(self) -> None:
        """End the thread, soon. Returns at once."""
        self._closed.set()
        self._inbox.put(None)

    async def answer(self, request_id: str, item: int, deadline_at: float, caller: str = "") -> Kept:
        """The newest answer to a request that is in the journal, and if that is bound to names, an answer to the caller's name.

        ``caller``: who asks, for fair shares too: see ``Call.account``.

        Raises:
            AnswerNotFound: the journal does not have it.
            Unavailable: the journal cannot be read, or the server stops.
            Expired: it was not found before the deadline.
            Refused: too many searches wait, of this caller or of all.
        """
        self._admit(caller)
        outcome: asyncio.Future[Kept] = asyncio.get_running_loop().create_future()
        unknown_at = time.monotonic() + PAUSE_S
        asked = Asked(request_id, item, name_of(caller) if self._journal.bound else "")
        search = _Search(asked, caller, self._journal.thread.taken, unknown_at, deadline_at, outcome)
        self._inbox.put(search)
        try:
            async with asyncio.timeout_at(deadline_at):
                return await search.outcome
        except TimeoutError as error:
            raise Expired(NOT_IN_TIME) from error
        finally:
            search.left = True

    def _admit(self, caller: str) -> None:
        """Take a place, until ``_settle``."""
        for waiting, limit in ((self._waiting[caller], WAITING_MAX_OF_ONE), (self._waiting.total(), WAITING_MAX)):
            if waiting >= limit:
                raise Refused(f"{waiting} searches for answers wait; the limit is {limit}", RETRY_S, "feedback")
        self._waiting[caller] += 1

    def take(self, answer: Kept, label: str | None, metrics: ModelMetrics | None) -> bool:
        """Take the right label of an answer; returns whether the answer was right.

        Args:
            answer: the answer.
            label: the right label; None: no label of the model is right, so the answer was wrong.
            metrics: None if the model is not loaded.

        Raises:
            InvalidInput: the model does not have this label.
        """
        check_label(label, answer.labels)
        right = label == answer.label
        if metrics is not None and not metrics.measured.add(answer.key, label, right, answer.abstain):
            return right
        if metrics is not None:
            metrics.feedback[right, answer.abstain]()
        self._journal.add(
            Labelled(
                at=time.time(),
                model=answer.model,
                digest=answer.digest,
                request_id=answer.request_id,
                item=answer.item,
                caller=answer.caller,
                label=label,
                predicted=answer.label,
                abstain=answer.abstain,
                text=answer.text if self._journal.texts else None,
                text_pair=answer.text_pair if self._journal.texts else None,
            )
        )
        return right

    def _work(self) -> None:
        searches: list[_Search] = []
        whole = True
        while not self._closed.is_set():
            now = time.monotonic()
            searches += self._arrived(min((search.unknown_at - now if whole else 0.0 for search in searches), default=None))
            # CPU time: a disk that hangs costs none.
            begun_at, worked_s = time.monotonic(), time.thread_time()
            for search in searches:
                if self._journal.thread.done < search.added:
                    search.unknown_at = begun_at + PAUSE_S
            try:
                found, whole = self._index.find({search.asked for search in searches}, READ_BYTES)
                outcomes = {search: outcome for search in searches if (outcome := _outcome(search, found, whole, begun_at)) is not None}
            except Exception as error:  # the callers get it, and the thread must go on
                outcomes, whole = {search: _failure(error) for search in searches}, True
            self._settle_soon(outcomes)
            searches = [search for search in searches if search not in outcomes]
            self._closed.wait((REST if whole else REST_READING) * (time.thread_time() - worked_s))
        self._settle_soon({search: Unavailable("the server is draining") for search in (*searches, *self._arrived(0.0))})

    def _arrived(self, wait_s: float | None) -> list[_Search]:
        """The searches that have begun. Waits so long for the first; None: without end."""
        arrived: list[_Search | None] = []
        with contextlib.suppress(queue.Empty):
            arrived.append(self._inbox.get(timeout=wait_s if wait_s is None else max(0.0, wait_s)))
            while True:
                arrived.append(self._inbox.get_nowait())
        return [search for search in arrived if search is not None]

    def _settle_soon(self, outcomes: Mapping[_Search, Kept | Exception]) -> None:
        for search, outcome in outcomes.items():
            # The loop may have ended.
            with contextlib.suppress(RuntimeError):
                search.outcome.get_loop().call_soon_threadsafe(self._settle, search, outcome)

    def _settle(self, search: _Search, outcome: Kept | Exception) -> None:
        # Only now: searches whose callers have left wait for a disk that hangs, too.
        self._waiting[search.caller] -= 1
        if not self._waiting[search.caller]:
            del self._waiting[search.caller]
        if search.outcome.done():
            return
        if isinstance(outcome, Exception):
            search.outcome.set_exception(outcome)
        else:
            search.outcome.set_result(outcome)


def _outcome(search: _Search, found: Mapping[Asked, Row], whole: bool, looked_at: float) -> Kept | Exception | None:
    """The outcome of a search; None if it goes on. ``found``, ``whole``: of ``JournalIndex.find``, which began at ``looked_at``."""
    if search.left or looked_at > search.deadline_at:
        return Expired(NOT_IN_TIME)
    if search.asked in found:
        return _kept(search.asked, found[search.asked])
    if whole and looked_at >= search.unknown_at:
        return AnswerNotFound("the journal has no answer to a request with this request_id and item, or not any more")
    return None


def _failure(error: Exception) -> Exception:
    """The answer to a feedback call."""
    if not isinstance(error, OSError):
        return error
    failure = Unavailable(f"the journal cannot be read: {error.strerror}")
    failure.__cause__ = error
    return failure


def _kept(asked: Asked, row: Row) -> Kept:
    return Kept(
        # Its time, because callers may use a request id again.
        key=(row["digest"], asked, row["time"]),
        model=row["model"],
        digest=row["digest"],
        labels=tuple(row["scores"]),
        label=row["label"],
        abstain=row["abstain"],
        request_id=asked.request_id,
        item=asked.item,
        caller=asked.caller,
        text=row.get("text"),
        text_pair=row.get("text_pair"),
    )


def check_label(label: str | None, labels: Sequence[str]) -> None:
    """Refuse a label that the model does not have. None (no label is right) passes.

    Raises:
        InvalidInput: always then.
    """
    if label is not None and label not in labels:
        raise InvalidInput("label", f"must be one of {', '.join(labels)}, got {label[:64]!r}")


def key_of(digest: str, text: str, text_pair: str | None) -> bytes:
    """Names a text and a model without holding the text."""
    return hashlib.sha256(json.dumps([digest, text, text_pair]).encode()).digest()
