"""Terminal output: control characters are escaped, lines keep their width, and every colour is readable."""

import re
from pathlib import Path
from typing import Any

import pytest

from sentiment.cli.explanation_text import _evidence, page
from sentiment.cli.terminal import (
    BLUE,
    GREEN,
    GREY,
    HUES,
    LOGITS_FULL,
    ORANGE,
    VIOLET,
    Hues,
    Piece,
    bar,
    direction_hues,
    flowed,
    label_hues,
    legend,
)
from sentiment.client.explained import explanation_of
from sentiment.client.explanation_reader import Reader
from sentiment.client.explanations import Evidence
from sentiment.files.visible import columns, fitted, visible
from sentiment.v1 import sentiment_pb2 as pb
from tests.approved import assert_approved
from tests.core.client.explained import TEXT, attribution, evidence, geometry, header, messages, span, summary

CODES = re.compile("\x1b\\[[0-9;]*m")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\r\n\tb\u2028c", "a   b c"),
        ("\x9b2J\x7f\x00", r"\x9b2J\x7f\x00"),
        ("\u202egnp.exe\u2066", r"\u202egnp.exe\u2066"),
        (
            "caf\u00e9 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \udce9",
            "caf\u00e9 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \\udce9",
        ),
    ],
)
def test_control_characters_of_a_text_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_wide_characters_take_two_columns_and_accents_none() -> None:
    assert [columns(text) for text in ("film", "映画", "cafe\u0301", "a\u200db")] == [4, 4, 4, 2]
    assert fitted("映画映画映画", 8) == "映画... "
    assert columns(fitted("映画", 9)) == 9
    assert fitted("e\u0301" * 9, 8) == "e\u0301" * 5 + "..."
    # An hour, where each sign that is cut off has all others measured again.
    assert fitted("a" * 2**20, 8) == "aaaaa..."


def test_lines_break_only_between_atoms() -> None:
    atoms = [[Piece("one"), Piece(",", 1.0)], [Piece("two")], [Piece("x" * 12)], [Piece("y")]]

    assert flowed(atoms, 8, colour=False) == ["one, two", "x" * 12, "y"]
    assert [CODES.sub("", line) for line in flowed(atoms, 8, colour=True)] == ["one, two", "x" * 12, "y"]


