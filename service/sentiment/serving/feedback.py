"""The right labels that callers tell: they go to the journal and into the measured accuracy."""

import asyncio
import contextlib
import hashlib
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentiment.errors import AnswerNotFound, Expired, InvalidInput, Refused, Unavailable
from sentiment.observability.journal import ANSWER, Journal, Labelled, rfc_3339
from sentiment.observability.journal_files import by_last_write, find
from sentiment.observability.metrics import ModelMetrics

# Searches for answers that may wait or run. Each reads the journal, newest first: 1 GiB takes about half a second.
WAITING_MAX = 64
RETRY_S = 1.0
# An answer may not have been written yet (``journal.PAUSE_S``). Its line is then among the last of a file.
PAUSE_S = 0.1
NEWEST_BYTES = 2**20
# A file's last write is not before its last line's time, but for the steps of clocks.
CLOCKS_S = 1.0


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer that feedback is for. ``key``: the same for each label of it. ``text``: None if the journal does not have it."""

    key: tuple[str, str, int, str] | bytes
    model: str
    digest: str
    labels: tuple[str, ...]
    label: str
    abstain: bool
    request_id: str = ""
    item: int = 0
    text: str | None = None
    text_pair: str | None = None


@dataclass(slots=True, eq=False)
class _Search:
    """A search for an answer. ``outcome``: None if there is no answer. ``left``: its caller has gone."""

    request_id: str
    item: int
    deadline_at: float
    outcome: asyncio.Future[Kept | None]
    left: bool = False


class Feedback:
    """Finds answers in the journal, and writes right labels to it. For one event loop."""

    def __init__(self, journal: Journal, folder: Path) -> None:
        """Start the thread. ``folder``: of the journal."""
        self._journal = journal
        self._folder = folder
        self._inbox: queue.SimpleQueue[_Search | None] = queue.SimpleQueue()
        self._waiting = 0
        self._closed = threading.Event()
        # A daemon, so that a disk that hangs does not hold up the exit.
        threading.Thread(target=self._work, name="feedback", daemon=True).start()

    def close(self) -> None:
        """End the thread, soon. Returns at once."""
        self._closed.set()
        self._inbox.put(None)

    async def answer(self, request_id: str, item: int, deadline_at: float) -> Kept:
        """The newest answer to a request that is in the journal.

        Raises:
            AnswerNotFound: the journal does not have it.
            Unavailable: the journal cannot be read, or the server stops.
            Expired: it was not found before the deadline.
            Refused: too many searches wait.
        """
        if self._waiting == WAITING_MAX:
            raise Refused(f"{WAITING_MAX} searches for answers wait; the limit is {WAITING_MAX}", RETRY_S, "feedback")
        self._waiting += 1
        search = _Search(request_id, item, deadline_at, asyncio.get_running_loop().create_future())
        self._inbox.put(search)
        try:
            async with asyncio.timeout_at(deadline_at):
                found = await search.outcome
        except TimeoutError as error:
            raise Expired("the answer was not found in the journal within the deadline") from error
        finally:
            search.left = True
        if found is None:
            raise AnswerNotFound("the journal has no answer to a request with this request_id and item, or not any more")
        return found

    def take(self, answer: Kept, label: str, metrics: ModelMetrics | None) -> bool:
        """Take the right label of an answer; returns whether the answer was right. ``metrics``: None if the model is not loaded.

        Raises:
            InvalidInput: it is no label of the model.
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
                label=label,
                predicted=answer.label,
                abstain=answer.abstain,
                text=answer.text if self._journal.texts else None,
                text_pair=answer.text_pair if self._journal.texts else None,
            )
        )
        return right

    def _work(self) -> None:
        while (search := self._inbox.get()) is not None:
            found: Kept | Exception | None
            try:
                found = self._find(search)
            except OSError as error:
                found = Unavailable(f"the journal cannot be read: {error.strerror}")
                found.__cause__ = error
            except Exception as error:  # the caller gets it, and the thread must go on
                found = error
            # The loop may have ended.
            with contextlib.suppress(RuntimeError):
                search.outcome.get_loop().call_soon_threadsafe(self._settle, search, found)

    def _settle(self, search: _Search, found: Kept | Exception | None) -> None:
        # Only now: searches whose callers have left wait for a disk that hangs, too.
        self._waiting -= 1
        if search.outcome.done():
            return
        if isinstance(found, Exception):
            search.outcome.set_exception(found)
        else:
            search.outcome.set_result(found)

    def _find(self, search: _Search) -> Kept | None:
        """The answer. None if there is none.

        Raises:
            OSError: the folder cannot be read.
            Expired, Unavailable: the search has ended early.
        """
        request_id, item = search.request_id, search.item

        def stop() -> bool:
            return search.left or self._closed.is_set() or time.monotonic() > search.deadline_at

        # As ``Answered.line`` writes it. A text cannot have it: in a text the quotes are escaped.
        part = f'"request_id":{json.dumps(request_id)},"item":{item},'.encode()
        for pause_s, newest in ((0.0, None), (PAUSE_S, NEWEST_BYTES)):
            self._closed.wait(pause_s)
            row = None if stop() else self._newest(part, newest, stop)
            if row is not None:
                return Kept(
                    # Its time, because callers may use a request id again.
                    key=(row["digest"], request_id, item, row["time"]),
                    model=row["model"],
                    digest=row["digest"],
                    labels=tuple(row["scores"]),
                    label=row["label"],
                    abstain=row["abstain"],
                    request_id=request_id,
                    item=item,
                    text=row.get("text"),
                    text_pair=row.get("text_pair"),
                )
            if self._closed.is_set():
                raise Unavailable("the server is draining")
            if stop():
                raise Expired("the answer was not found in the journal within the deadline")
        return None

    def _newest(self, part: bytes, newest_bytes: int | None, stop: Callable[[], bool]) -> dict[str, Any] | None:  # Any: JSON
        """The newest answer whose line has these bytes: of the processes that write, any may have it."""
        newest: dict[str, Any] | None = None
        for written_at, path in by_last_write(self._folder):
            if newest is not None and rfc_3339(written_at + CLOCKS_S) < newest["time"]:
                break
            rows = map(json.loads, find(path, part, newest_bytes, stop))
            row = next((row for row in rows if row["journal"] == ANSWER), None)
            if row is not None and (newest is None or row["time"] > newest["time"]):
                newest = row
        return newest


def check_label(label: str, labels: Sequence[str]) -> None:
    """Refuse a label that is none of the model's.

    Raises:
        InvalidInput: always then.
    """
    if label not in labels:
        raise InvalidInput("label", f"must be one of {', '.join(labels)}, got {label[:64]!r}")


def key_of(digest: str, text: str, text_pair: str | None) -> bytes:
    """Names a text and a model without holding the text."""
    return hashlib.sha256(json.dumps([digest, text, text_pair]).encode()).digest()
