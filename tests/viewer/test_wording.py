"""The page chooses the same sentences as the terminal: wording.js against explanation_text.py."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Page

from sentiment.cli.explanation_text import _changing, _counterfactual, _deciding, _directions, _evidence, _explained, _moved

pytestmark = pytest.mark.needs_tool("chromium")

WORDS = ["The", "loved", "جيد", "a\u202eb", "x\ny", "film"]
HEADER = {
    "label": "positive",
    "against": None,
    "prediction": {"label": "positive", "score": 0.76, "scores": [{"label": "negative"}, {"label": "positive"}]},
    "words": [{"text": word, "pair": False} for word in WORDS],
}
EXPLANATION: Any = SimpleNamespace(words=[SimpleNamespace(text=word) for word in WORDS], explained="positive", label="positive")
WIDE = 10**6


def said(modules: Page, call: str, cases: list[Any]) -> list[str]:
    """What a call of wording.js says of each case, without the signs that keep a word's direction to itself."""
    script = f"""async ([header, cases]) => {{
      const wording = await import("/viewer/wording.js");
      return cases.map((found) => wording.{call});
    }}"""
    sentences: list[str] = modules.evaluate(script, [HEADER, cases])
    return [sentence.replace("\u2068", "").replace("\u2069", "") for sentence in sentences]


def camel(fields: dict[str, Any]) -> dict[str, Any]:
    names = {name: name.split("_")[0] + "".join(part.title() for part in name.split("_")[1:]) for name in fields}
    return {names[name]: value for name, value in fields.items()}


@pytest.mark.parametrize("explained", ["positive", "negative"])
@pytest.mark.parametrize("kind", ["flip", "keep"])
def test_a_counterfactual_reads_as_in_the_terminal(modules: Page, kind: str, explained: str) -> None:
    sets: list[list[int]] = [[], [1], [0, 2, 3, 4], [0, 1, 2, 3, 4, 5] * 3]
    names = ("found", "words", "minimal", "exhaustive_below", "stopped")
    rows = product((True, False), sets, (True, False), (0, 1, 9), (True, False))
    cases = [{"kind": kind, "label": "negative", "score": 0.857, **dict(zip(names, row, strict=True))} for row in rows]

    sentences = said(modules, f"counterfactualSentence({{...header, label: '{explained}'}}, found)", [camel(case) for case in cases])

    explanation: Any = SimpleNamespace(**{**vars(EXPLANATION), "explained": explained})
    assert sentences == [_counterfactual(explanation, SimpleNamespace(**case)) for case in cases]  # type: ignore[arg-type]  # its fields


@pytest.mark.parametrize("verdict", ["BETTER_THAN_RANDOM", "INCONCLUSIVE", "NOT_FAITHFUL", "FLAT"])
@pytest.mark.parametrize("words", [2, 6, 7, 40])
def test_a_verdict_reads_as_in_the_terminal(modules: Page, verdict: str, words: int) -> None:
    names = ("words", "random_sets", "p_value", "rank")
    rest = {"verdict": verdict, "comprehensiveness": 0.1, "sufficiency": 0.2, "agreement": None, "random_median": 0.1}
    cases = [{**rest, **dict(zip(names, row, strict=True))} for row in product((1, 3), (0, 1, 19), (0.05, 0.15, 1 / 3, 1.0), (1, 4))]

    sentences = said(modules, f"evidenceSentence(found, {words})", [camel(case) for case in cases])

    wanted = [_evidence(SimpleNamespace(**case), words, WIDE)[0] for case in cases]  # type: ignore[arg-type]  # its fields
    assert [f"evidence: {verdict}: {sentence}" for sentence in sentences] == wanted


