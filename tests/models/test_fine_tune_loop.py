"""The loop of the guides on the default bundle: fine-tune, export, serve, feedback, fine-tune again from the result, export, serve."""

import json
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentiment.client import Client
from sentiment.model.bundle import Bundle, Manifest, load_bundle
from sentiment_models.cli import main
from sentiment_models.export.inherited import inherited_of
from tests.english import ENGLISH, NAME
from tests.models.tiny_bert import save_tiny_bert, sentences

TEXTS = 200


def _texts(folder: Path) -> Path:
    """Reviews of parcels, half of them good."""
    rng = random.Random(1)
    good = ("arrived early", "was packed with care", "works as promised", "made us smile")
    bad = ("came broken", "was a week late", "does not work", "smells of glue")
    rows = []
    for number in range(TEXTS):
        label = number % 2
        said = ", and it ".join(rng.sample((bad, good)[label], 2))
        rows.append(f"{label}\tParcel {number}: the {rng.choice(('lamp', 'chair', 'kettle', 'book'))} {said}.\n")
    file = folder / "mine.tsv"
    file.write_text("".join(rows), encoding="utf-8")
    return file


@contextmanager
def _served(bundles: Path, journal: Path) -> Iterator[Client]:
    listen = ("--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--drain-wait-s", "0")
    command = (sys.executable, "-m", "sentiment", "serve", *listen, "--bundles", str(bundles), "--model", "mine")
    server = subprocess.Popen((*command, "--journal", str(journal), "--journal-texts"), stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr
        lines = (json.loads(line) for line in server.stderr)
        ready = next(line for line in lines if line["event"] in ("ready", "cannot_serve"))
        assert ready["event"] == "ready", ready
        with Client(ready["grpc"]) as client:
            yield client
    finally:
        server.terminate()
        server.communicate(timeout=120)
    assert server.returncode == 0


def _round(base: Path, data: list[Path], run: Path, bundle: Path) -> Bundle:
    """``train`` and ``export`` as the guide has them, with fewer tokens and evaluations to be quick."""
    files = [str(file) for file in data]
    train = ["train", "--base", str(base), *(f"--data={file}" for file in files), "--learning-rate", "3e-5", "--out", str(run)]
    assert main([*train, "--max-tokens", "32", "--evaluations-per-epoch", "1"]) == 0
    export = ["export", str(run / "best"), "--dev", str(run / "dev.jsonl"), "--texts", *files, "--name", "mine", "--out", str(bundle)]
    assert main(export) == 0
    return load_bundle(bundle)


def test_a_model_learns_from_200_texts_and_again_from_the_feedback_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, journal, bundles = _texts(tmp_path), tmp_path / "journal", tmp_path / "bundles"

    first = _round(ENGLISH, [mine], tmp_path / "run1", bundles / "mine" / "1")
    printed = capsys.readouterr()
    with _served(bundles, journal) as client:
        answer = client.classify("The parcel came broken.", request_id="8a0ff4f1-2d5c-4cbb-9d1c-6d9d6b3f1c55")
        taken = client.feedback("negative", request_id="8a0ff4f1-2d5c-4cbb-9d1c-6d9d6b3f1c55")
        client.feedback("positive", "not bad at all")
        study = client.get_model().explanation_study
    labelled = tmp_path / "labelled.jsonl"
    labelled.write_text("".join(file.read_text() for file in sorted(journal.glob("*.jsonl"))), encoding="utf-8")
    second = _round(bundles / "mine" / "1", [mine, labelled], tmp_path / "run2", bundles / "mine" / "2")
    with _served(bundles, journal) as client:
        again = client.classify("The parcel came broken.")

    assert (answer.label, taken.right, again.label) == ("negative", True, "negative")
    assert (answer.model.version, again.model.version) == (1, 2)
    known = load_bundle(ENGLISH).manifest
    for bundle in (first, second):
        _check_kept(bundle, known)
    assert first.manifest.references["training"].texts == TEXTS
    # The answer in the journal; the text that was only labelled is not an answer.
    assert second.manifest.references["training"].texts == TEXTS + 1
    assert known.explanations
    assert study.dataset == f"{known.explanations.dataset} (measured on {NAME}, before this fine-tuning)"
    assert f" (with the base's: {known.calibration.temperature:.3f}, 95 % sure: " in printed.out
    assert f"--texts {mine} --output ..." in printed.out


def test_the_command_that_train_prints_exports_a_model_of_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "my data", tmp_path / "tiny" / "2"
    base, rows = save_tiny_bert(folder / "base"), sentences(120)
    files = {}
    for column in ("reply", "answer"):
        files[column] = folder / f"{column}.csv"
        lines = (f'{label},"{text}","{other}"' for (label, text), (_, other) in zip(rows, reversed(rows), strict=True))
        files[column].write_text("\n".join([f"label,text,{column}", *lines]))
    assert main(["export", str(base), "--pairs", "--output", str(tmp_path / "tiny" / "1")]) == 0
    train = ["train", "--base", str(tmp_path / "tiny" / "1"), "--data", str(files["reply"]), "--pair", "reply", "--max-tokens", "32"]
    assert main([*train, "--output", str(folder / "run")]) == 0

    _, *command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    command[-1] = str(out)

    assert command[-5:-2] == ["--pairs", "--pair", "reply"]
    assert main([one for one in command if one != "--pairs"]) == 0
    manifest = load_bundle(out).manifest
    assert (manifest.pairs, manifest.references["training"].texts) == (True, 120)
    assert main([str(files["answer"]) if one == str(files["reply"]) else one for one in command] + ["--overwrite"]) == 1
    assert "neither reply (--pair) nor text_pair" in capsys.readouterr().err


def _check_kept(bundle: Bundle, known: Manifest) -> None:
    """Check what a fine-tune has of its base, and that the rest is its own."""
    found = bundle.manifest
    assert (found.default_truncation, found.head_tail, found.windows) == (known.default_truncation, known.head_tail, known.windows)
    assert known.explanations
    assert found.explanations == known.explanations.model_copy(update={"bundle": NAME})
    assert found.references.keys() == {"training"}
    assert 0.5 < found.calibration.temperature < 2
    assert found.calibration.abstain_below == known.calibration.abstain_below
    handed, original = inherited_of(bundle.path), inherited_of(ENGLISH)
    assert handed
    assert original
    assert handed.spellings == original.spellings
    assert len(handed.spellings) > 100_000
