"""``Local``: the answers and errors of a server, without one."""

import doctest
import itertools
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from google.protobuf.message import Message

from sentiment import Local
from sentiment import local as module
from sentiment.client import CallFailed, Classification, Client, ExplainOptions, Explanation, Result
from sentiment.errors import BadBundle, BadSettings, OutOfMemory
from sentiment.model.cores import cores_granted
from sentiment.offline import READ, ROWS
from sentiment.settings import Settings
from sentiment_tools.traffic.texts import clauses
from tests.conftest import PLAIN, RunningServer
from tests.english import ENGLISH
from tests.tiny import make_bundle

Either = Client | Local


def told(found: Any) -> Any:
    """All of a result or results but the times."""
    if isinstance(found, Classification):
        given = found.label, found.score, dict(found.scores), found.abstain, found.model, found.tokens, found.truncated
        parts = found.mixed, found.language_suspect, found.sentences, found.sentences_total, dict(found.targets)
        return (*given, *parts, found.explanation and {name: one.words.tolist() for name, one in found.explanation.attributions.items()})
    if isinstance(found, Explanation):
        return found.text, found.text_pair, found.label, found.score, {name: one.words.tolist() for name, one in found.attributions.items()}
    if isinstance(found, CallFailed):
        return found.code, found.message, found.violations
    if isinstance(found, Message):
        return found
    return [told(one) for one in found]


PARTS = "A good film 😀. But an awful end! café w3"
CALLS: dict[str, Callable[[Either], object]] = {
    "text": lambda either: either.classify("a good film"),
    "abstains": lambda either: either.classify("a film"),
    "cut": lambda either: either.classify("good " * 50 + "awful"),
    "windows": lambda either: either.classify("good " * 50 + "awful " * 9, truncation="windows"),
    "refuse": lambda either: either.classify("good " * 50, truncation="refuse"),
    "empty": lambda either: either.classify(""),
    "surrogate": lambda either: either.classify("good \ud800"),
    "too large": lambda either: either.classify("x" * (2**20 + 1)),
    "a pair that it does not read": lambda either: either.classify("good", "film"),
    "sentences": lambda either: either.classify(PARTS, sentences=True),
    "sentences of many": lambda either: either.classify([PARTS, None, "", "good", PARTS * 40], sentences=True),
    "sentences of a pair": lambda either: either.classify("good", "film", sentences=True),
    "targets that it does not read": lambda either: either.classify("good", targets=["film"]),
    "targets of one text that are a column": lambda either: either.classify("good", targets=[["film"]]),
    "this model": lambda either: either.classify("good", model="tiny/1"),
    "another model": lambda either: either.classify("good", model="tiny/2"),
    "options of a server": lambda either: either.classify("good", priority="bulk", request_id="1", timeout_s=60),
    "many": lambda either: either.classify(["good", None, "", "awful \ud800", 7, ("a", "pair"), "awful"]),
    "a generator": lambda either: either.classify(f"w{number % 30} good" for number in range(3000)),
    "an Arrow column": lambda either: either.classify(pa.array(["good", None])),
    "none": lambda either: either.classify([]),
    "many of another model": lambda either: either.classify(["good"], model="other"),
    "in batches": lambda either: either.classify_batch(["good", "bad"], request_id="1"),
    "a batch with missing texts": lambda either: either.classify_batch(["good", None, "", ("a", "pair"), ("a", None), ("a", "\ud800")]),
    "an empty batch": lambda either: either.classify_batch([]),
    "a batch that is too large": lambda either: either.classify_batch(["good"] * 1025),
    "a pair that is not Unicode": lambda either: either.classify("good", "\ud800"),
    "lazily": lambda either: list(either.classify_all(iter(["good", "bad", " "]), timeout_s=9, attempts_max=3)),
    "with an explanation": lambda either: either.classify("a good film", explain=ExplainOptions(methods=["occlusion"]), timeout_s=60),
    "an explanation of windows": lambda either: either.classify("good", explain=ExplainOptions(), truncation="windows"),
    "an explanation without its graph": lambda either: either.classify("good", explain=ExplainOptions(methods=["integrated_gradients"])),
    "an unknown method": lambda either: either.classify("good", explain=ExplainOptions(methods=["magic"])),
    "explanations of several": lambda either: list(
        either.explain_all(["a good film", None, "", ("a", "pair"), "good \ud800", "awful"], options=ExplainOptions(methods=["occlusion"]))
    ),
    "explanations for an unknown label": lambda either: list(either.explain_all(iter(["good", "bad"]), label="nice")),
    "explanations of one string": lambda either: either.explain_all("good"),
    "an explanation of two texts": lambda either: either.explain(["a", "b"]),  # type: ignore[arg-type]  # what is tested
    "an explanation of a number": lambda either: either.explain(5),  # type: ignore[arg-type]  # as above
    "an explanation with a number": lambda either: either.explain("good", 5),  # type: ignore[arg-type]  # as above
    "an explanation of nothing": lambda either: either.explain(" "),
    "an explanation of an unknown label": lambda either: either.explain("good", label="nice"),
    "an unknown truncation": lambda either: either.classify("good", truncation="most"),
    "an unknown priority": lambda either: list(either.classify_all(["good"], priority="most")),
    "one string for many": lambda either: either.classify_batch("good"),
    "an explanation of many": lambda either: either.classify(["good"], explain=ExplainOptions()),
}


