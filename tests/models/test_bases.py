"""What a run begins with: a folder, a model of the hub only if it is called one, and checkpoints that transformers 5 saved."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from sentiment_models.cli import main
from sentiment_models.errors import BadCheckpoint
from sentiment_models.training.bases import folder_of, name_of
from tests.models.test_refusals import READERS
from tests.models.tiny_bert import save_tiny_bert, sentences, write_tsv
from tests.models.tiny_families import TINY, save_tiny

# Their bases may be models of the hub; the other commands read folders.
HUBS = ("train", "pretrain", "scratch", "import")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Refuses connections and look-ups; the list has what was asked for."""
    asked: list[object] = []

    def refuse(*given: Any, **_: Any) -> Any:
        asked.append(given)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return asked


@pytest.mark.parametrize("command", [*READERS, "scratch", "edit"])
def test_a_missing_folder_is_reported_without_asking_a_hub(command: str, offline: list[object], refused: Callable[..., str]) -> None:
    own = {
        "scratch": (["scratch", "--data", "DATA", "--test", "DATA", "--grid", "none", "--out", "OUT", "--base"], []),
        "edit": (["edit"], ["DATA", "--out", "OUT"]),
    }
    before, behind = {**READERS, **own}[command]

    for base in ("./mdoel", "models/english", "no/such", "mdoel"):
        said = refused(*before, f"tiny={base}" if command == "scratch" else base, *behind)
        assert said.startswith(f"error: {base if command in HUBS else Path(base)}: no such folder")
    assert offline == []


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ({}, "no checkpoint or bundle in this folder: it has no config.json"),
        ({"2/config.json": "{}", "10/config.json": "{}", "1.record.json": ""}, "no config.json; did you mean /base/2 or /base/10?"),
        ({"config.json": "{}"}, "got None"),
    ],
    ids=["empty", "the version is forgotten", "no family"],
)
def test_a_folder_without_a_model_is_reported_in_one_line(
    command: str, inside: dict[str, str], said: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for name, content in inside.items():
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text(content)
    before, behind = READERS[command]

    told = refused(*before, base, *behind)

    assert told.startswith("error: ")
    assert told.endswith(said)
    assert len(told) < 400


def test_a_model_of_the_hub_comes_from_its_cache_or_fails_in_one_line(
    offline: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / "abc"
    save_tiny_bert(snapshot)
    (tmp_path / "models--org--tiny" / "refs").mkdir()
    (tmp_path / "models--org--tiny" / "refs" / "main").write_text("abc")
    download = huggingface_hub.snapshot_download
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **given: download(name, cache_dir=tmp_path, **given))

    assert (folder_of("hub:org/tiny"), name_of("hub:org/tiny")) == (str(snapshot), "org/tiny")
    with pytest.raises(BadCheckpoint, match=r"^hub:org/absent: not in the hub's cache and cannot be downloaded: [^\n]+$"):
        folder_of("hub:org/absent")
    with pytest.raises(BadCheckpoint, match=r"^hub:a/b/c: not in the hub's cache and cannot be downloaded: [^\n]+$"):
        folder_of("hub:a/b/c")


def as_transformers_5(folder: Path, kind: str, further: bool) -> Path:
    """Change what transformers 4 saved into what transformers 5.24 does: fewer files, other names for the tokenizer's class and tokens."""
    for name in ("vocab.txt", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    file = folder / "tokenizer_config.json"
    saved = json.loads(file.read_text())
    del saved["added_tokens_decoder"], saved["extra_special_tokens"]
    more = {"extra_special_tokens": ["the", "film"]} if further else {}
    file.write_text(json.dumps({**saved, **more, "backend": "tokenizers", "is_local": True, "tokenizer_class": kind}))
    config = json.loads((folder / "config.json").read_text())
    config |= {"tie_word_embeddings": True, "is_decoder": False, "bos_token_id": None, "transformers_version": "5.24.0"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("further", [False, True], ids=["plain", "further tokens"])
@pytest.mark.parametrize("kind", ["TokenizersBackend", "BertTokenizer"])
def test_a_checkpoint_of_transformers_5_trains_and_labels_as_one_of_transformers_4(
    kind: str, further: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    four = save_tiny_bert(tmp_path / "four")
    five = as_transformers_5(shutil.copytree(four, tmp_path / "five"), kind, further)
    data = str(write_tsv(tmp_path / "data.tsv", sentences(60)))

    labelled = []
    for base in (four, five):
        out = tmp_path / f"{base.name}.jsonl"
        assert main(["label", str(base), data, "--out", str(out)]) == 0
        labelled.append([json.loads(line)["probabilities"] for line in out.read_text().splitlines()])
        out = tmp_path / f"{base.name} out"
        sizes = ["--dev-fraction", "0.2", "--max-tokens", "32"]
        assert main(["train", "--base", str(base), "--data", data, "--out", str(out), *sizes]) == 0

    assert labelled[0] == labelled[1]
    # It is saved with the names of the version in use.
    saved = json.loads((tmp_path / "five out" / "best" / "tokenizer_config.json").read_text())
    assert saved["tokenizer_class"].startswith("BertTokenizer" if kind == "BertTokenizer" else "PreTrainedTokenizerFast")
    assert "TokenizersBackend" not in capsys.readouterr().err


@pytest.mark.parametrize("family", ["roberta", "albert", "xlnet", "mpnet"])
def test_a_tokenizer_of_another_family_that_transformers_5_saved_labels(family: str, tmp_path: Path) -> None:
    checkpoint = as_transformers_5(save_tiny(tmp_path / family, TINY[family]), "TokenizersBackend", further=False)
    (tmp_path / "texts.txt").write_text("the film was good\n")

    assert main(["label", str(checkpoint), str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out.jsonl")]) == 0
