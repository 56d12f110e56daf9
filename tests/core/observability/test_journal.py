"""The journal: what it keeps of answers, what it does not, and its files."""

import errno
import fcntl
import json
import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog.testing

from sentiment.errors import BadSettings
from sentiment.observability import journal_files
from sentiment.observability.journal_files import JournalFiles, files_of
from sentiment.observability.writing_thread import WritingThread
from sentiment.oip import inference_pb2_grpc as oip_grpc
from sentiment.settings import Settings
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import RunningServer
from tests.core.grpc.test_oip import asked
from tests.core.http.http import call
from tests.core.servers import PATIENCE_S, Server

Start = Callable[..., RunningServer]
# No other text, label or name has it.
SECRET = "zanzibar"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def rows_of(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The objects of a file's lines. A torn last line, of a process that was killed, is left out."""
    return (json.loads(line) for line in lines if line.endswith(b"\n"))


def rows(folder: Path) -> list[dict[str, Any]]:
    """All objects, file by file."""
    return [row for path in files_of(folder) for row in rows_of(path.open("rb"))]


def test_an_answer_is_kept_whichever_way_it_came_with_its_request_and_place(start: Start, folder: Path) -> None:
    server = start(journal=str(folder))
    before = datetime.now(UTC)
    with grpc.insecure_channel(server.target) as channel:
        stub: Any = pb_grpc.SentimentServiceStub(channel)
        metadata = lambda name: (("x-request-id", name),)  # noqa: E731
        answer = stub.Classify(pb.ClassifyRequest(text="a good film"), metadata=metadata("one"))
        items = [pb.Item(text=text) for text in ("bad", "", "great")]
        stub.ClassifyBatch(pb.ClassifyBatchRequest(items=items), metadata=metadata("many"))
        stream = [pb.ClassifyStreamRequest(id="own", item=pb.Item(text="awful " * 40))]
        list(stub.ClassifyStream(iter(stream), metadata=metadata("stream")))
        oip_grpc.GRPCInferenceServiceStub(channel).ModelInfer(asked("good", "bad"), metadata=metadata("oip"))
    call(server, "/v1/classify", {"text": "good"}, x_request_id="http")
    call(server, "/v1/classify", {"text": "good"})
    server.stop()

    found = rows(folder)
    assert [(row["request_id"], row["item"]) for row in found[:-1]] == [
        *(("one", 0), ("many", 0), ("many", 2), ("stream", 0)),
        *(("oip", 0), ("oip", 1), ("http", 0)),
    ]
    assert re.fullmatch(r"[0-9a-f]{32}", found[-1]["request_id"])
    at = datetime.fromisoformat(found[0].pop("time"))
    assert before - timedelta(milliseconds=1) <= at <= datetime.now(UTC)
    assert found[0] == {
        "journal": "answer",
        "model": "tiny/1",
        "digest": answer.model.digest,
        "request_id": "one",
        "item": 0,
        "priority": "interactive",
        "tokens": 5,
        "truncated": False,
        "early": False,
        "label": "positive",
        "abstain": False,
        "scores": pytest.approx({one.label: one.score for one in answer.prediction.scores}, abs=1e-6),
    }
    assert (found[3]["truncated"], found[3]["tokens"], found[3]["priority"], found[3]["label"]) == (True, 32, "bulk", "negative")
    assert server.metric("sentiment_journal_lines_total") == len(found) == 8


def test_nothing_of_a_text_is_kept_without_the_second_setting(start: Start, folder: Path) -> None:
    server = start(journal=str(folder))
    with server.client() as client:
        client.classify(f"{SECRET} is good")
        client.classify_batch([f"{SECRET} is bad"])
    server.stop()

    assert len(rows(folder)) == 2
    assert not [path for path in folder.iterdir() if SECRET.encode() in path.read_bytes()]


def test_texts_are_kept_as_they_were_sent_with_the_second_setting(start: Start, folder: Path) -> None:
    server = start(journal=str(folder), journal_texts=True, models=("paired",))
    odd = 'a\n"good"\r\u2028 \U0001f600 film'
    with server.client() as client:
        client.classify(odd)
        client.classify("good", "bad", model="paired")
    server.stop()

    one, pair = rows(folder)
    assert (one["text"], "text_pair" in one) == (odd, False)
    assert (pair["text"], pair["text_pair"], pair["model"]) == ("good", "bad", "paired/1")


@pytest.mark.parametrize("texts", [False, True])
def test_what_waits_for_a_disk_that_hangs_has_no_text_that_is_not_written_and_is_bounded(start: Start, folder: Path, texts: bool) -> None:
    server = start(journal=str(folder), journal_texts=texts)
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    # Four bytes a character: half a MiB in memory.
    wide = "\U0001f600 " * 2**16 + "good"
    journal = server.journal
    assert journal is not None
    with server.client() as client:
        for _ in range(20):
            client.classify(wide, timeout_s=PATIENCE_S)
        client.feedback("positive", "good")
    waiting = [entry for entry, _ in journal.thread._waiting]
    os.close(held)
    server.stop()

    assert {entry.text for entry in waiting} == ({wide, "good"} if texts else {None})
    assert (len(waiting), journal.thread.dropped) == ((16, 5) if texts else (21, 0))


def test_a_share_of_the_answers_is_kept(start: Start, folder: Path) -> None:
    random.seed(20)
    server = start(journal=str(folder), journal_share=0.25)
    with server.client() as client:
        client.classify_batch(["good"] * 400)
    server.stop()

    assert 60 <= len(rows(folder)) <= 140


def test_without_the_setting_there_is_no_thread_and_no_count(start: Start) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    server = start()
    with server.client() as client:
        client.classify("good")

    started = {thread.name for thread in threading.enumerate() if thread.ident not in before}
    assert started
    assert "journal" not in started
    assert server.journal is None
    assert server.metric("sentiment_journal_lines_total") == server.metric("sentiment_journal_lines_dropped_total") == 0


def test_files_are_readable_by_the_servers_user_only(start: Start, folder: Path) -> None:
    before = os.umask(0)
    try:
        server = start(journal=str(folder))
        with server.client() as client:
            client.classify("good")
        server.stop()
    finally:
        os.umask(before)

    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    assert [oct(path.stat().st_mode & 0o777) for path in folder.iterdir()] == ["0o600"]


def test_a_killed_server_leaves_whole_lines_and_a_later_one_begins_another_file(serve: Callable[..., Server], folder: Path) -> None:
    server = serve("--journal", str(folder), "--journal-texts")
    with server.client() as client:
        # Enough that some wait for the disk when the process is killed.
        for _ in range(10):
            client.classify_batch(["a good film " * 8] * 512, timeout_s=PATIENCE_S)
        written = server.total("journal_lines_total")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    (killed,) = files_of(folder)
    later = serve("--journal", str(folder))
    with later.client() as client:
        client.classify("bad")
    later.process.terminate()
    assert later.finish() == 0

    lines = killed.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["text"] for line in lines[:-1]] == ["a good film " * 8] * (len(lines) - 1)
    assert 0 < written <= len(list(rows_of(lines))) <= 10 * 512
    assert len(files_of(folder)) == 2
    assert rows(folder)[-1]["label"] == "negative"


