"""Right labels that callers tell: which answer they are for, what is counted and what the journal keeps."""

import asyncio
import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from sentiment.client import CallFailed, Client, Credentials, ExplainOptions, FeedbackTaken
from sentiment.errors import AnswerNotFound, BadSettings, Expired, Refused, Unavailable
from sentiment.observability.feedback import PAUSE_S, WAITING_MAX, WAITING_MAX_OF_ONE, Feedback, Kept
from sentiment.observability.journal import Answered, Journal, line_of
from sentiment.observability.journal_files import JournalFiles, files_of
from sentiment.observability.journal_index import Asked, Row
from sentiment.observability.measured_accuracy import ANSWERS_MAX, MeasuredAccuracy
from sentiment_models.data.labelled import Example, read_examples
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.http.http import call
from tests.core.observability.test_journal import SECRET, rows
from tests.core.servers import Server, until
from tests.tiny import LABELS

Start = Callable[..., RunningServer]
Code = grpc.StatusCode
SHOP, SHOP_NEXT, WEB = "shop-token-0123456789", "next-token-0123456789", "web-token-0123456789"
PLAIN, PLAIN_NEXT = "plain-token-0123456789", "plain-next-0123456789"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture(scope="module")
def kept(settings: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a journal, for tests that leave its metrics alone."""
    server = RunningServer(settings.model_copy(update={"journal": str(tmp_path_factory.mktemp("journal")), "models": ("paired",)}))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def answered(kept: RunningServer) -> Iterator[Client]:
    """A client of it that has asked ``one`` and the batch ``many``."""
    with kept.client() as client:
        client.classify("a good film", request_id="one")
        client.classify_batch(["good", "bad"], request_id="many")
        yield client


def feedback_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder) if row["journal"] == "feedback"]


def accuracy(server: RunningServer, model: str = "tiny/1") -> tuple[float, float]:
    return server.metric("sentiment_measured_accuracy", model=model), server.metric("sentiment_measured_accuracy_texts", model=model)


def counted(server: RunningServer, right: str) -> float:
    return server.metric("sentiment_feedback_total", right=right, abstained="false", model="tiny/1")


def test_the_last_label_of_an_answer_counts_and_counts_once(start: Start, folder: Path) -> None:
    server = start(journal=str(folder))
    with server.client() as client:
        digest = client.classify("good", request_id="one").model.digest
        client.classify_batch(["bad", "great"], request_id="many")
        assert math.isnan(accuracy(server)[0])
        told = [client.feedback("negative", request_id="one") for _ in range(3)]
        client.feedback("positive", request_id="many", item=1)
        assert accuracy(server) == (0.5, 2)
        client.feedback("positive", request_id="one")
        client.feedback("negative", request_id="many", item=0)
        assert accuracy(server) == (1.0, 3)
    server.stop()

    assert {(one.predicted, one.right, one.abstain, one.model.name) for one in told} == {("positive", False, False, "tiny")}
    assert (counted(server, "false"), counted(server, "true")) == (1, 3)
    found = feedback_rows(folder)
    assert [(row["request_id"], row["item"], row["label"], row["predicted"]) for row in found] == [
        ("one", 0, "negative", "positive"),
        ("many", 1, "positive", "positive"),
        ("one", 0, "positive", "positive"),
        ("many", 0, "negative", "negative"),
    ]
    assert {(row["model"], row["digest"], row["abstain"]) for row in found} == {("tiny/1", digest, False)}


def test_a_labelled_text_is_classified_again_without_being_counted(start: Start, folder: Path) -> None:
    server = start(journal=str(folder), models=("paired",))
    with server.client() as client:
        told = client.feedback("negative", f"a good {SECRET}")
        client.feedback("negative", f"a good {SECRET}")
        pair = client.feedback("positive", ("good", SECRET), model="paired")
        assert accuracy(server) == (0.0, 1)
        assert accuracy(server, "paired/1") == (1.0, 1)
        total = [server.metric("sentiment_text_tokens_count", model=model) for model in ("tiny/1", "paired/1")]
    server.stop()

    assert isinstance(told, FeedbackTaken)
    assert (told.predicted, told.right, pair.right) == ("positive", False, True)
    assert total == [0, 0]
    assert [(row["label"], row["model"], "request_id" in row) for row in rows(folder)] == [
        ("negative", "tiny/1", False),
        ("positive", "paired/1", False),
    ]
    assert not [path for path in folder.iterdir() if SECRET.encode() in path.read_bytes()]


def test_with_texts_the_journal_is_a_file_of_labelled_texts(start: Start, folder: Path) -> None:
    server = start(journal=str(folder), journal_texts=True)
    with server.client() as client:
        client.classify("a good film", request_id="one")
        client.classify("never labelled")
        client.feedback("negative", "caf\u00e9 good")
        client.feedback("positive", request_id="one")
        client.feedback("negative", request_id="one")
    server.stop()
    (path,) = folder.iterdir()

    assert list(read_examples(path, LABELS)) == [Example("caf\u00e9 good", 0), Example("a good film", 0)]


def test_a_label_of_a_text_replaces_none_that_names_an_answer(start: Start, folder: Path) -> None:
    server = start(journal=str(folder), journal_texts=True)
    with server.client() as client:
        client.classify("good", request_id="one")
        client.feedback("positive", request_id="one")
        for label in LABELS:
            client.feedback(label, "good")
        client.feedback("negative", "good")
        counts = accuracy(server)
    server.stop()
    (path,) = files_of(folder)

    assert counts == (0.5, 2)
    assert list(read_examples(path, LABELS)) == [Example("good", 1), Example("good", 0)]


def test_no_label_is_right_counts_as_wrong_and_takes_back_the_label_before(start: Start, folder: Path) -> None:
    server = start(journal=str(folder), journal_texts=True)
    with server.client() as client:
        client.classify("good", request_id="one")
        client.feedback("positive", request_id="one")
        told = client.feedback(None, request_id="one")
        again = call(server, "/v1/feedback", {"text": "a film", "none": True}).json
        client.feedback("negative", "bad")
        counts = accuracy(server), counted(server, "false"), counted(server, "true")
    server.stop()
    (path,) = files_of(folder)

    assert (told.predicted, told.right, again["right"]) == ("positive", False, False)
    assert again["abstain"]
    assert counts == ((0.5, 2), 1, 2)
    assert [row["label"] for row in feedback_rows(folder)] == ["positive", None, None, "negative"]
    assert list(read_examples(path, LABELS)) == [Example("bad", 0)]


def test_an_answer_of_an_earlier_server_can_be_labelled(start: Start, folder: Path) -> None:
    for name in ("one", "two"):
        server = start(journal=str(folder))
        with server.client() as client:
            client.classify("good", request_id=name)
            client.feedback("negative", request_id="one")
        server.stop()

    assert accuracy(server) == (0.0, 1)
    assert [row["request_id"] for row in feedback_rows(folder)] == ["one", "one"]


def test_a_request_id_that_is_used_again_names_the_newest_answer_and_both_are_counted(start: Start, folder: Path) -> None:
    server = start(journal=str(folder), journal_texts=True)
    with server.client() as client:
        for text in ("good", "bad"):
            client.classify(text, request_id="one")
            # The journal's line follows the answer.
            until(lambda text=text: text in [row.get("text") for row in rows(folder)], "the line of the answer")
            assert client.feedback("positive", request_id="one").right is (text == "good")
            client.feedback("positive", request_id="one")
        counts = accuracy(server)
    server.stop()
    (path,) = folder.iterdir()

    assert counts == (0.5, 2)
    assert list(read_examples(path, LABELS)) == [Example("good", 1), Example("bad", 1)]


def test_a_journal_that_cannot_be_read_is_unavailable_and_not_an_unknown_answer(start: Start, folder: Path) -> None:
    server = start(journal=str(folder))
    folder.rmdir()
    with server.client() as client, pytest.raises(CallFailed, match="the journal cannot be read: No such file") as caught:
        client.feedback("positive", request_id="one", timeout_s=1)

    assert caught.value.code is Code.UNAVAILABLE


def test_a_search_that_does_not_end_holds_up_neither_its_caller_nor_the_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, hang = threading.Event(), threading.Event()

    def hanging(_folder: Path) -> list[tuple[os.stat_result, Path]]:
        entered.set()
        hang.wait()
        return []

    monkeypatch.setattr("sentiment.observability.journal_index.by_last_write", hanging)
    journal = Journal(JournalFiles(tmp_path, "server", 1, 10_000, 1000), 1.0, texts=False)

    async def ask() -> None:
        feedback = Feedback(journal, tmp_path)
        first = asyncio.create_task(feedback.answer("one", 0, time.monotonic() + 60))
        await asyncio.to_thread(entered.wait)
        first.cancel()
        for number in range(1, WAITING_MAX):
            with pytest.raises(Expired):
                await feedback.answer("one", 0, time.monotonic(), caller=str(number // WAITING_MAX_OF_ONE))
        # They wait for the disk still.
        with pytest.raises(Refused):
            await feedback.answer("one", 0, time.monotonic(), "another")
        assert first.cancelled()
        feedback.close()

    asyncio.run(ask())
    assert {thread.daemon for thread in threading.enumerate() if thread.name == "feedback"} == {True}
    hang.set()
    journal.close()


@pytest.fixture
def looking(tmp_path: Path) -> Iterator[Feedback]:
    """Feedback over an empty journal."""
    journal = Journal(JournalFiles(tmp_path, "server", 1, 10_000, 1000), 1.0, texts=False)
    feedback = Feedback(journal, tmp_path)
    yield feedback
    feedback.close()
    journal.close()


def answered_now(request_id: str) -> Answered:
    scores = {"negative": 0.1, "positive": 0.9}
    return Answered(time.time(), "tiny/1", "d", request_id, 0, "", "interactive", 3, False, "positive", False, scores, None, None)


async def test_a_search_that_ends_at_its_deadline_is_not_an_unknown_answer(looking: Feedback) -> None:
    with pytest.raises(Expired):
        await looking.answer("one", 0, time.monotonic() + PAUSE_S / 2)
    with pytest.raises(AnswerNotFound):
        await looking.answer("one", 0, time.monotonic() + 60)


async def test_an_answer_that_the_disk_has_not_taken_yet_is_not_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's lock is held, so that no file can be begun: the journal waits as for a disk."""
    monkeypatch.setattr("sentiment.observability.feedback.PAUSE_S", 1e-3)
    journal = Journal(JournalFiles(tmp_path, "server", 1, 10_000, 1000), 1.0, texts=False)
    disk = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(disk, fcntl.LOCK_EX)
    journal.add(answered_now("one"))
    looked = threading.Semaphore(0)
    feedback = Feedback(journal, tmp_path)
    find_all = feedback._index.find

    def looking(asked: Collection[Asked], bytes_max: int) -> tuple[dict[Asked, Row], bool]:
        outcome = find_all(asked, bytes_max)
        looked.release()
        return outcome

    monkeypatch.setattr(feedback._index, "find", looking)
    search = asyncio.create_task(feedback.answer("one", 0, time.monotonic() + 60))
    for _ in range(3):
        assert await asyncio.to_thread(looked.acquire, timeout=60)
    os.close(disk)

    assert (await search).request_id == "one"
    with pytest.raises(AnswerNotFound):
        await feedback.answer("another", 0, time.monotonic() + 60)
    feedback.close()
    journal.close()


async def test_a_search_that_waits_when_the_server_stops_is_not_an_unknown_answer(looking: Feedback) -> None:
    waiting = asyncio.create_task(looking.answer("one", 0, time.monotonic() + 60))
    await asyncio.sleep(0)
    looking.close()

    with pytest.raises(Unavailable):
        await waiting


async def test_a_caller_with_too_many_searches_is_refused_and_others_are_not(looking: Feedback) -> None:
    def begin(caller: str) -> "asyncio.Task[Kept]":
        return asyncio.create_task(looking.answer("unknown", 0, time.monotonic() + 60, caller))

    flood = [begin("flood") for _ in range(WAITING_MAX_OF_ONE)]
    await asyncio.sleep(0)
    late, polite = await asyncio.gather(begin("flood"), begin("polite"), return_exceptions=True)
    done = await asyncio.gather(*flood, return_exceptions=True)
    again = await asyncio.gather(begin("flood"), return_exceptions=True)

    assert isinstance(late, Refused)
    assert f"{WAITING_MAX_OF_ONE} searches for answers wait" in str(late)
    assert {type(outcome) for outcome in (polite, *done, *again)} == {AnswerNotFound}


def test_the_newest_answer_is_found_in_whichever_file_it_is(start: Start, folder: Path) -> None:
    folder.mkdir()
    line = {"journal": "answer", "model": "tiny/1", "digest": "d", "request_id": "one", "item": 0}
    line |= {"priority": "interactive", "scores": {"negative": 0.9, "positive": 0.1}, "abstain": False}
    # The file that was begun first was written last, though not with this answer.
    times = {
        "20260101T000000.000000Z-a-1": ("positive", "00:01:00.000Z", 300),
        "20260101T000010.000000Z-b-2": ("negative", "00:02:00.000Z", 120),
    }
    for name, (label, at, written_at) in times.items():
        path = folder / f"{name}.jsonl"
        path.write_bytes(line_of({**line, "label": label, "time": f"1970-01-01T{at}"}))
        os.utime(path, (written_at, written_at))

    server = start(journal=str(folder))
    with server.client() as client:
        assert client.feedback("negative", request_id="one").predicted == "negative"


def test_an_answer_that_abstains_is_counted_apart(start: Start, folder: Path) -> None:
    server = start(journal=str(folder))
    with server.client() as client:
        assert client.classify("the film", request_id="one").abstain
        assert client.feedback("negative", request_id="one").abstain

    abstained = server.metric("sentiment_feedback_total", right="true", abstained="true", model="tiny/1")
    abstained += server.metric("sentiment_feedback_total", right="false", abstained="true", model="tiny/1")
    assert abstained == 1
    assert accuracy(server)[1] == 0


def test_feedback_over_http(kept: RunningServer, answered: Client) -> None:
    named = call(kept, "/v1/classify", {"text": "good"}).headers["x-request-id"]
    answer = call(kept, "/v1/feedback", {"request_id": named, "label": "negative"})

    assert answer.json == {
        "predicted": "positive",
        "right": False,
        "abstain": False,
        "model": {"name": "tiny", "version": 1, "digest": answered.get_model().id.digest},
    }
    assert call(kept, "/v1/feedback", {"text": "bad", "label": "negative"}).json["right"] is True


@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        ({"request_id": "none"}, Code.NOT_FOUND, "the journal has no answer"),
        ({"request_id": "many", "item": 2}, Code.NOT_FOUND, "the journal has no answer"),
        ({"request_id": 'one","item":0,"', "item": 0}, Code.NOT_FOUND, "the journal has no answer"),
        ({"request_id": "x" * 129}, Code.INVALID_ARGUMENT, "request_id: must have 1 to 128 printable ASCII characters, got 129"),
        ({"request_id": "one", "item": -1}, Code.INVALID_ARGUMENT, "item: must be at least 0, got -1"),
        ({"request_id": "one", "model": "paired"}, Code.INVALID_ARGUMENT, "model: is 'paired', but tiny/1 answered"),
        ({"request_id": "one", "label": "neutral"}, Code.INVALID_ARGUMENT, "label: must be one of negative, positive, got 'neutral'"),
        ({"text": "good", "label": ""}, Code.INVALID_ARGUMENT, "label: must be one of negative, positive, got ''"),
        ({"text": "good", "label": None, "model": "nosuch"}, Code.NOT_FOUND, "'nosuch' is not loaded"),
        ({"text": "good", "model": "nosuch"}, Code.NOT_FOUND, "'nosuch' is not loaded"),
        ({"text": ("good", "bad")}, Code.FAILED_PRECONDITION, "reads one text; a pair was given"),
        ({"text": "good", "item": 1}, Code.INVALID_ARGUMENT, "item: must be unset with text, got 1"),
        ({"text": "good", "label": "neutral"}, Code.INVALID_ARGUMENT, "label: must be one of negative, positive, got 'neutral'"),
        ({"text": " "}, Code.INVALID_ARGUMENT, "text: has 1 characters"),
    ],
)
def test_feedback_that_cannot_be_taken_says_why(answered: Client, asked: dict[str, Any], code: grpc.StatusCode, says: str) -> None:
    with pytest.raises(CallFailed) as caught:
        answered.feedback(**{"label": "positive", **asked})

    assert caught.value.code is code
    assert says in caught.value.message


