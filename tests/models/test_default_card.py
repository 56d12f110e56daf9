"""The card and the record of the default bundle: no figure in them that the manifest or a recorded measurement has not."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentiment.model.bundle import Bundle, load_bundle
from sentiment_models.data.labelled import read_examples
from sentiment_models.export.manifest import MANIFEST_FILE, digest_without_card, read_object
from sentiment_models.reports.about import AuthorFacts, read_about
from sentiment_models.reports.card import card, record_path
from sentiment_models.reports.card_record import training_stages
from tests.english import ENGLISH

ABOUT = ENGLISH.parents[2] / "about_english.toml"
TEXTS = ENGLISH.parents[2] / "sentiment_models" / "texts"
# Two pages for people, and half a page for the table of all data sets.
WORDS_MAX = 1_400


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle(ENGLISH)


@pytest.fixture(scope="module")
def record() -> str:
    return record_path(ENGLISH).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def about() -> AuthorFacts:
    return read_about(ABOUT)


def rows(text: str, heading: str) -> Iterator[dict[str, str]]:
    """The rows of the first table below a heading, by the names of its columns; of two of one name the first."""
    lines = text[text.index(f"\n{heading}\n") :].splitlines()[2:]
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    cut = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    for cells in cut[2 : next((number for number, cells in enumerate(cut) if len(cells) < 2), None)]:
        yield dict(reversed(list(zip(cut[0], cells, strict=True))))


def plain(name: str) -> str:
    """A data set's name without the mark that the bundle was trained on it."""
    return name.removesuffix(" (also trained on)")


def test_every_figure_of_the_card_is_the_manifest_s_or_the_record_s(bundle: Bundle, record: str, about: AuthorFacts) -> None:
    recorded = {plain(row["data set"]): row for row in rows(record, "## Figures") if row["graph"] == "int8"}
    beside = {plain(row["data set"]): row for row in rows(record, "### Beside other answers")}
    named = {about.name(name): name for name in recorded}

    shown = list(rows(bundle.card, "## Figures"))

    assert [plain(row["data set"]) for row in shown] == [about.name(name) for name in recorded if name not in about.omit]
    for row in shown:
        name = named[plain(row["data set"])]
        wanted, accuracy = recorded[name], row["accuracy"]
        assert (row["texts"], accuracy[:6]) == (wanted["texts"], wanted["accuracy"])
        interval = [float(one) for one in wanted["95 %"].split(" to ")]
        assert [float(one) for one in accuracy[8:-1].split(" to ")] == pytest.approx(interval, abs=6e-4)
        for figure in ("macro F1", "ECE"):
            assert float(row[figure]) == pytest.approx(float(wanted[figure]), abs=6e-4)
        assert row["abstained"] == f"{100 * int(wanted['abstained']) / int(row['texts'].replace(',', '')):.1f} %"
        for other in beside[name].keys() & row.keys() - {"data set"}:
            accuracy_of_other = beside[name][other].partition(";")[0]
            assert (row[other] and float(row[other])) == (accuracy_of_other and pytest.approx(float(accuracy_of_other), abs=6e-4))
        if measured := bundle.manifest.accuracy.get(name):
            assert (f"{measured.rows:,}", f"{measured.accuracy:.4f}", f"{measured.ece:.3f}") == (row["texts"], accuracy[:6], row["ECE"])


def test_the_card_says_what_its_author_wrote_and_what_the_manifest_says(bundle: Bundle, about: AuthorFacts) -> None:
    manifest = read_object(ENGLISH / MANIFEST_FILE)
    provenance = manifest["provenance"]
    assert isinstance(provenance, dict)

    made = card(bundle, digest_without_card(manifest), provenance, [], author=about)

    # Without the evaluations, which are not kept, all but figures and weaknesses.
    parts = [part for part in re.split(r"\n(?=## )", made) if not part.startswith(("## Figures", "## Weaknesses"))]
    assert [part for part in parts if part.strip() not in bundle.card] == []


def test_the_record_has_the_stages_of_the_manifest_and_its_digest(record: str) -> None:
    manifest = read_object(ENGLISH / MANIFEST_FILE)
    provenance = manifest["provenance"]
    assert isinstance(provenance, dict)

    assert training_stages(provenance) in record
    assert digest_without_card(manifest) in record


def test_the_card_is_short_and_claims_no_selection_of_all_stages(bundle: Bundle, record: str) -> None:
    assert len(re.findall(r"\S*\w\S*", bundle.card)) <= WORDS_MAX
    assert "the checkpoint (accuracy" not in bundle.card + record
    assert bundle.card.count("SST-2") > 2


@pytest.mark.parametrize(("name", "file"), [("plain", "plain_test.tsv"), ("hard", "hard_test.tsv")])
def test_the_written_texts_are_as_many_as_the_record_says(name: str, file: str, bundle: Bundle, record: str) -> None:
    labels = bundle.manifest.labels
    counted = Counter(labels[example.label] for example in read_examples(Path(TEXTS / file), labels))

    recorded = {row["label"]: int(row["texts"]) for row in rows(record, "### Labels") if row["data set"] == name}

    assert +Counter(recorded) == counted
