"""The right labels that callers tell: they go to the journal and into the measured accuracy."""

import asyncio
import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sentiment.errors import AnswerNotFound, Expired, InvalidInput, Refused
from sentiment.observability.journal import ANSWER, Journal, Labelled
from sentiment.observability.journal_files import find
from sentiment.observability.metrics import ModelMetrics

# Searches for answers that may wait. Each reads the journal, newest first: 1 GiB takes about half a second.
WAITING_MAX = 64
RETRY_S = 1.0
# An answer may not have been written yet (``journal.PAUSE_S``). Its line is then among the last of a file.
PAUSE_S = 0.1
NEWEST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer that feedback is for. ``key``: the same for each label of it. ``text``: None if the journal does not have it."""

    key: tuple[str, int] | bytes
    model: str
    digest: str
    labels: tuple[str, ...]
    label: str
    abstain: bool
    request_id: str = ""
    item: int = 0
    text: str | None = None
    text_pair: str | None = None


class Feedback:
    """Finds answers in the journal, and writes right labels to it. For one event loop."""

    def __init__(self, journal: Journal, folder: Path) -> None:
        """``folder``: of the journal."""
        self._journal = journal
        self._folder = folder
        self._searching = ThreadPoolExecutor(1, "feedback")
        self._waiting = 0

    def close(self) -> None:
        """End the thread."""
        self._searching.shutdown(wait=False, cancel_futures=True)

    async def answer(self, request_id: str, item: int, deadline_at: float) -> Kept:
        """The newest answer to a request.

        Raises:
            AnswerNotFound: the journal does not have it, or its disk is gone.
            Expired: it was not found before the deadline.
            Refused: too many searches wait.
        """
        if self._waiting == WAITING_MAX:
            raise Refused(f"{WAITING_MAX} searches for answers wait; the limit is {WAITING_MAX}", RETRY_S, "feedback")
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline_at):
                found = await asyncio.get_running_loop().run_in_executor(self._searching, self._find, request_id, item, deadline_at)
        except TimeoutError as error:
            raise Expired("the answer was not found in the journal within the deadline") from error
        except OSError as error:
            raise AnswerNotFound(f"the journal cannot be read: {error.strerror}") from error
        finally:
            self._waiting -= 1
        if found is None:
            raise AnswerNotFound("the journal has no answer to a request with this request_id and item, or not any more")
        return found

    def take(self, answer: Kept, label: str, metrics: ModelMetrics | None) -> bool:
        """Take the right label of an answer; returns whether the answer was right. ``metrics``: None if the model is not loaded.

        Raises:
            InvalidInput: it is no label of the model.
        """
        if label not in answer.labels:
            raise InvalidInput("label", f"must be one of {', '.join(answer.labels)}, got {label[:64]!r}")
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
                text=answer.text,
                text_pair=answer.text_pair,
            )
        )
        return right

    def _find(self, request_id: str, item: int, deadline_at: float) -> Kept | None:
        def late() -> bool:
            return time.monotonic() > deadline_at

        # As ``Answered.line`` writes it. A text cannot have it: in a text the quotes are escaped.
        part = f'"request_id":{json.dumps(request_id)},"item":{item},'.encode()
        for pause_s, newest in ((0.0, None), (PAUSE_S, NEWEST_BYTES)):
            time.sleep(pause_s)
            for line in find(self._folder, part, newest, late):
                row = json.loads(line)
                if row["journal"] == ANSWER:
                    return Kept(
                        (request_id, item),
                        *(row["model"], row["digest"], tuple(row["scores"]), row["label"], row["abstain"], request_id, item),
                        *(row.get("text"), row.get("text_pair")),
                    )
            if late():
                break
        return None


def key_of(digest: str, text: str, text_pair: str | None) -> bytes:
    """Names a text and a model without holding the text."""
    return hashlib.sha256(json.dumps([digest, text, text_pair]).encode()).digest()
