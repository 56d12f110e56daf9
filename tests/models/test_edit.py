"""Edits that turn a text's sentiment, and which of them are kept."""

import json
from pathlib import Path

import pytest
import torch

from sentiment_models.cli import main
from sentiment_models.data.edits import ANTONYMS, edits, turned
from sentiment_models.export.export import Exported
from sentiment_models.training import edit as edit_module
from sentiment_models.training.edit import edit


@pytest.mark.parametrize(
    ("text", "other", "count"),
    [
        ("A great film.", "A terrible film.", 1),
        ("An excellent film, an EXCELLENT cast.", "An awful film, an AWFUL cast.", 2),
        ("It was an amazing, well-acted treat.", "It was an appalling, badly-acted ordeal.", 3),
        ("What a bad idea; an entertaining one.", "What a good idea; a boring one.", 2),
        ("I loved it. Highly recommended!", "I hated it. Best avoided!", 2),
        ("The goodwill of a lover, a not-so-bad idea", "The goodwill of a lover, a not-so-bad idea", 0),
        ("", "", 0),
    ],
)
def test_words_turn_with_their_capitals_and_articles(text: str, other: str, count: int) -> None:
    assert turned(text) == (other, count)


def test_the_closing_sentence_is_turned_before_the_whole() -> None:
    assert list(edits("A great cast.  I loved\nit. The end is bad.")) == [
        "A great cast. I loved it. The end is good.",
        "A terrible cast. I hated it. The end is good.",
    ]
    assert list(edits("A great cast I loved.")) == ["A terrible cast I hated."]
    assert list(edits("A great cast. The end.")) == []
    assert list(edits("A great cast I loved. The end.")) == ["A terrible cast I hated. The end."]


def test_each_antonym_turns_and_turns_back_to_a_word_of_its_first_side() -> None:
    lines = [line.split("\t") for line in ANTONYMS.read_text(encoding="utf-8").splitlines()]
    good, bad = ({pair[side] for pair in lines} for side in (0, 1))

    assert all(len(pair) == 2 for pair in lines)
    assert not good & bad
    for one, other in lines:
        assert turned(one) == (other, 1)
        assert turned(other)[0] in good


def test_a_pair_is_kept_if_the_teacher_is_sure_of_both(
    exported: tuple[Path, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = {
        "A great cast I loved. A bad end.": 0.95,
        "A great cast I loved. A good end.": 0.97,
        "A terrible cast I hated. A good end.": 0.02,
        "A bad and dull film.": 0.3,
        "A good and exciting film.": 0.99,
        "good, best": 0.92,
        "bad, worst": 0.11,
    }
    monkeypatch.setattr(
        edit_module, "answers_of", lambda _teacher, _temperature, texts, *_: [[1 - stated[text], stated[text]] for text in texts]
    )
    file = tmp_path / "texts.tsv"
    file.write_text("1\tA great cast I loved. A bad end.\n0\tA bad and dull film.\n1\tgood, best\n1\tgood alone\n")

    found = edit(exported[0], [str(file)], tmp_path / "out.jsonl", torch.device("cpu"), sure=0.9)

    assert found == (1, 3)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["label"], row["text"], row["phenomenon"], row["pair"]) for row in rows] == [
        ("positive", "A great cast I loved. A bad end.", "edited", 1),
        ("negative", "A terrible cast I hated. A good end.", "edited", 1),
    ]


def test_the_command_says_how_many_pairs_it_wrote(
    exported: tuple[Path, Exported], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts.tsv"
    file.write_text("1\tA great cast I loved.\n0\tnothing to turn\n")
    out = tmp_path / "out.jsonl"

    assert main(["edit", str(exported[0]), str(file), "--out", str(out), "--sure", "0.5"]) == 0
    assert f"{out}: {len(out.read_text().splitlines()) // 2} pairs of 1 texts that have an edit" in capsys.readouterr().out
    assert main(["edit", str(exported[0]), str(file), "--out", str(out), "--sure", "0.4"]) == 2
