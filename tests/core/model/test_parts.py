"""What is read of a text besides the whole. PART_EXAMPLES sets how many random texts each property is tried on: a quarter of 10,000.

An example takes a millisecond: most texts are short, Hypothesis draws one number, and all read with one tokenizer.
"""

import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sentiment.model import parts
from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.mentions import Mentions
from sentiment.model.parts import Parted, read_parts
from sentiment.model.sentences import sentences
from sentiment.model.shortened import Shortened
from sentiment.model.tokenizer import CUT_CHARACTERS_PER_TOKEN, Row, Tokenizer
from sentiment.pipeline.queries import Query, QueryReader, TextLimits
from tests.tiny import MAX_TOKENS, TARGET_TOKENS, THREE, WEIGHTS, make_bundle, read_manifest, write_manifest

EXAMPLES = int(os.environ.get("PART_EXAMPLES", "2500"))
SENTENCES_MAX = 4
LIMITS = TextLimits(2**20, SENTENCES_MAX, 16)
many = settings(max_examples=EXAMPLES, print_blob=True, suppress_health_check=list(HealthCheck))

WORDS = ("good", "bad", "film", "and", "w3", "w-7", "Film", "\u00e9clair", "\U0001f600", "x", "\u200b", "GREAT", "the film")
ENDS = (". ", "! ", *[" "] * 8, "\n\n", "... ", "? ", "\u3002", "  ", ", ", "")
NAMES = ("film", "good", "W3", "service", "\u00c9CLAIR", "good film", "\U0001f600")


@dataclass(frozen=True)
class Case:
    """A random text, and what may be asked of it beside which others."""

    text: str
    targets: tuple[str, ...] = ()
    limit: int = 1
    others: tuple[str, ...] = ()
    sentences: bool = True


def drawn(seed: int) -> Case:
    """Made by a seed: Hypothesis would take ten times as long to draw a text as the tests take to read it."""
    draw = random.Random(seed)

    def written() -> str:
        words = (chr(draw.randrange(1, 0x3100)) if draw.random() < 0.2 else draw.choice(WORDS) for _ in range(draw.choice((2, 6, 6, 24))))
        return "".join(word + draw.choice(ENDS) for word in (draw.choice(WORDS), *words))

    targets = tuple(draw.sample(NAMES, draw.randrange(5)))
    return Case(written(), targets, draw.randint(1, 5), tuple(written() for _ in range(draw.randrange(3))), draw.random() < 0.5)


CASES = st.integers(0, 2**32).map(drawn)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    return load_classifier(make_bundle(tmp_path_factory.mktemp("three"), three=True))


@pytest.fixture(scope="module")
def unbounded(three: Classifier) -> Tokenizer:
    """Reads all tokens of a text."""
    return Tokenizer(three.bundle.path / "tokenizer.json", 4096)


@pytest.fixture(scope="module")
def reader(three: Classifier) -> QueryReader:
    return QueryReader(three, LIMITS)


def read(three: Classifier, text: str, sentences_max: int = 64, targets: tuple[str, ...] = ()) -> Parted:
    return read_parts(three.tokenizer, text, three.tokenizer.encode(text), sentences_max, targets, TARGET_TOKENS)


# Properties


@many
@given(case=CASES)
@example(case=Case(" \u00e9. \U0001f600! x "))
def test_sentences_cover_the_text_but_for_white_space_in_three_units(three: Classifier, case: Case) -> None:
    text = case.text
    found = read(three, text, len(text))

    encoded, wide = text.encode("utf-8", "surrogatepass"), text.encode("utf-16-le", "surrogatepass")
    end = 0
    for sentence in found.sentences:
        (start, stop), utf16, utf8 = sentence.span.code_points, sentence.span.utf16, sentence.span.utf8
        own = text[start:stop]
        assert own == own.strip() != ""
        assert text[end:start].strip() == ""
        assert encoded[slice(*utf8)].decode("utf-8", "surrogatepass") == own
        assert wide[2 * utf16[0] : 2 * utf16[1]].decode("utf-16-le", "surrogatepass") == own
        end = stop
    assert text[end:].strip() == ""
    assert found.sentences_total == len(found.sentences)


@many
@given(case=CASES)
def test_no_row_and_no_number_of_rows_exceeds_its_limit(three: Classifier, case: Case) -> None:
    found = read(three, case.text, case.limit, case.targets)

    assert len(found.sentences) <= min(case.limit, found.sentences_total)
    assert [target.name for target in found.targets] == list(case.targets)
    assert all(target.row is None or target.row.tokens <= TARGET_TOKENS for target in found.targets)
    assert all(sentence.tokens <= MAX_TOKENS for sentence in found.sentences)
    named = sum(target.row is not None for target in found.targets)
    alone = found.sentences_total == 1
    assert len(found.rows) == 1 + (0 if alone else len(found.sentences)) + named <= 1 + case.limit + len(case.targets)