def test_each_process_of_a_server_with_front_ends_writes_a_file_of_its_own(serve: Callable[..., Server], folder: Path) -> None:
    server = serve("--journal", str(folder), "--front-ends", "2")
    for _ in range(20):
        # Each has a connection of its own, which one of the front ends takes.
        with server.client() as client:
            client.classify("good")
    call(server, "/v1/classify", {"text": "bad"})  # type: ignore[arg-type]  # a server, too
    server.process.terminate()
    assert server.finish() == 0

    found = {path.name.split("-", 1)[1].rsplit("-", 1)[0]: [row["label"] for row in rows_of(path.open("rb"))] for path in files_of(folder)}
    assert found["executor"] == ["negative"]
    assert sum(len(labels) for name, labels in found.items() if name.startswith("front-")) == 20
    assert {"executor"} < set(found) <= {"executor", "front-0", "front-1"}


@pytest.mark.parametrize("front_ends", ["0", "2"])
def test_the_next_server_may_begin_while_this_one_drains(serve: Callable[..., Server], folder: Path, front_ends: str) -> None:
    flags = ("--journal", str(folder), "--front-ends", front_ends)
    draining = serve(*flags, "--drain-wait-s", "600")
    draining.process.terminate()
    draining.wait_for("draining")
    with serve(*flags).client() as client, draining.client() as other:
        client.classify("good")
        other.classify("bad")

    assert draining.process.poll() is None


