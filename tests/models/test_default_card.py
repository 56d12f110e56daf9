"""The card of the default bundle: its record gives the whole text."""

import re
from collections import Counter
from pathlib import Path

import pytest

from sentiment.model.bundle import Bundle, load_bundle
from sentiment_models.data.labelled import read_examples
from sentiment_models.export.manifest import MANIFEST_FILE, read_object
from sentiment_models.reports.about import read_about
from sentiment_models.reports.card import card
from sentiment_models.reports.record import Record, read_record
from sentiment_models.reports.record_tables import tables
from tests.english import ENGLISH

ABOUT = ENGLISH.parents[2] / "about_english.toml"
TEXTS = ENGLISH.parents[2] / "sentiment_models" / "texts"
# Two pages for people, and half a page for the table of all data sets.
WORDS_MAX = 1_550


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle(ENGLISH)


@pytest.fixture(scope="module")
def record() -> Record:
    return read_record(ENGLISH)


def test_the_card_is_made_from_the_manifest_the_record_and_what_its_author_wrote(bundle: Bundle, record: Record) -> None:
    record.check_of(bundle.manifest)

    made = card(bundle, read_object(ENGLISH / MANIFEST_FILE), record, read_about(ABOUT))

    assert made == bundle.card


def test_the_card_is_short_and_claims_no_selection_of_all_stages(bundle: Bundle, record: Record) -> None:
    assert len(re.findall(r"\S*\w\S*", bundle.card)) <= WORDS_MAX
    assert "the checkpoint (accuracy" not in bundle.card + tables(ENGLISH, record)
    assert bundle.card.count("SST-2") > 2


@pytest.mark.parametrize(("name", "file"), [("plain", "plain_test.tsv"), ("hard", "hard_test.tsv")])
def test_the_record_counts_the_written_texts(name: str, file: str, bundle: Bundle, record: Record) -> None:
    labels = bundle.manifest.labels
    counted = Counter(labels[example.label] for example in read_examples(Path(TEXTS / file), labels))

    found = next(one.datasets[name] for one in record.evaluations if name in one.datasets)

    assert {label: one.rows for label, one in found.classes.items() if one.rows} == counted