@many
@given(case=CASES)
def test_a_target_is_read_with_whole_tokens_of_the_text_around_its_mention(three: Classifier, unbounded: Tokenizer, case: Case) -> None:
    text = case.text
    tokens = unbounded.encode_explained(text).tokens[1:-1]
    ids = unbounded.encode(text).ids[1:-1]
    for target in read(three, text, 0, case.targets).targets:
        assert (target.mention is None) == (target.row is None) == (Mentions(text).find(target.name) is None)
        if target.mention is not None and target.row is not None:
            start, end = target.mention.code_points
            assert text[start:end].casefold() == target.name.casefold()
            around, kinds = list(target.row.ids), list(target.row.type_ids or ())
            around = around[1 : kinds.index(1) - 1]
            size = len(around)
            places = [low for low in range(len(ids)) if ids[low : low + size] == around]
            assert any(any(token.end > start and token.start < end for token in tokens[low : low + size]) for low in places)


@many
@given(case=CASES)
def test_the_answers_to_parts_do_not_depend_on_what_is_read_and_run_beside_them(three: Classifier, reader: QueryReader, case: Case) -> None:
    queries = [Query(one, sentences=case.sentences, targets=case.targets) for one in (case.text, *case.others)]
    together = [reading for reading in reader.read(queries) if reading.tokens > three.tokenizer.special_tokens]
    (alone,) = reader.read(queries[:1])
    if alone.tokens <= three.tokenizer.special_tokens:
        return

    logits = three.run([row for reading in together for row in reading.rows])
    whole, parts = three.answer(together[0], logits[: len(together[0].rows)])
    whole_alone, parts_alone = three.answer(alone, [three.run([row])[0] for row in alone.rows])

    assert whole.scores == pytest.approx(whole_alone.scores, abs=1e-6)
    assert (parts is None) == (parts_alone is None) == (not case.sentences and not case.targets)
    if parts is not None and parts_alone is not None:
        assert parts.sentences_total == parts_alone.sentences_total
        for one, other in ((parts.sentences, parts_alone.sentences), (parts.targets, parts_alone.targets)):
            assert [part for part, _ in one] == [part for part, _ in other]
            for (_, scored), (_, scored_alone) in zip(one, other, strict=True):
                assert scored.scores == pytest.approx(scored_alone.scores, abs=1e-6)
        if parts.sentences:
            # A sentence is answered as a text of its own.
            rows = [three.tokenizer.encode(case.text[slice(*sentence.span.code_points)]) for sentence, _ in parts.sentences]
            for own, (_, scored) in zip(three.run(rows), parts.sentences, strict=True):
                assert scored.scores == pytest.approx(three.score(own).scores, abs=1e-6)


# Sentences


def test_the_only_sentence_of_a_text_is_answered_by_the_row_of_the_whole(three: Classifier) -> None:
    found = read(three, "  a good film . ")

    assert len(found.rows) == found.sentences_total == len(found.sentences) == 1
    whole, parts = three.answer(found, three.run(found.rows))
    assert parts is not None
    assert parts.sentences[0][1] == whole
    assert found.sentences[0].span.code_points == (2, 15)


def test_sentences_beyond_the_limit_are_counted_and_not_read(three: Classifier) -> None:
    found = read(three, "good. " * 100, 64)

    assert (len(found.sentences), found.sentences_total, len(found.rows)) == (64, 100, 65)