def test_feedback_names_an_answer_or_a_text_and_not_both(kept: RunningServer, answered: Client) -> None:
    for body in ({}, {"request_id": "one", "text": "good"}):
        status, name, message = call(kept, "/v1/feedback", {"label": "positive", **body}).error
        assert (status, name) == (400, "INVALID_ARGUMENT")
        assert "exactly one of them is needed" in message
    for arguments in ({}, {"text": "good", "request_id": "one"}):
        with pytest.raises(ValueError, match="either"):
            answered.feedback("positive", **arguments)  # type: ignore[arg-type]  # one of each type


def test_feedback_tells_a_label_or_that_none_is_right_and_not_both(kept: RunningServer) -> None:
    status, name, message = call(kept, "/v1/feedback", {"text": "good", "label": "positive", "none": True}).error

    assert (status, name, message) == (400, "INVALID_ARGUMENT", "none: must be unset with a label, got label 'positive'")


def test_feedback_without_a_journal_names_the_setting(client: Client) -> None:
    with pytest.raises(CallFailed) as caught:
        client.feedback("positive", "good")

    assert caught.value.code is Code.FAILED_PRECONDITION
    assert "SENTIMENT_JOURNAL" in caught.value.message


def test_front_ends_hand_feedback_to_the_executor_whatever_process_answered(serve: Callable[..., Server], folder: Path) -> None:
    server = serve("--front-ends", "2", "--journal", str(folder), "--journal-texts")
    for number in range(6):
        # Each client has a connection of its own, to one of two front ends.
        with server.client() as one, server.client() as other:
            one.classify("good", request_id=f"id-{number}")
            assert other.feedback(LABELS[number % 2], request_id=f"id-{number}").right is bool(number % 2)
            other.feedback("positive", "great")
    with server.client() as client, pytest.raises(CallFailed) as caught:
        client.feedback("positive", request_id="none")
    shown = [server.total(f"measured_accuracy{name}", model="tiny/1") for name in ("", "_texts")]
    requests = [server.total("requests_total", method="Feedback", model=model, code="OK") for model in ("", "tiny/1")]
    server.process.terminate()
    assert server.finish() == 0

    assert caught.value.code is Code.NOT_FOUND
    assert shown == [pytest.approx(4 / 7), 7]
    assert requests == [6, 6]
    assert len(feedback_rows(folder)) == 7


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    file = tmp_path / "tokens"
    file.write_text(f"shop:{SHOP}\nshop:{SHOP_NEXT}\nweb:{WEB}\n{PLAIN}\n{PLAIN_NEXT}\n")
    return str(file)


