"""Terminal output: control characters are escaped, lines keep their width, and every colour is readable."""

import re

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
from sentiment.client.explanations import Evidence
from sentiment.files.visible import columns, fitted, visible
from sentiment.v1 import sentiment_pb2 as pb
from tests.core.client.explained import READ, TEXT, attribution, evidence, geometry, header, messages, span, summary

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

    assert f"48;5;{ORANGE.backgrounds[-1]}m" in background(LOGITS_FULL) == background(50.0)
    assert f"48;5;{BLUE.backgrounds[-1]};4m" in background(-LOGITS_FULL) == background(-50.0)
    assert f"48;5;{ORANGE.backgrounds[0]}m" in background(0.06)
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


def test_the_text_is_printed_with_numbers_and_unread_parts_are_marked() -> None:
    lines = shown(pb.ExplainResponse(attribution=attribution())).splitlines()

    assert lines[0] == "positive 0.8750  tiny/1"
    assert "café[+0.25] 🙂 not[-1.50] good[+3.00] [not read, 6 characters: , rest]" in lines
    assert "-: towards negative; +: towards positive" in lines
    assert "shapley, 10 of 20 orders, in logits" in lines
    assert [line.split()[:3] for line in lines if "+-" in line] == [
        ["good", "+3.000", "+-0.125"],
        ["not", "-1.500", "+-0.125"],
        ["🙂", "+0.000", "+-0.125"],
    ]
    assert "note: shapley drew 10 of 20 orders" in lines


def long_text(residual: float | None) -> list[str]:
    """The lines about an attribution of nine sentences, which sum to 1, -2, 3, and so on to 9; each has five words."""
    text = " ".join(f"s{number}a s{number}b s{number}c s{number}d ." for number in range(9))
    start, values = header(), []
    del start.words[:], start.tokens[:], start.unseen[:]
    found = pb.Attribution(method="two_step_shapley", steps=2, steps_asked=2, completeness_residual=residual)
    for index, place in enumerate(re.finditer(r"\S+", text)):
        sentence, word = divmod(index, 5)
        start.words.add(span=span(*place.span(), text), token_start=index, token_end=index + 1, sentence=sentence)
        start.tokens.add(piece=place.group(), span=span(*place.span(), text), word=index)
        values.append((sentence + 1) * (-1) ** sentence * (0.5, 0.3, -0.1, 0.3, 0.0)[word])
        found.words.add(span=span(*place.span(), text), value=values[-1], standard_error=0.0)
    given = [pb.ExplainResponse(header=start), pb.ExplainResponse(attribution=found), summary()]
    return page(explanation_of(given, text), colour=False, width=80).splitlines()


def test_a_long_text_shows_its_sentences_by_size_and_the_largest_words_of_each() -> None:
    lines = long_text(residual=0.0)

    sentences = [line for line in lines if "%  " in line]
    assert sentences == [
        "    +9.000  20%  s8a s8b s8c s8d .",
        "    -8.000  18%  s7a s7b s7c s7d .",
        "    +7.000  16%  s6a s6b s6c s6d .",
        "    -6.000  13%  s5a s5b s5c s5d .",
        "    +5.000  11%  s4a s4b s4c s4d .",
    ]
    first = lines.index(sentences[0])
    assert [line.split()[:2] for line in lines[first + 1 : first + 4]] == [["s8a", "+4.500"], ["s8b", "+2.700"], ["s8d", "+2.700"]]
    assert next(line.split() for line in lines if "other sentences" in line) == ["4", "other", "sentences", "-2.000"]


def test_a_label_has_one_hue_in_every_model_and_text() -> None:
    assert label_hues(("negative", "positive", "neutral")) == {"negative": BLUE, "positive": ORANGE, "neutral": GREY}
    assert label_hues(("Positive", "anger", "joy")) == {"Positive": ORANGE, "anger": BLUE, "joy": GREY}
    assert list(label_hues([f"{stars} stars" for stars in range(7)]).values()) == [BLUE, ORANGE, GREY, GREEN, VIOLET, BLUE, ORANGE]
    assert direction_hues(("negative", "positive"), "negative", "positive") == (ORANGE, BLUE)
    assert direction_hues(("negative", "positive", "neutral"), "neutral", "positive") == (ORANGE, GREY)
    assert direction_hues(("negative", "positive", "neutral"), "neutral", None) == (VIOLET, GREY)


def test_values_that_do_not_sum_to_anything_have_no_sentences() -> None:
    lines = long_text(residual=None)

    assert not any("%  " in line for line in lines)
    assert any("25 other words" in line for line in lines)


def test_colours_do_not_change_the_text() -> None:
    drawn = shown(pb.ExplainResponse(attribution=attribution()), colour=True)

    assert "café 🙂 not good [not read, 6 characters: , rest]" in CODES.sub("", drawn).splitlines()
    assert f"48;5;{ORANGE.backgrounds[-1]}mgood\x1b[0m" in drawn
    assert "\x1b[2m[not\x1b[0m" in drawn


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


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (pb.VERDICT_BETTER_THAN_RANDOM, "moves the answer more than any of 19 random sets of as many (p = 0.05)"),
        (pb.VERDICT_INCONCLUSIVE, "3 of 19 random sets of as many move the answer at least as much"),
        (pb.VERDICT_NOT_FAITHFUL, "do not rely on these values"),
        (pb.VERDICT_FLAT, "too little to judge a ranking by"),
    ],
)
def test_every_verdict_has_words(verdict: pb.Verdict.ValueType, words: str) -> None:
    part = evidence()
    part.verdict, part.rank = verdict, 4

    drawn = " ".join(shown(pb.ExplainResponse(attribution=attribution()), pb.ExplainResponse(evidence=part)).split())

    assert f"evidence: {pb.Verdict.Name(verdict).removeprefix('VERDICT_')}: " in drawn
    assert words in drawn