def test_a_text_is_searched_for_no_more_sentences_than_are_counted(three: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[tuple[int, int]] = []

    def watched(text: str) -> Iterator[tuple[int, int]]:
        for span in sentences(text):
            looked_at.append(span)
            yield span

    monkeypatch.setattr(parts, "sentences_of", watched)
    most = parts.SENTENCES_COUNTED_MAX
    fewer, as_many, more = (read(three, "a. " * count) for count in (most - 1, most, 2 * most))

    assert [found.sentences_total for found in (fewer, as_many, more)] == [most - 1, most, most]
    assert len(looked_at) == 3 * most - 1
    assert len(more.sentences) == 64


def test_a_sentence_without_a_token_belongs_to_the_one_before_it_or_else_to_the_one_after(
    three: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The rule of sentences makes none of them, which not every tokenizer follows.
    monkeypatch.setattr(parts, "sentences_of", lambda text: (found.span() for found in re.finditer(r"\S+", text)))
    assert three.tokenizer.encode("\u200b").tokens == 2

    after, before = read(three, "good. \n\n\u200b\n\n bad."), read(three, "\u200b\n\n good. bad.")

    assert [one.span.code_points for one in after.sentences] == [(0, 9), (12, 16)]
    assert [one.span.code_points for one in before.sentences] == [(0, 9), (10, 14)]


def test_a_text_in_windows_has_the_rows_of_its_sentences_after_those_of_its_windows(three: Classifier, reader: QueryReader) -> None:
    text = "w1 " * 40 + "good. " + "w2 " * 3 + "bad."

    (found,) = reader.read([Query(text, truncation="windows", sentences=True, targets=("bad.",))])

    assert isinstance(found, Parted)
    assert len(found.whole.rows) > 1
    assert found.rows[: len(found.whole.rows)] == found.whole.rows
    assert found.rows[len(found.whole.rows) :] == (*(one.row for one in found.sentences), found.targets[0].row)
    assert (found.sentences[0].truncated, found.sentences[1].truncated) == (True, False)
    whole, parts = three.answer(found, three.run(found.rows))
    assert parts is not None
    assert whole.scores == three.score_windows(three.run(found.whole.rows)).scores
    assert whole.mixed is False


def test_a_text_is_mixed_if_a_sentence_praises_and_another_blames_and_neither_abstains(three: Classifier) -> None:
    def mixed(text: str, sentences: bool = True) -> bool:
        found = read(three, text, 64 if sentences else 0)
        return three.answer(found, three.run(found.rows))[0].mixed

    assert mixed("great great. awful awful.")
    assert not mixed("great great. awful awful.", sentences=False)
    assert not mixed("great great. w-1.")
    assert mixed("great and awful", sentences=False)


# Targets


def test_a_target_is_read_with_the_whole_text_if_that_fits(three: Classifier) -> None:
    (target,) = read(three, "a good film", 0, ("Film",)).targets

    assert target.row == Row(list(three.tokenizer.encode("a good film", "Film").ids), [0] * 5 + [1] * 2, False)


@pytest.mark.parametrize("place", [0, 5, 30, 59])
def test_a_target_is_read_with_the_words_around_its_mention(three: Classifier, place: int) -> None:
    words = [f"w{number % 32}" for number in range(60)]
    words[place] = "film"

    (target,) = read(three, " ".join(words), 0, ("film",)).targets

    row = target.row
    assert row is not None
    assert row.tokens == TARGET_TOKENS
    read_words = [list(WEIGHTS)[token - 4] for token in row.ids[1:-3]]
    first = min(max(0, place - 5), 60 - 12)
    assert read_words == words[first : first + 12]


def test_a_target_that_the_text_does_not_name_is_neutral_by_rule(three: Classifier) -> None:
    found = read(three, "a good film", 0, ("service", "film"))

    _, parts = three.answer(found, three.run(found.rows))

    assert len(found.rows) == 2
    assert parts is not None
    (unnamed, scored), (named, _) = parts.targets
    assert (unnamed.mention, unnamed.row) == (None, None)
    assert (scored.label, scored.score, scored.scores, scored.abstain) == ("neutral", 1.0, (0.0, 0.0, 1.0), False)
    assert named.mention is not None


@pytest.mark.parametrize(
    "text",
    ["film " + "\u0301" * 2**19, "x" * 2**19 + " film", ("e\u0301" * 100 + " ") * 5000 + "film", "film" + " " * 2**20],
    ids=["accents", "a word", "accented words", "spaces"],
)
def test_a_target_in_a_costly_text_is_read_within_its_tokens_and_characters(
    three: Classifier, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, characters = three.tokenizer.encode(text), []
    tokenize = Tokenizer._read

    def read_short(tokenizer: Tokenizer, short: Shortened) -> Any:  # what it returns
        characters.append(len(short.text))
        return tokenize(tokenizer, short)

    monkeypatch.setattr(Tokenizer, "_read", read_short)
    (target,) = read_parts(three.tokenizer, text, whole, 0, ("film",), TARGET_TOKENS).targets

    assert target.row is not None
    assert target.row.tokens <= TARGET_TOKENS
    # Those of the target, and those around the mention on both sides.
    assert sum(characters) <= len("film") + 2 * CUT_CHARACTERS_PER_TOKEN * TARGET_TOKENS


def test_a_long_target_leaves_half_of_the_row_to_the_text(three: Classifier) -> None:
    target = " ".join(["film"] * 20)

    (found,) = read(three, f"{target} good " + "w1 " * 20, 0, (target,)).targets

    assert found.row is not None
    assert found.row.type_ids is not None
    assert (found.row.tokens, list(found.row.type_ids).count(1)) == (TARGET_TOKENS, 7)


# The manifest


def test_a_bundle_of_two_labels_answers_as_before_bit_for_bit(tmp_path: Path) -> None:
    path = make_bundle(tmp_path)
    plain = load_classifier(path)
    write_manifest(path, {**read_manifest(path), "mixed": None, "targets": None})

    known = load_classifier(path)

    assert (plain.manifest.logits, plain.manifest.mixed, plain.manifest.targets) == (2, None, None)
    for text in ("a good film", "awful", "w7 and w9"):
        (logits,) = plain.run([plain.tokenizer.encode(text)])
        assert plain.score(logits) == known.score(known.run([known.tokenizer.encode(text)])[0])
        assert plain.score(logits).mixed is False


def test_a_bundle_says_that_it_has_an_output_for_mixed_and_reads_targets(tmp_path: Path) -> None:
    manifest = load_bundle(make_bundle(tmp_path, three=True)).manifest

    assert manifest.labels == THREE
    assert manifest.logits == 4
    assert manifest.targets is not None
    assert manifest.targets.tokens == TARGET_TOKENS
