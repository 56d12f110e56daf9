"""The training files of the default bundle: what is kept back, and the labels of targets and of whole texts."""

import gzip
import json
from pathlib import Path

import pytest

from sentiment_models.cli import main
from sentiment_models.data.english_texts import ASPECTS, KEPT, PRODUCTS, is_kept, prepare

Lines = dict[str, list[str]]


def first(pattern: str, share: float, wanted: bool = True) -> str:
    """The first text of a pattern that is kept back at this share, or that is not."""
    return next(text for number in range(1000) if is_kept(text := pattern.format(number), share) is wanted)


TWEET = first("Nothing works since update {}!", KEPT["tweets"])
SENTENCE = first("a film about house {} and the mothers who wait in it", KEPT["sst5"])
LEARNED = first("a film about street {} that never comes to an end at all", KEPT["sst5"], wanted=False)


def aspects(text: str, **terms: str) -> str:
    return json.dumps({"text": text, "aspects": [{"term": term, "polarity": polarity} for term, polarity in terms.items()]})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of data sets, most of one text each."""
    plain = {f"{name}/train.tsv.gz": [f"neutral\tthe {name} of today"] for name in ("tweets", "forum", "support", "sst5", "mr", "imdb")}
    products = {f"products/{name}_train.tsv.gz": [f"1\ta {name} that lasts"] for name in PRODUCTS}
    files: Lines = {
        **plain,
        **products,
        "tweets/train.tsv.gz": [f"negative\t{TWEET}", "positive\tthanks for all of it"],
        "forum/train.tsv.gz": [f"negative\t{TWEET.upper()}!!"],
        "sst5/train.tsv.gz": [f"very positive\t{SENTENCE}", f"negative\t{LEARNED}"],
        "sst2/train.tsv.gz": ["1\tthe mothers who wait", f"0\t{LEARNED}", "0\tnever comes"],
        "amazon/dvd.tsv.gz": ["0\tit broke"],
        "imdb/unlabelled.txt.gz": ["a film"],
        "products/unlabelled.txt.gz": ["a pan"],
        **{f"aspects/{name}_train.jsonl.gz": [] for name in ASPECTS[1:]},
        "aspects/restaurants_mixed_train.jsonl.gz": [
            aspects(
                first("the food of day {} was good and the staff rude", KEPT["targets"], wanted=False), food="positive", staff="negative"
            ),
            aspects(first("the food of day {} was good at this table", KEPT["targets"], wanted=False), food="positive", table="neutral"),
            aspects(first("we had the table of day {}", KEPT["targets"], wanted=False), table="neutral"),
            aspects(first("the wine of day {}", KEPT["targets"], wanted=False), wine="conflict"),
        ],
        "headlines/train.jsonl.gz": [aspects("Acme up, Bolt down", Acme="positive", Bolt="negative")],
    }
    for name, content in files.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in content)
    return tmp_path / "data"


def test_a_text_that_is_kept_back_is_in_no_file_to_learn_from_however_it_is_written(data: Path) -> None:
    files = prepare(data)

    assert [row["text"] for row in files["kept/tweets"]] == [TWEET]
    assert [row["text"] for row in files["tweets"]] == ["thanks for all of it"]
    assert files["forum"] == []


def test_a_phrase_of_a_sentence_that_is_kept_back_is_kept_back_too_and_the_others_are_split_by_length(data: Path) -> None:
    files = prepare(data)

    assert [row["text"] for row in files["kept/sst5"]] == [SENTENCE]
    assert [row["text"] for row in files["kept/sst2"]] == ["the mothers who wait"]
    assert [row["text"] for row in files["sst2_long"]] == [LEARNED]
    assert [row["text"] for row in files["sst2_short"]] == ["never comes"]


def test_labels_of_five_and_of_two_become_three(data: Path) -> None:
    files = prepare(data)

    assert [files[name][0]["label"] for name in ("kept/sst5", "sst5", "dvd", "products")] == [
        "positive",
        "negative",
        "negative",
        "positive",
    ]


def test_a_whole_text_is_mixed_if_it_praises_and_blames_and_neutral_if_it_does_neither(data: Path) -> None:
    wholes = prepare(data)["aspects_whole"]

    assert [row["label"] for row in wholes] == ["mixed", "positive", "neutral"]


def test_each_target_is_a_pair_and_one_that_the_text_does_not_name_is_neutral(data: Path) -> None:
    pairs = prepare(data)["targets"]

    named = [row for row in pairs if "unnamed" not in row["domain"]]
    assert [(row["text_pair"], row["label"]) for row in named] == [
        ("food", "positive"),
        ("staff", "negative"),
        ("food", "positive"),
        ("table", "neutral"),
        ("table", "neutral"),
    ]
    assert all(row["label"] == "neutral" and row["text_pair"] not in row["text"] for row in pairs if row not in named)


def test_the_command_writes_the_files_and_prints_their_texts(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = data.parent / "new" / "out"

    assert main(["prepare", str(data), "--output", str(out)]) == 0

    printed = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert printed == {str(path.relative_to(out).with_suffix("")): str(len(path.read_text().splitlines())) for path in out.rglob("*.jsonl")}
    assert printed["kept/tweets"] == "1"


def test_files_that_are_there_are_replaced_only_if_that_is_asked_for(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out := data.parent / "out").mkdir()
    (out / "tweets.jsonl").write_text("mine")

    assert main(["prepare", str(data), "--output", str(out)]) == 1
    assert (out / "tweets.jsonl").read_text() == "mine"
    assert f"{out}: exists; use --overwrite to replace its files" in capsys.readouterr().err
    assert main(["prepare", str(data), "--output", str(out), "--overwrite"]) == 0
    assert "thanks for all of it" in (out / "tweets.jsonl").read_text()


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        (
            "aspects/laptops_train.jsonl.gz",
            '{"text": "x"}',
            """line 1: expected {"text", "aspects": [{"term", "polarity"}]}, got '{"text": "x"}'""",
        ),
        ("tweets/train.tsv.gz", "no tab", "line 1: expected label<TAB>text, but the line has no tab"),
        ("imdb/unlabelled.txt.gz", "", "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_nothing_is_written(
    name: str, line: str, message: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if line:
        (data / name).write_bytes(gzip.compress(f"{line}\n".encode()))
    else:
        (data / name).unlink()

    assert main(["prepare", str(data), "--output", str(data.parent / "out")]) == 1

    assert f"{data / name}: {message}" in capsys.readouterr().err
    assert not (data.parent / "out").exists()