def of_token(server: RunningServer | Server, token: str) -> Client:
    return Client(server.target, credentials=Credentials(token=token), options=NO_RETRIES, timeout_s=10)


def outcome(client: Client, request_id: str) -> tuple[grpc.StatusCode, str]:
    """How feedback by a request id ends, with the message of an error."""
    try:
        client.feedback("positive", request_id=request_id)
    except CallFailed as error:
        return error.code, error.message
    return Code.OK, ""


@pytest.mark.parametrize(
    ("asked", "told", "taken"),
    [
        (SHOP, SHOP_NEXT, True),
        (SHOP, WEB, False),
        (SHOP, PLAIN, False),
        (PLAIN, SHOP, False),
        (PLAIN, PLAIN_NEXT, True),
    ],
)
def test_bound_feedback_is_for_answers_to_the_same_name_and_others_are_unknown(
    start: Start, folder: Path, tokens: str, asked: str, told: str, taken: bool
) -> None:
    server = start(journal=str(folder), auth_tokens=tokens, feedback_bound=True)
    with of_token(server, asked) as one, of_token(server, told) as other:
        one.classify("good", request_id="one")
        one.classify_batch(["good", "bad"], request_id="many")

        found, unknown = outcome(other, "one"), outcome(other, "never")
        bodies = [{"request_id": name, "item": 1, "label": "negative"} for name in ("many", "never")]
        over_http = [call(server, "/v1/feedback", body, authorization=f"Bearer {told}") for body in bodies]
        own = outcome(one, "one")

    assert unknown[0] is Code.NOT_FOUND
    assert found == ((Code.OK, "") if taken else unknown)
    assert over_http[1].status == 404
    assert over_http[0].status == (200 if taken else 404)
    assert taken or over_http[0].json == over_http[1].json
    assert own == (Code.OK, "")


