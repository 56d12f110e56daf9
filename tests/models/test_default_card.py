"""The card and the record of the default bundle: no figure in them that the manifest or a recorded measurement has not."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentiment.model.bundle import Bundle, load_bundle
from sentiment_models.data.labelled import read_examples
from sentiment_models.export.manifest import MANIFEST_FILE, read_object
from sentiment_models.reports.about import AuthorFacts, read_about
from sentiment_models.reports.card import card, record_path
from sentiment_models.reports.card_record import training_stages
from tests.test_english import ENGLISH

ABOUT = ENGLISH.parents[2] / "about_english.toml"
TEXTS = ENGLISH.parents[2] / "sentiment_models" / "texts"
# Two pages for people.
WORDS_MAX = 1_000


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle(ENGLISH)


@pytest.fixture(scope="module")
def record() -> str:
    return record_path(ENGLISH).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def about() -> AuthorFacts:
    return read_about(ABOUT)


def rows(text: str, heading: str) -> Iterator[list[str]]:
    """The rows of the first table below a heading, without its header."""
    lines = text[text.index(f"\n{heading}\n") :].splitlines()[2:]
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_every_figure_of_the_card_is_the_manifest_s_or_the_record_s(bundle: Bundle, record: str, about: AuthorFacts) -> None:
    recorded = {row[1]: row for row in rows(record, "## Figures") if row[0] == "int8"}
    stated = {(row[0], row[1]): row[4] for row in rows(record, "### Expected accuracy")}
    labels: dict[str, list[int]] = {}
    for name, _, _, _, _, texts, _ in rows(record, "### Labels"):
        labels.setdefault(name, []).append(int(texts.replace(",", "")))
    named = {about.name(name): name for name in recorded}

    shown = list(rows(bundle.card, "## Figures"))

    assert [row[0] for row in shown] == [about.name(name) for name in recorded if name not in about.omit]
    for public, texts, largest, earlier, accuracy, expected, ece, abstained in shown:
        name = named[public]
        row, count = recorded[name], int(texts.replace(",", ""))
        assert (texts, accuracy[:6]) == (row[2], row[3])
        assert [float(one) for one in accuracy[8:-1].split(" to ")] == pytest.approx([float(one) for one in row[4].split(" to ")], abs=6e-4)
        assert largest == f"{max(labels[name]) / sum(labels[name]):.3f}"
        assert earlier == (f"{about.earlier.accuracy[public]:g}" if about.earlier and public in about.earlier.accuracy else "")
        assert float(expected) == pytest.approx(float(stated[name, "all"]), abs=6e-4)
        assert float(ece) == pytest.approx(float(row[6]), abs=6e-4)
        assert abstained == f"{100 * int(row[10]) / count:.1f} %"
        if measured := bundle.manifest.accuracy.get(name):
            assert (f"{measured.rows:,}", f"{measured.accuracy:.4f}", f"{measured.ece:.3f}") == (texts, accuracy[:6], ece)


def test_the_card_says_what_its_author_wrote_and_what_the_manifest_says(bundle: Bundle, about: AuthorFacts) -> None:
    digest, provenance = bundle.digest, read_object(ENGLISH / MANIFEST_FILE)["provenance"]
    assert isinstance(provenance, dict)

    made = card(bundle, digest, provenance, [], author=about)

    # Without the evaluations, which are not kept, all but figures and weaknesses.
    parts = [part for part in re.split(r"\n(?=## )", made) if not part.startswith(("## Figures", "## Weaknesses"))]
    assert [part for part in parts if part.strip() not in bundle.card] == []


def test_the_record_has_the_stages_of_the_manifest_and_its_digest(bundle: Bundle, record: str) -> None:
    provenance = read_object(ENGLISH / MANIFEST_FILE)["provenance"]
    assert isinstance(provenance, dict)

    assert training_stages(provenance) in record
    assert bundle.digest in record
    assert record.count("and chose nothing: accuracy") == 8
    assert record.count(" looks at it was kept, after ") == 4


def test_the_card_is_two_pages_and_claims_no_selection_of_all_stages(bundle: Bundle, record: str) -> None:
    assert len(re.findall(r"\S*\w\S*", bundle.card)) <= WORDS_MAX
    assert "the checkpoint (accuracy" not in bundle.card + record
    assert bundle.card.count("SST-2") > 2


@pytest.mark.parametrize(("name", "file"), [("plain texts", "plain_test.tsv"), ("hard texts", "hard_test.tsv")])
def test_the_written_texts_are_as_many_as_the_record_says(name: str, file: str, bundle: Bundle, record: str) -> None:
    labels = [example.label for example in read_examples(Path(TEXTS / file), bundle.manifest.labels)]

    assert [row[5] for row in rows(record, "### Labels") if row[0] == name] == [str(labels.count(label)) for label in (0, 1)]
