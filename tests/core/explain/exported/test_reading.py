"""The tokens to explain are those that the classifier reads, with each truncation; unread parts are reported."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from sentiment.errors import InvalidInput
from sentiment.explain.engine import Explainer
from sentiment.explain.engine.reading import part_of, read
from sentiment.explain.parts import ExplanationRequest
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.mentions import Mentions
from sentiment.model.tokenizer import Row, Tokenizer
from tests.core.explain.explained import explained
from tests.models.tiny_families import MAX_TOKENS, TINY
from tests.tiny import EFFORT, make_bundle

SENTENCE = "the film was not good , but i didn't dislike the unforgettable end 😍. "
LONG = SENTENCE * 30


def _default(classifier: Classifier, truncation: str) -> Classifier:
    manifest = classifier.manifest.model_copy(update={"default_truncation": truncation})
    bundle = replace(classifier.bundle, manifest=manifest)
    return Classifier(bundle, classifier.graph, classifier.tokenizer, classifier.session)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *product(
            ["bert", "roberta", "albert", "xlnet", "mpnet", "xlm-roberta", "modernbert"],
            [LONG, "  \n " + LONG[3:].upper(), "word " * 61 + "end"],
        ),
        # For BERT's and MPNet's tokenizer one unknown word each, which fits.
        *product(["roberta", "albert", "xlnet", "modernbert"], ["x" * 5000, "😍" * 400]),
    ],
)
@pytest.mark.parametrize("head", [1, 7, 40])
def test_head_and_tail_have_the_served_ids_and_their_places_in_the_text(tmp_path: Path, name: str, head: int, text: str) -> None:
    TINY[name].tokens().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", MAX_TOKENS)
    assert tokenizer.encode(text).truncated
    row = tokenizer.encode_head_tail(text, head)

    found = tokenizer.encode_explained(text, head=head)

    assert found.ids == tuple(row.ids)
    assert found.type_ids == (None if row.type_ids is None else tuple(row.type_ids))
    assert found.truncated
    assert len(found.tokens) == len(found.ids)
    assert sum(token.special for token in found.tokens) == tokenizer.special_tokens
    ((source, start, end),) = found.unseen
    assert source == 0
    assert 0 <= start <= end <= len(text)
    places = [(token.start, token.end) for token in found.tokens if not token.special]
    assert all(last <= start or first >= end for first, last in places)
    # A token reads the same wherever the text was cut.
    for token in found.tokens:
        written = "".join(text[token.start : token.end].split()).lower()
        if not token.special and not token.unknown and name == "bert":
            assert token.piece.removeprefix("##") == written
    assert [word.start for word in found.words] == sorted(word.start for word in found.words)
    assert not any(word.start < start < word.end for word in found.words)


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "xlnet", "mpnet", "modernbert"])
@pytest.mark.parametrize("size", [16, 40, MAX_TOKENS])
@pytest.mark.parametrize(
    ("text", "target"),
    [(SENTENCE, "film"), (LONG, "FILM"), (LONG.replace("film", "it", 15), "Film"), ("  The film\n", "film"), ("film", "film")],
)
def test_a_target_has_the_served_ids_and_only_the_words_around_it_can_be_erased(
    tmp_path: Path, name: str, size: int, text: str, target: str
) -> None:
    TINY[name].tokens().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", MAX_TOKENS)
    whole = tokenizer.encode(text)
    mention = Mentions(text).find(target)
    assert mention is not None
    row = tokenizer.encode_target(text, mention, target, size, None if whole.truncated else whole)

    found = tokenizer.encode_explained_target(text, mention, target, size, None if whole.truncated else whole)

    assert found.ids == tuple(row.ids)
    assert found.type_ids == (None if row.type_ids is None else tuple(row.type_ids))
    assert (found.truncated, found.mention) == (row.truncated, mention)
    assert not any(token.pair for token in found.tokens)
    assert [place for word in found.words for place in word.tokens] == [
        place for place, token in enumerate(found.tokens) if not token.special
    ]
    assert not any(word.start < mention[1] and mention[0] < word.end for word in found.words)
    # What is neither read nor white space is named, before and behind what is read.
    read = {place for word in found.words for place in range(word.start, word.end)} | set(range(*mention))
    unseen = [range(start, end) for source, start, end in found.unseen if source == 0]
    assert not any(place in part for part in unseen for place in read)
    assert found.truncated == bool(unseen)
    if not found.truncated:
        assert all(sign.isspace() or place in read for place, sign in enumerate(text))


def test_unread_ranges_are_reported(classifier: Classifier) -> None:
    def unseen(asked: ExplanationRequest) -> list[str]:
        header, _, _ = explained(Explainer(classifier), replace(asked, attributions=False))
        return [header.texts[source][start:end] for source, start, end in header.unseen]

    assert unseen(ExplanationRequest(SENTENCE)) == []
    (rest,) = unseen(ExplanationRequest(LONG, truncation="head"))
    assert LONG.endswith(rest)
    assert len(rest) > 1000
    (gap,) = unseen(ExplanationRequest(LONG, truncation="head_tail"))
    assert gap in LONG
    assert not LONG.endswith(gap)
    assert len(unseen(ExplanationRequest(LONG, LONG))) == 2
    # Of a short text beside a long one everything is read.
    header, _, _ = explained(Explainer(classifier), ExplanationRequest("good", LONG, attributions=False))
    assert [source for source, _, _ in header.unseen] == [1]


@pytest.mark.parametrize(("default", "as_by"), [("head", "head"), ("head_tail", "head_tail"), ("windows", "head_tail")])
def test_a_text_that_is_too_long_uses_the_default_truncation(classifier: Classifier, default: str, as_by: str) -> None:
    assert read(_default(classifier, default), ExplanationRequest(LONG)) == read(classifier, ExplanationRequest(LONG, truncation=as_by))
    assert any(token.pair for token in read(_default(classifier, default), ExplanationRequest(LONG, LONG)).tokens)


@pytest.mark.parametrize("truncation", ["refuse", "head", "head_tail", "windows", None])
def test_a_text_that_fits_is_not_truncated(classifier: Classifier, truncation: str | None) -> None:
    assert read(classifier, ExplanationRequest(SENTENCE, truncation=truncation)) == read(classifier, ExplanationRequest(SENTENCE))


@pytest.mark.parametrize(
    ("asked", "field", "message"),
    [
        (
            ExplanationRequest(LONG, truncation="refuse"),
            "text",
            "has more tokens than the model reads; the limit is 64 and truncation is refuse",
        ),
        (
            ExplanationRequest(LONG, LONG, truncation="head_tail"),
            "text",
            "has more tokens than .* together with text_pair; .* head_tail is for single texts",
        ),
        (
            ExplanationRequest(LONG, truncation="windows"),
            "truncation",
            r"is windows; the text has more tokens than one window \(64\)",
        ),
        (ExplanationRequest(LONG, truncation="tail"), "truncation", "is 'tail'; it must be one of refuse, head, head_tail"),
        (ExplanationRequest("\u200b\u0000"), "text", "has 2 characters and none that the model reads"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused(classifier: Classifier, asked: ExplanationRequest, field: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: {message}"):
        read(classifier, asked)


def test_a_default_truncation_of_refuse_refuses(classifier: Classifier) -> None:
    with pytest.raises(InvalidInput, match="truncation is refuse"):
        read(_default(classifier, "refuse"), ExplanationRequest(LONG))


def test_a_text_has_a_part_where_adaptive_effort_may_end_early(tmp_path: Path) -> None:
    head = load_classifier(make_bundle(tmp_path, pairs=True, effort=EFFORT))
    whole, cut = (Row([*range(32)], None, truncated) for truncated in (False, True))

    def parted(row: Row, default: str = "head", truncation: str | None = None, pair: str | None = None) -> bool:
        return part_of(_default(head, default), ExplanationRequest("", pair, truncation), row) is not None

    assert parted(whole) and parted(whole, truncation="head_tail") and parted(whole, "windows")
    assert parted(cut) and parted(cut, truncation="head") and parted(cut, "head_tail")
    # Another cut than that of the rule; windows, of which the explanation reads the head and the tail; a pair.
    assert not parted(cut, truncation="head_tail")
    assert not parted(cut, "windows")
    assert not parted(whole, pair="")
    assert part_of(head, ExplanationRequest(""), Row([*range(9)], None, False)) is None