def test_a_request_id_that_another_caller_uses_too_hides_no_bound_answer(start: Start, folder: Path, tokens: str) -> None:
    server = start(journal=str(folder), auth_tokens=tokens, feedback_bound=True)
    with of_token(server, SHOP) as shop, of_token(server, WEB) as web:
        shop.classify("good", request_id="one")
        web.classify("bad", request_id="one")

        predicted = [client.feedback("positive", request_id="one").predicted for client in (shop, web)]

    assert predicted == ["positive", "negative"]
    server.stop()
    assert [(row["journal"], row.get("caller")) for row in rows(folder)] == [
        (kind, name) for kind in ("answer", "feedback") for name in ("shop", "web")
    ]


def test_front_ends_bind_feedback_too(serve: Callable[..., Server], folder: Path, tokens: str) -> None:
    server = serve("--front-ends", "2", "--journal", str(folder), "--auth-tokens", tokens, "--feedback-bound")
    with of_token(server, SHOP) as shop, of_token(server, SHOP_NEXT) as again, of_token(server, WEB) as web:
        shop.classify("good", request_id="one")
        shop.classify("good", explain=ExplainOptions(methods=("occlusion",), evidence=False), request_id="explained")

        found = [outcome(client, name) for name in ("one", "explained") for client in (web, again)]
        unknown = outcome(web, "never")

    assert unknown[0] is Code.NOT_FOUND
    assert found == [unknown, (Code.OK, "")] * 2