def outcome(call: Callable[[Either], object], either: Either) -> object:
    """What a call gives but for its times, or how it fails."""
    try:
        return told(call(either))
    except CallFailed as error:
        return told(error)
    except (TypeError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_has_the_result_or_the_error_that_a_server_gives(call: Callable[[Either], object], local: Local, client: Client) -> None:
    assert outcome(call, local) == outcome(call, client)


def test_a_pair_is_read_as_by_a_server(bundles: Path, start: Callable[..., RunningServer]) -> None:
    pairs = [("good", "film"), ("awful " * 20, "great " * 30), "good"]
    with Local("paired", bundles=bundles) as local, start(model="paired").client() as client:
        assert told(local.classify(pairs)) == told(client.classify(pairs))
        assert told(local.classify("good", "bad")) == told(client.classify("good", "bad"))
        assert told(local.classify(["good"], ["bad"])) == told(client.classify(["good"], ["bad"]))


def test_sentences_and_targets_are_those_of_a_server(tmp_path: Path, start: Callable[..., RunningServer]) -> None:
    make_bundle(tmp_path, three=True)
    texts = [PARTS, "a great film and a bad end. " * 20, None, "good", "\n.\n", "the film"]
    targets = [["film", "End", "battery"], ["film"], [], None, ["film"], ["the film", ""]]
    with Local("tiny", bundles=tmp_path) as local, start(model="tiny", bundles=(tmp_path,)).client() as client:
        here, there = (either.classify(texts, sentences=True, targets=targets) for either in (local, client))
        batch, alone = (either.classify_batch([PARTS], sentences=True, targets=["film"]) for either in (local, client))
        too_many, refused = (told(either.classify(["good"], targets=[str(number) for number in range(17)])) for either in (local, client))

    assert told(here) == told(there)
    assert told(batch) == told(alone)
    assert too_many == refused
    assert [sorted(one.targets) for one in here.answered.values()] == [["End", "battery", "film"], ["film"], [], ["film"]]
    assert [violation.field for failed in here.failures.values() for violation in failed.violations] == ["text", "targets[1]"]
    assert [PARTS[one.start : one.end] for one in here.answered[0].sentences] == [one.text for one in here.answered[0].sentences]


def test_an_explanation_is_that_of_a_server(local: Local, client: Client) -> None:
    options = ExplainOptions(methods=["occlusion", "shapley"], counterfactuals=True)

    here, there = (either.explain("a good film and an awful one", options=options, timeout_s=60) for either in (local, client))

    assert here.summary.complete
    assert here.to_json() | {"summary": None} == there.to_json() | {"summary": None}


@pytest.mark.parametrize("truncation", ["", "windows"])
def test_the_default_bundle_answers_as_a_server_does_bit_for_bit(truncation: str, start: Callable[..., RunningServer]) -> None:
    rng = random.Random(7)
    lengths = [*(rng.randint(1, 5) for _ in range(30)), 20, 80]
    texts = [" ".join(itertools.islice(clauses(rng), length)) for length in lengths]

    # A client without health checks: on a busy machine a server is unhealthy for a while.
    with Local("english") as local, start(bundles=(), model="english").client(timeout_s=60, options=PLAIN) as client:
        together = local.classify(texts, truncation=truncation)
        alone = [local.classify(text, truncation=truncation) for text in texts]
        served = client.classify(texts, truncation=truncation)

    assert (alone[-1].truncated, alone[-1].tokens > 512) == ((True, False) if not truncation else (False, True))
    assert len({answer.label for answer in alone}) > 1
    assert told(alone) == told(together) == told(served)


def test_a_model_describes_itself_as_on_a_server(local: Local, client: Client) -> None:
    here, there = local.get_model("tiny"), client.get_model("tiny")
    assert local.list_models().models[0].id == here.id

    for described in (here, there):
        described.ClearField("limits")
    assert here == there


def test_a_series_keeps_its_index(local: Local) -> None:
    texts = pd.Series(["good", None, "awful"], index=["a", "b", "c"])

    found = local.classify(texts).to_pandas()

    assert found["label"].dropna().to_dict() == {"a": "positive", "c": "negative"}
    assert found["error"].dropna().to_dict() == {"b": "INVALID_ARGUMENT: text: is missing (nan)"}


def test_a_bundle_is_found_by_name_or_folder(bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Path(shutil.copytree(bundles / "tiny/1", tmp_path / "My model"))
    monkeypatch.chdir(bundles)

    for model in ("tiny", "tiny/1", "./tiny", str(bundles / "tiny" / "1"), bundles / "tiny", odd, f"{odd}/"):
        with Local(model, bundles=[tmp_path, str(bundles)], threads=1) as opened:
            assert opened.classifier.bundle.id == "tiny/1"
            assert opened.classify("good", model=str(model)).label == "positive"
    with pytest.raises(BadBundle, match="no bundle 'absent'"):
        Local("absent", bundles=bundles)
    with pytest.raises(BadBundle, match="no such folder"):
        Local(tmp_path / "absent")
    with pytest.raises(BadBundle, match="no bundle 'tmp"):
        Local(Path(shutil.copytree(odd.parent, tmp_path.parent / "tmp_of_it", dirs_exist_ok=True)))
    with pytest.raises(BadSettings, match="No Name"):
        Local("No Name")
    with pytest.raises(ValueError, match="threads must be at least 0"):
        Local("tiny", threads=-1)


def test_the_environment_says_which_bundle_as_for_a_server(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTIMENT_BUNDLES", f"/nowhere:{bundles}")
    monkeypatch.setenv("SENTIMENT_MODEL", "paired/1")
    with Local() as opened:
        assert repr(opened) == "Local('paired/1')"
    monkeypatch.delenv("SENTIMENT_MODEL")
    assert Settings().model == "english"
    with Local() as opened:
        assert opened.classifier.bundle.path == ENGLISH


def test_one_text_needs_no_thread_and_many_no_more_than_the_cores(bundles: Path) -> None:
    before = threading.active_count()
    with Local("tiny", bundles=bundles) as opened:
        opened.classify("good")
        assert threading.active_count() == before

        opened.classify(["good"] * 500)
        assert threading.active_count() <= before + cores_granted()
    assert threading.active_count() == before


def test_threads_that_share_it_get_their_own_answers_and_run_no_more_batches_at_a_time(bundles: Path) -> None:
    running, most, lock = 0, 0, threading.Lock()
    with Local("tiny", bundles=bundles, threads=2) as opened:
        real = opened.classifier.session.run

        def run(*arguments: Any) -> Any:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            try:
                return real(*arguments)
            finally:
                with lock:
                    running -= 1

        opened.classifier.session.run = run  # type: ignore[method-assign]

        def ask(weight: int) -> list[Result]:
            return [opened.classify(f"w{weight}"), *opened.classify_all([f"w{-weight} film"] * 40)]

        with ThreadPoolExecutor(8) as callers:
            found = list(callers.map(ask, range(1, 31)))

    for one, *others in found:
        assert isinstance(one, Classification)
        assert one.label == "positive"
        assert {other.label for other in others if isinstance(other, Classification)} == {"negative"}
    assert len({answer.score for answer, *_ in found if isinstance(answer, Classification)}) == 30
    assert 1 <= most <= 2


def test_texts_are_read_only_two_blocks_ahead(local: Local) -> None:
    read = itertools.count()

    results = local.classify_all("good" for _ in iter(lambda: next(read), -1))
    for taken, _ in enumerate(itertools.islice(results, 5 * ROWS)):
        if taken % 100 == 0:
            ahead = next(read) - taken
            assert ahead <= 2 * ROWS + READ + 100, ahead


def test_an_explanation_waits_for_others_within_its_timeout(local: Local) -> None:
    with local._offline.turn(1), local._offline.turn(1), pytest.raises(CallFailed, match="2 explanations run already") as caught:
        local.explain("good", timeout_s=0.01)
    assert caught.value.code.name == "DEADLINE_EXCEEDED"
    assert local.explain("good", timeout_s=60).label == "positive"


def test_a_timeout_of_zero_is_not_the_default(local: Local) -> None:
    answer = local.classify("a good film", explain=ExplainOptions(methods=["occlusion"]), timeout_s=0)

    assert answer.explanation is not None
    assert not answer.explanation.summary.complete


@pytest.mark.parametrize(("error", "more"), [(OutOfMemory("of 2 GiB"), ": not enough memory"), (RuntimeError("no kernel"), "")])
def test_an_explanation_that_cannot_be_computed_says_so_as_a_server_does(
    error: Exception, more: str, local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(local._offline.explained.session, "run", fail)

    with pytest.raises(CallFailed) as caught:
        local.explain("a good film")

    assert str(caught.value) == f"INTERNAL: the explanation could not be computed{more}"
    assert caught.value.__cause__ is error


def test_a_closed_one_says_so(bundles: Path) -> None:
    with Local("tiny", bundles=bundles) as opened:
        results = opened.classify_all(["good"])
    opened.close()

    for call in (lambda: opened.classify("good"), lambda: opened.classify(["good"]), lambda: next(results), lambda: opened.explain("good")):
        with pytest.raises(ValueError, match="the classifier of tiny/1 is closed"):
            call()


def test_the_example_gives_what_it_shows(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTIMENT_BUNDLES", str(bundles))
    monkeypatch.setenv("SENTIMENT_MODEL", "tiny")

    examples = [test for test in doctest.DocTestFinder(exclude_empty=True).find(Local, globs=vars(module)) if test.examples]
    said: list[str] = []
    for example in examples:
        doctest.DocTestRunner().run(example, out=said.append)

    assert examples
    assert not said, "".join(said)


def in_python(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()


def test_the_package_imports_nothing_until_it_is_asked_for_local() -> None:
    script = "import sys, sentiment; print([name for name in ('numpy', 'grpc', 'onnxruntime', 'sentiment.model') if name in sys.modules])"
    assert in_python(script) == "[]"
    assert in_python("import sentiment.client, sys; print('onnxruntime' in sys.modules)") == "False"


def test_a_missing_runtime_is_said_by_name() -> None:
    script = """
import sys
sys.modules["onnxruntime"] = None
try:
    from sentiment import Local
except ModuleNotFoundError as error:
    print(error)
"""
    assert in_python(script) == "Local needs onnxruntime, which is not installed: pip install 'sentiment-service[cpu]', or [gpu]"