def rgb(code: int) -> list[float]:
    if code >= 232:
        return [(8 + 10 * (code - 232)) / 255] * 3
    steps = (0, 95, 135, 175, 215, 255)
    cube = code - 16
    return [steps[part] / 255 for part in (cube // 36, cube // 6 % 6, cube % 6)]


@pytest.mark.parametrize("code", [code for hue in HUES for code in hue.backgrounds])
def test_black_is_readable_on_every_background(code: int) -> None:
    """Contrast as of WCAG 2.1."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb(code)]
    luminance = sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    assert (luminance + 0.05) / 0.05 >= 5.8


def test_colours_and_bars_are_absolute_and_end_at_two_logits() -> None:
    hues = Hues(BLUE, ORANGE)

    def background(value: float) -> str:
        return Piece("x", value, hues.of(value)).drawn(True)

    def drawn(value: float, colour: bool = False) -> str:
        return bar(value, 4, colour, hues)

    assert f"48;5;{ORANGE.backgrounds[-1]};1m" in background(LOGITS_FULL) == background(50.0)
    assert f"48;5;{BLUE.backgrounds[-1]};4m" in background(-LOGITS_FULL) == background(-50.0)
    assert f"48;5;{ORANGE.backgrounds[0]};1m" in background(0.06)
    assert background(0.04) == background(-0.04) == "x"
    assert drawn(1.0) == "    |##  "
    assert drawn(-2.0) == "####|    "
    assert drawn(9.0) == "    |###>"
    assert drawn(-9.0) == "<###|    "
    assert CODES.sub("", drawn(-9.0, colour=True)) == "<   |    "


@pytest.mark.parametrize("colour", [False, True])
def test_the_legend_fits_a_line(colour: bool) -> None:
    assert columns(CODES.sub("", legend(colour, Hues(BLUE, ORANGE)))) <= 80


# the page


def shown(*parts: pb.ExplainResponse, colour: bool = False, width: int = 80, text: str = TEXT) -> str:
    return page(explanation_of(messages(*parts), text), colour=colour, width=width)


def test_the_page_says_what_effort_adaptive_answers_where_that_differs() -> None:
    told = messages()
    told[0].header.adaptive.CopyFrom(pb.Prediction(label="negative", score=0.5625, abstain=True))
    said = "with effort adaptive: negative 0.5625 (undecided), from a part of the text; this"

    assert said in page(explanation_of(told, TEXT), colour=False, width=80).splitlines()
    assert "adaptive" not in shown()


def test_the_page_says_what_the_answer_is_towards_and_where_the_text_names_it() -> None:
    told = messages()
    del told[0].header.words[2]
    told[0].header.mention.CopyFrom(span(TEXT.index("not"), TEXT.index("not") + 3))
    reader = Reader(TEXT, target="fi\x1blm")
    for message in told:
        reader.take(message)

    shown = page(reader.explanation(), colour=True, width=80)

    assert r"  towards fi\x1blm  tiny/1" in shown
    assert "".join(f"\x1b[1m{sign}\x1b[0m" for sign in "not") in shown


def counterfactuals() -> list[pb.ExplainResponse]:
    found = (
        pb.Counterfactual(kind=pb.COUNTERFACTUAL_KIND_FLIP, found=True, words=[2], label="negative", score=0.93, minimal=True),
        pb.Counterfactual(kind=pb.COUNTERFACTUAL_KIND_FLIP, found=True, words=[2], label="negative", score=0.93, exhaustive_below=1),
        pb.Counterfactual(kind=pb.COUNTERFACTUAL_KIND_KEEP, stopped=True),
        pb.Counterfactual(kind=pb.COUNTERFACTUAL_KIND_KEEP, found=True, label="positive", score=0.5),
        pb.Counterfactual(kind=pb.COUNTERFACTUAL_KIND_ASKED, found=True, words=[0, 3], label="negative", score=0.75, rows=1),
    )
    return [pb.ExplainResponse(counterfactual=one) for one in found]


def neuron(error: float) -> pb.ExplainResponse:
    keys = len(header().tokens)
    view = pb.NeuronView(layer=1, head=0, token=3, query=[1], keys=keys, key=[1] * keys, product=[1] * keys, max_abs_error=error)
    for name in ("dot", "scaled", "bias", "attention"):
        getattr(view, name).extend([0] * keys)
    view.score.extend(range(keys))
    view.softmax.extend([0.0, 0.125, 0.0, 0.75, 0.125, 0.0])
    return pb.ExplainResponse(neuron=view)


def against_neutral() -> str:
    first = header()
    first.against = "neutral"
    first.prediction.scores.add(label="neutral", score=0.0)
    parts = [pb.ExplainResponse(attribution=attribution()), pb.ExplainResponse(evidence=evidence())]
    return page(explanation_of([pb.ExplainResponse(header=first), *parts, summary()], TEXT), colour=False, width=200)


# Of each sentence of five words: its value, its standard error, and whether its words have values.
SENTENCES = ((9.0, 0.5, True), (-2.0, 0.5, False), (1.2, 0.5, True), (0.25, 0.5, True), (-6.0, None, False), (0.9, 0.0, True))


def long_text(sentences: bool, colour: bool = False) -> str:
    """An attribution of six sentences of five words, and the geometry."""
    text = " ".join(f"s{number}a s{number}b s{number}c s{number}d ." for number in range(len(SENTENCES)))
    start, places = header(), [*re.finditer(r"\S+", text)]
    del start.words[:], start.tokens[:], start.unseen[:]
    found = pb.Attribution(method="two_step_shapley", steps=32, steps_asked=32, completeness_residual=0.0)
    for number, (value, error, valued) in enumerate(SENTENCES):
        if sentences:
            first, last = places[5 * number].start(), places[5 * number + 4].end()
            found.sentences.add(span=span(first, last, text), value=value, standard_error=error, words_valued=valued)
        for word, share in enumerate((0.5, 0.4, 0.05, 0.05, 0.0) if valued else (0.2,) * 5):
            index = 5 * number + word
            place = span(*places[index].span(), text)
            start.words.add(span=place, token_start=index, token_end=index + 1, sentence=number)
            start.tokens.add(piece=places[index].group(), span=place, word=index)
            found.words.add(span=place, value=share * value, standard_error=None if error is None else share * error)
    near = pb.WordGeometry(points=[0] * 60, golden=["good"], golden_points=[0, 0], variance=[1, 0], nearest=[0] * 30, cosines=[0.5] * 30)
    given = [pb.ExplainResponse(header=start), pb.ExplainResponse(attribution=found), pb.ExplainResponse(geometry=near), summary()]
    return page(explanation_of(given, text), colour=colour, width=80)


def deciding(**changes: Any) -> pb.ExplainResponse:
    """What a search found, and its test."""
    found = {
        "words": [2, 3],
        "verdict": pb.VERDICT_BETTER_THAN_RANDOM,
        "random_sets": 19,
        "p_value": 0.05,
        "rank": 1,
        "changing_words": [2],
        "label": "negative",
        "score": 0.83,
    }
    return pb.ExplainResponse(deciding=pb.DecidingWords(**found | changes))


def searched(**changes: Any) -> str:
    """What the page says of deciding words."""
    lines = shown(pb.ExplainResponse(attribution=attribution()), pb.ExplainResponse(evidence=evidence()), deciding(**changes), width=200)
    return "\n".join(line for line in lines.splitlines() if re.match("Without|It takes|The word", line))


def test_a_page_says_what_was_approved() -> None:
    few = Evidence("m", "INCONCLUSIVE", 0.2, 0.1, 14, 1 / 15, 0.0, None, 2, 1, 0.1, 0.1, 0.1, "attention_mask")
    verdicts = []
    for name in pb.Verdict.keys()[1:]:
        part = evidence()
        part.verdict, part.rank = pb.Verdict.Value(name), 4
        verdicts.append(
            shown(pb.ExplainResponse(attribution=attribution()), pb.ExplainResponse(evidence=part)).partition("\nevidence: ")[2]
        )

    assert_approved(
        Path(__file__).parent / "approved/explanations.txt",
        {
            "every part": shown(
                pb.ExplainResponse(attribution=attribution()),
                pb.ExplainResponse(evidence=evidence()),
                deciding(),
                pb.ExplainResponse(reason=pb.Reason(text="Positive, mostly because of “good”; “not” speaks against it.", method="shapley")),
                *counterfactuals(),
                neuron(1e-7),
                *geometry(),
            ),
            "evidence of every verdict": "\n".join(verdicts),
            "evidence of too few sets": "\n".join(_evidence(few, words, 200)[0] for words in (6, 7)),
            "a neuron view that differs from the model": shown(neuron(0.02)),
            "a label against another": against_neutral(),
            "a text of many sentences": long_text(sentences=True),
            "sentences without values": long_text(sentences=False),
            "deciding words": "\n".join(
                [
                    searched(words=[3], changing_words=[2, 3]),
                    searched(verdict=pb.VERDICT_INCONCLUSIVE, rank=4, p_value=0.2, changing_words=[]),
                    searched(verdict=pb.VERDICT_NOT_FAITHFUL, rank=15, p_value=0.75, changing_words=[]),
                    searched(verdict=pb.VERDICT_INCONCLUSIVE, random_sets=14, changing_words=[]),
                ]
            ),
        },
    )


def test_a_label_has_one_hue_in_every_model_and_text() -> None:
    assert label_hues(("negative", "positive", "neutral")) == {"negative": BLUE, "positive": ORANGE, "neutral": GREY}
    assert label_hues(("Positive", "anger", "joy")) == {"Positive": ORANGE, "anger": BLUE, "joy": GREY}
    assert list(label_hues([f"{stars} stars" for stars in range(7)]).values()) == [BLUE, ORANGE, GREY, GREEN, VIOLET, BLUE, ORANGE]
    assert direction_hues(("negative", "positive"), "negative", "positive") == (ORANGE, BLUE)
    assert direction_hues(("negative", "positive", "neutral"), "neutral", "positive") == (ORANGE, GREY)
    assert direction_hues(("negative", "positive", "neutral"), "neutral", None) == (VIOLET, GREY)


def test_colours_do_not_change_the_text() -> None:
    drawn = shown(pb.ExplainResponse(attribution=attribution()), colour=True)

    assert "café 🙂 not good [not read, 6 characters: , rest]" in CODES.sub("", drawn).splitlines()
    assert f"48;5;{ORANGE.backgrounds[-1]};1mgood\x1b[0m" in drawn
    assert "\x1b[2m[not\x1b[0m" in drawn


def test_a_word_that_cannot_be_told_from_zero_is_unmarked() -> None:
    told, untold = attribution(), attribution()
    told.words[-1].standard_error, untold.words[-1].standard_error = 1.49, 1.5

    for found, marked in ((told, True), (untold, False)):
        plain, drawn = (shown(pb.ExplainResponse(attribution=found), colour=colour) for colour in (False, True))
        assert ("good[+3.00]" in plain, ";1mgood" in drawn) == (marked, marked)
        assert ("no number: no clear effect" in plain, "uncoloured: no clear effect" in drawn) == (not marked, not marked)
        assert "+3.000 +-1." in plain


def test_words_stand_out_of_sentences_that_count() -> None:
    drawn = long_text(sentences=True, colour=True)

    def background(word: str) -> list[str]:
        return re.findall(rf"48;5;(\d+);[\d;]*m{word}\x1b", drawn)[:1]

    steps = [[str(code)] for code in ORANGE.backgrounds]
    assert [background(word) for word in ("s0a", "s0c", "s2a", "s2c")] == [steps[5], steps[4], steps[2], steps[0]]
    # Within two standard errors, and in equal parts.
    assert background("s3a") == []
    assert background("s1a") == background("s1b") == [str(BLUE.backgrounds[0])]


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_wider_than_the_terminal(colour: bool, width: int) -> None:
    drawn = shown(
        pb.ExplainResponse(attribution=attribution()), pb.ExplainResponse(evidence=evidence()), *geometry(), colour=colour, width=width
    )

    assert max(columns(CODES.sub("", line)) for line in drawn.splitlines()) <= max(width, 80)


def test_text_labels_and_notes_cannot_control_the_terminal() -> None:
    start, end = header(), summary()
    evil = "\x1b]0;x\x07\x9b2J\u202e"
    start.label = start.prediction.label = start.model.name = evil
    start.tokens[1].piece = evil
    end.summary.notes.append(evil)
    text = evil + TEXT[len(evil) :]

    drawn = page(explanation_of([pb.ExplainResponse(header=start), end], text), colour=False, width=80)

    assert not set(drawn) & set("\x1b\x07\x9b\u202e")
    assert r"\x9b" in drawn


def test_long_golden_words_are_cut_and_cannot_control_the_terminal() -> None:
    lines = shown(*geometry(("\x1b[2J" + "x" * 80, "bad", "movie")), width=64).splitlines()

    (first, *_) = (line for line in lines if "1.00 " in line)
    assert first.split() == ["café", "1.00", "\\x1b[2Jxxx...", "0.75", "movie"]
    assert max(map(columns, lines)) <= 64