@pytest.mark.parametrize("front_ends", ["0", "2"])
def test_a_server_that_was_killed_leaves_the_folder_to_the_next(serve: Callable[..., Server], folder: Path, front_ends: str) -> None:
    flags = ("--journal", str(folder), "--front-ends", front_ends)
    serve(*flags).end()

    serve(*flags)


def test_a_full_disk_without_room_for_the_lock_stops_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(journal_files, "_check", lambda _: None)
    monkeypatch.setattr(os, "open", full)

    with journal_files.held(str(tmp_path)) as let_next_in:
        let_next_in()


class Clock:
    """A second later at each read."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.time += timedelta(seconds=1)
        return self.time


def line(number: int, size: int = 100) -> bytes:
    return json.dumps({"n": f"{number:08}".ljust(size - 9, ".")}).encode()[: size - 3] + b'"}\n'


def test_all_files_together_stay_within_the_limit_and_the_oldest_go_first(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng, clock = random.Random(seed), Clock()
    processes = [JournalFiles(tmp_path, f"front-{number}", 3, 10_000, 1000, clock) for number in range(3)]
    other = tmp_path / "labels.jsonl"
    other.write_bytes(b"x" * 5000)

    for number in range(0, 3000, 10):
        lines = [line(one, rng.choice((100, 333, 900))) for one in range(number, number + 10)]
        assert rng.choice(processes).append(lines) == 10
        sizes = [path.stat().st_size for path in files_of(tmp_path)]
        assert sum(sizes) <= 10_000
        assert max(sizes) <= 1000

    kept = {int(row["n"][:8]) for row in rows(tmp_path)}
    # Seven files have ended, of at least two lines each, and hold the newest; a process that waits keeps its file.
    assert max(kept) == 2999
    assert sorted(kept)[-12] > 2900
    assert other.stat().st_size == 5000


def test_a_file_that_another_process_still_writes_is_not_removed_however_old(tmp_path: Path) -> None:
    clock = Clock()
    idle, busy = (JournalFiles(tmp_path, name, 2, 5000, 1000, clock) for name in ("idle", "busy"))
    idle.append([line(1)])
    for number in range(500):
        busy.append([line(number)])
    assert idle.append([line(2)]) == 1
    idle.close()

    (path,) = [path for path in files_of(tmp_path) if "idle" in path.name]
    assert [row["n"][:8] for row in rows_of(path.open("rb"))] == ["00000001", "00000002"]
    # Nobody writes it now.
    for number in range(100):
        busy.append([line(number)])
    assert not path.exists()


def test_more_servers_in_the_folder_than_the_limit_allows_write_nothing(tmp_path: Path) -> None:
    files = [JournalFiles(tmp_path, f"server-{number}", 1, 2000, 1000, Clock()) for number in range(3)]

    assert [one.append([line(1)]) for one in files] == [1, 1, 0]
    files[0].close()
    assert files[2].append([line(1)]) == 1


def test_small_files_are_bounded_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentiment.observability.journal_files.FILES_MAX", 5)
    clock = Clock()
    for number in range(20):
        files = JournalFiles(tmp_path, "server", 1, 10**6, 1000, clock)
        files.append([line(number)])
        files.close()

    assert [int(row["n"][:8]) for row in rows(tmp_path)] == [15, 16, 17, 18, 19]


def test_a_line_longer_than_a_file_may_be_is_not_written_and_logged_once_and_the_others_are(tmp_path: Path) -> None:
    files = JournalFiles(tmp_path, "server", 1, 10_000, 1000, Clock())

    with structlog.testing.capture_logs() as logged:
        assert files.append([line(1), line(2, 1001), line(3, 1000)]) == 2
        assert files.append([line(4, 1001)]) == 0

    assert [(one["event"], one["bytes"], one["limit"]) for one in logged] == [("journal_line_too_long", 1001, 1000)]
    assert [int(row["n"][:8]) for row in rows(tmp_path)] == [1, 3]


def test_a_removed_file_or_folder_costs_lines_until_there_is_one_again(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    files = JournalFiles(folder, "server", 1, 10_000, 1000, Clock())
    assert files.append([line(1)]) == 1
    files_of(folder)[0].unlink()
    assert files.append([line(2)]) == 0
    assert files.append([line(3)]) == 1
    files_of(folder)[0].unlink()
    folder.rmdir()
    assert files.append([line(4)]) == files.append([line(5)]) == 0
    folder.mkdir()

    assert files.append([line(6)]) == 1
    assert [int(row["n"][:8]) for row in rows(folder)] == [6]


def unusable(folder: Path, **changes: Any) -> str:
    limits = {"processes": 1, "bytes_max": 2**20, "file_bytes_max": 2**16, **changes}
    with pytest.raises(BadSettings) as caught:
        JournalFiles(folder, "server", **limits)
    return str(caught.value)


def test_an_unusable_folder_stops_the_start_with_the_reason(tmp_path: Path, start: Start) -> None:
    file = tmp_path / "file"
    file.touch()

    assert unusable(file) == f"journal = {str(file)!r}: is not a folder"
    assert "cannot be created: No such file or directory" in unusable(tmp_path / "no" / "folder")
    assert "journal_bytes_max is 131072; 2 processes" in unusable(tmp_path, processes=2, bytes_max=2**17)
    assert "at least 196608 are needed" in unusable(tmp_path, processes=2, bytes_max=2**17)
    with pytest.raises(BadSettings, match="is not a folder"):
        start(journal=str(file))


def test_a_folder_without_permission_stops_the_start(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    user = os.getuid()
    # Root may write everywhere, but not who starts a program with root's rights: permission is that of the real user.
    os.setreuid(user or 65534, -1)
    try:
        assert f"user {os.geteuid()} cannot write there" in unusable(tmp_path)
    finally:
        os.setreuid(user, -1)


def test_a_hanging_disk_delays_no_call_and_dropped_lines_are_counted(tmp_path: Path) -> None:
    """The folder's lock is held, so that no file can be begun: the thread waits as for a disk."""
    files = JournalFiles(tmp_path, "server", 1, 10_000, 1000, Clock())
    lost: list[int] = []
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    thread = WritingThread("journal", files.append, lost.append, bytes_max=500, lines_max=4)
    for number in range(8):
        thread.put(line(number), 100)
    assert (thread.written, thread.dropped, thread.end(0.01)) == (0, 3, False)
    os.close(held)

    assert thread.end(20)
    thread.put(line(9), 100)
    assert (thread.written, thread.dropped, lost) == (5, 4, [3])
    assert [int(row["n"][:8]) for row in rows(tmp_path)] == [0, 1, 2, 3, 4]


def test_the_journal_is_off_unless_set() -> None:
    assert (Settings().journal, Settings().journal_texts) == ("", False)