def test_deciding_words_read_as_in_the_terminal(modules: Page) -> None:
    names = ("verdict", "words", "changing_words", "random_sets", "rank")
    verdicts = ("BETTER_THAN_RANDOM", "INCONCLUSIVE", "NOT_FAITHFUL", "LATER")
    rows = product(verdicts, ([1], [0, 2, 3]), ([4], [0, 1, 2, 3]), (19, 5), (1, 2, 5))
    cases = [{"p_value": 0.15, "label": "negative", "score": 0.857, **dict(zip(names, row, strict=True))} for row in rows]

    tested = said(modules, "decidingSentence(header, found)", [camel(case) for case in cases])
    changing = said(modules, "changingSentence(header, found)", [camel(case) for case in cases])

    assert tested == [_deciding(EXPLANATION, SimpleNamespace(**case)) for case in cases]  # type: ignore[arg-type]  # its fields
    assert changing == [_changing(EXPLANATION, SimpleNamespace(**case)) for case in cases]  # type: ignore[arg-type]  # as above
    assert said(modules, "changingSentence(header, found)", [{"changingWords": [], "label": "", "score": 0}]) == [""]


def test_what_is_explained_against_another_label_reads_as_in_the_terminal(modules: Page) -> None:
    scores = [{"label": name, "score": share} for name, share in (("negative", 0.1), ("neutral", 0.3), ("positive", 0.6))]
    shown = {**HEADER, "against": "neutral", "logit": 0.7, "logitError": None, "prediction": {**HEADER["prediction"], "scores": scores}}  # type: ignore[dict-item]  # a dictionary
    explanation: Any = SimpleNamespace(
        explained="positive", against="neutral", logit=0.7, scores={one["label"]: one["score"] for one in scores}
    )

    (sentence,) = said(modules, "explainedSentence(found)", [shown])
    (towards,) = said(modules, "directionNames(found).against", [shown])
    (title,) = said(modules, "evidenceNumbers(found, {comprehensiveness: 0, sufficiency: 0, agreement: null})[0].title", [shown])

    assert sentence == f"explained: {_explained(explanation)}, +0.700" == "explained: the logit of positive minus that of neutral, +0.700"
    assert f"-: {towards}" in "".join(_directions(explanation, WIDE, colour=False))
    assert title == f"probability{_moved(explanation)} without them"


@pytest.mark.parametrize(
    ("against", "answer", "logit", "verb"),
    [
        (None, "positive", 0.7, "lost"),
        (None, "negative", 0.7, "gained"),
        ("neutral", "negative", 0.7, "lost"),
        ("neutral", "neutral", -0.7, "gained"),
    ],
)
def test_a_label_that_is_not_the_answer_gains_without_the_words_against_it(
    modules: Page, against: str | None, answer: str, logit: float, verb: str
) -> None:
    shown = {**HEADER, "against": against, "logit": logit, "prediction": {"label": answer}}
    explanation: Any = SimpleNamespace(explained="positive", against=against, logit=logit, label=answer)
    numbers = "{comprehensiveness: 0.9, sufficiency: 0.1, agreement: null}"

    (titles,) = said(modules, f"evidenceNumbers(found, {numbers}).map((row) => row.title).join()", [shown])

    of = " of positive rather than neutral" if against else ""
    assert titles == f"probability{of} {verb} without them,probability{of} {verb} with them alone"
    assert _moved(explanation) == f"{of} {verb}"


def test_the_page_names_words_for_the_explained_label_where_it_beats_the_other(modules: Page) -> None:
    cases = [{**HEADER, "against": "neutral", "logit": logit} for logit in (0.7, -0.7)]

    found = said(modules, "evidenceWords(found, {words: [0.1, -2, 1, 0, 0, 0]}, {words: 1}).toString()", cases)

    assert found == ["2", "1"]


def test_a_number_has_a_minus_sign_and_zero_has_none(modules: Page) -> None:
    assert said(modules, "signedNumber(found)", [1.716, -1.06, 0, -0.001]) == ["+1.72", "\u22121.06", "0.00", "0.00"]


def test_the_digits_of_a_number_depend_on_its_size(modules: Page) -> None:
    assert said(modules, "plainNumber(found)", [1.716, -106.26, 0, -0.001]) == ["1.72", "\u2212106.3", "0.00", "0.00"]
    assert said(modules, "plainNumber(-found / 0)", [1]) == ["\u2212∞"]


def test_a_long_word_is_cut_in_sentences(modules: Page) -> None:
    assert said(modules, "quotedWord(found)", ["😀" * 100, "x" * 60]) == [f'"{"😀" * 60}\u2026"', f'"{"x" * 60}"']