@pytest.mark.parametrize(
    ("words", "reason"),
    [(6, "the text is too short to tell: it takes 7 words"), (7, "it takes 19 random sets to tell, and there was time for 14")],
)
def test_evidence_with_too_few_sets_says_why_it_cannot_tell(words: int, reason: str) -> None:
    few = Evidence("m", "INCONCLUSIVE", 0.2, 0.1, 14, 1 / 15, 0.0, None, 2, 1, 0.1, 0.1, 0.1, "attention_mask")

    assert _evidence(few, words, 200)[0] == f"evidence: INCONCLUSIVE: {reason}"


def test_counterfactuals_have_words() -> None:
    flip = pb.Counterfactual(
        kind=pb.COUNTERFACTUAL_KIND_FLIP, found=True, words=[2], label="negative", score=0.93, minimal=True, exhaustive_below=1
    )
    keep = pb.Counterfactual(kind=pb.COUNTERFACTUAL_KIND_KEEP, found=False, stopped=True)
    empty = pb.Counterfactual(kind=pb.COUNTERFACTUAL_KIND_KEEP, found=True, label="positive", score=0.5)
    asked = pb.Counterfactual(kind=pb.COUNTERFACTUAL_KIND_ASKED, found=True, words=[0, 3], label="negative", score=0.75, rows=1)

    lines = shown(*(pb.ExplainResponse(counterfactual=found) for found in (flip, keep, empty, asked))).splitlines()

    assert 'without "not": negative 0.93 (no smaller set does it)' in lines
    assert "no words found that alone make positive the answer; time or rows ran out" in lines
    assert "no word is needed; without words: positive 0.50" in lines
    assert 'without "café" "good", as asked: negative 0.75' in lines


@pytest.mark.parametrize(("error", "doubtful"), [(1e-7, False), (0.02, True)])
def test_a_neuron_view_says_where_a_token_looks_most(error: float, doubtful: bool) -> None:
    keys = len(header().tokens)
    view = pb.NeuronView(layer=1, head=0, token=3, query=[1], keys=keys, key=[1] * keys, product=[1] * keys, max_abs_error=error)
    for name in ("dot", "scaled", "bias", "attention"):
        getattr(view, name).extend([0] * keys)
    view.score.extend(range(keys))
    view.softmax.extend([0.0, 0.125, 0.0, 0.75, 0.125, 0.0])

    lines = shown(pb.ExplainResponse(neuron=view)).splitlines()

    place = lines.index("neuron view: where token 3 (not) looks in layer 1, head 0")
    assert lines[place + 1 : place + 3] == ["  0.750  score   +3.000  not", "  0.125  score   +1.000  café"]
    assert ("  differs from the model by up to 0.02" in lines) == doubtful


def test_geometry_lists_the_closest_golden_words_in_the_embeddings_and_the_last_layer() -> None:
    lines = shown(*geometry()).splitlines()

    place = next(number for number, line in enumerate(lines) if line.startswith("geometry: "))
    heading, *rows = lines[place + 2 : place + 7]
    assert heading.split() == ["embeddings", "last", "layer"]
    assert rows[2] == "  not                     1.00 good  -0.25 bad        0.75 movie  -0.25 bad"
    assert heading.index("embeddings") == rows[2].index("1.00")
    assert [row.split()[0] for row in rows] == list(READ)
    assert lines[place + 7] == ""


def test_long_golden_words_are_cut_and_cannot_control_the_terminal() -> None:
    lines = shown(*geometry(("\x1b[2J" + "x" * 80, "bad", "movie")), width=64).splitlines()

    (first, *_) = (line for line in lines if "1.00 " in line)
    assert first.split() == ["café", "1.00", "\\x1b[2Jxxx...", "0.75", "movie"]
    assert max(map(columns, lines)) <= 64


def test_a_long_text_shows_the_geometry_of_its_first_words() -> None:
    text = " ".join(f"w{number}" for number in range(23))
    start = header()
    del start.words[:], start.tokens[:], start.unseen[:]
    for index, place in enumerate(re.finditer(r"\S+", text)):
        start.words.add(span=span(*place.span(), text), token_start=index, token_end=index + 1)
        start.tokens.add(piece=place.group(), span=span(*place.span(), text), word=index)
    part = pb.WordGeometry(points=[0] * 46, golden=["good"], golden_points=[0, 0], variance=[1, 0], nearest=[0] * 23, cosines=[0.5] * 23)

    drawn = page(
        explanation_of([pb.ExplainResponse(header=start), pb.ExplainResponse(geometry=part), summary()], text), colour=False, width=80
    )

    assert [line.split()[0] for line in drawn.splitlines() if "0.50 good" in line] == [f"w{number}" for number in range(20)]
    assert "  3 other words" in drawn.splitlines()


def test_a_label_against_another_is_named_wherever_values_are() -> None:
    first = header()
    first.against = "neutral"
    first.prediction.scores.add(label="neutral", score=0.0)
    parts = [pb.ExplainResponse(attribution=attribution()), pb.ExplainResponse(evidence=evidence())]
    all_parts = [pb.ExplainResponse(header=first), *parts, summary()]

    shown = page(explanation_of(all_parts, TEXT), colour=False, width=200)

    assert "explained: the logit of positive minus that of neutral, +1.250" in shown
    assert "-: towards neutral; +: towards positive" in shown
    assert "probability of positive rather than neutral lost without them" in shown