def test_the_journal_has_no_names_unless_feedback_is_bound(start: Start, folder: Path, tokens: str) -> None:
    server = start(journal=str(folder), auth_tokens=tokens)
    with of_token(server, SHOP) as shop, of_token(server, WEB) as web:
        shop.classify("good", request_id="one")
        assert outcome(web, "one") == (Code.OK, "")
    server.stop()

    assert not [row for row in rows(folder) if "caller" in row]


@pytest.mark.parametrize("given", [{}, {"journal": True}, {"auth_tokens": True}])
def test_feedback_cannot_be_bound_without_tokens_or_a_journal(start: Start, folder: Path, tokens: str, given: dict[str, bool]) -> None:
    values = {"journal": str(folder), "auth_tokens": tokens}

    with pytest.raises(BadSettings, match="feedback_bound is true; it needs journal and auth_tokens"):
        start(feedback_bound=True, **{name: values[name] for name in given})


def test_the_measured_accuracy_is_of_the_last_answers() -> None:
    measured = MeasuredAccuracy()
    for number in range(ANSWERS_MAX):
        assert measured.add(number, "positive", right=number % 2 == 0, abstained=False)
    assert (measured.mean(), measured.texts()) == (0.5, ANSWERS_MAX)
    assert not measured.add(0, "positive", right=True, abstained=False)
    assert measured.add(0, "negative", right=False, abstained=False)
    assert measured.mean() == 0.5 - 1 / ANSWERS_MAX
    # The oldest is forgotten, and that is no longer 0, which was changed.
    assert measured.add("another", "positive", right=True, abstained=True)

    assert measured.texts() == ANSWERS_MAX - 1
    assert not measured.add(0, "negative", right=False, abstained=False)
    assert measured.add(1, "positive", right=False, abstained=False)


def test_a_text_with_the_quotes_of_a_request_id_is_not_taken_for_one(start: Start, folder: Path) -> None:
    server = start(journal=str(folder), journal_texts=True)
    with server.client() as client:
        client.classify(json.dumps({"request_id": "one", "item": 0, "journal": "answer"}, separators=(",", ":")), request_id="other")
        with pytest.raises(CallFailed, match="the journal has no answer"):
            client.feedback("positive", request_id="one")
