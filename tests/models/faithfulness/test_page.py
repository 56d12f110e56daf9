"""What is said of a study: what holds is said to hold, what does not is said plainly; text, page and pictures."""

from pathlib import Path

import numpy as np
import pytest

from sentiment_models.explanations import attention_tables, tables
from sentiment_models.explanations.aggregate import agreement
from sentiment_models.explanations.conclusions import in_words, status
from sentiment_models.explanations.findings import EvidenceFound, Findings
from sentiment_models.explanations.page import as_page, as_text
from sentiment_models.explanations.pictures import by_fraction, forest, heads_map, tau_matrix
from sentiment_models.explanations.rankings import Scores
from tests.approved import assert_approved
from tests.models.faithfulness.made_up import DEFAULT, OPERATORS, attention, comparison, dataset, difference, findings, heads
from tests.models.test_report import PNG, read


def said(found: Findings) -> str:
    return "\n".join(in_words(found.datasets["made/dev"], found.default_method, found.operators))


def without_default_over_random(mean: float) -> Findings:
    """The default clear of chance under the attention mask, and by the mask token as told."""
    found = findings()
    one = found.datasets["made/dev"]
    method = one.methods[DEFAULT]
    changed = method.operators["mask_token"].model_copy(update={"over_random": difference(mean), "under_random": difference(mean)})
    operators = {**method.operators, "mask_token": changed}
    methods = {**one.methods, DEFAULT: method.model_copy(update={"operators": operators})}
    return found.model_copy(update={"datasets": {"made/dev": one.model_copy(update={"methods": methods})}})


def aim(share: float | None, tested: int = 20) -> str:
    """What is said of the target, reached for this share of the texts that evidence could test."""
    one = findings().datasets["made/dev"]
    interval = None if share is None else (round(share - 0.04, 2), round(share + 0.04, 2))
    counts = {"better_than_random": 18, "inconclusive": 2, "not_faithful": 0, "flat": 0}
    told = EvidenceFound(**counts, tested=tested, better_of_tested=share, better_interval=interval)
    methods = {**one.methods, DEFAULT: one.methods[DEFAULT].model_copy(update={"evidence": told})}
    return in_words(one.model_copy(update={"methods": methods, "deciding": None}), DEFAULT, OPERATORS)[-1]


def of_attention(**changes: object) -> str:
    found = attention().model_copy(update=changes)
    notes = [f"{one.title}: {one.note}" for one in attention_tables.attention_tables(found)]
    return "\n".join([*notes, attention_tables.not_measured(found)])


def bare() -> Findings:
    """A study of a bundle without an explain graph."""
    one = dataset().model_copy(update={"attention": None, "heads": None, "agreement": None, "comparisons": ()})
    return findings().model_copy(update={"datasets": {"made/dev": one}, "plausibility": None})


def test_a_study_says_what_was_approved() -> None:
    rivals = (comparison("rollout", 0.2), comparison("rollout_gradient", -0.1), comparison("attention_last_cls", 0.01))
    contrary = {
        "tau_gradient": {"a": 0.7},
        "tau_loo": {"a": 0.5},
        "adversarial": {"0.01": (0.05, 0.02)},
        "top_weight": difference(0.001),
        "flip_share": {"attention": 0.2, "random": 0.9},
        "uniform_accuracy": (0.9, 0.95),
    }
    unmeasured = dict.fromkeys(("adversarial", "top_weight", "flip_share", "randomisation"))

    assert_approved(
        Path(__file__).parent / "approved/study.txt",
        {
            "a study": as_text(findings()),
            "the default does not clearly beat random orders with one operator": said(without_default_over_random(0.005)),
            "the default is worse than random orders with one operator": said(without_default_over_random(-0.1)),
            "attention that is not beaten": said(findings(comparisons=rivals)),
            "the aim": "\n".join([aim(0.92), aim(0.94, 19), aim(0.94), aim(0.85), aim(None, 0)]),
            "without an explain graph": said(bare()),
            "attention that disagrees with its papers": of_attention(**contrary),
            "no decision flips": of_attention(flip_share={"attention": 1.0}, flips={"attention": 0.0}),
            "texts too short": of_attention(tau_gradient={}, tau_loo={}, randomisation=None),
            "another architecture": of_attention(**unmeasured),
            "patterns": "\n".join(map(str, tables.patterns(heads()).rows)),
            "notes of the page": "\n\n".join(
                table.note
                for table in (
                    *(make(dataset(), OPERATORS[0]) for make in (tables.faithfulness, tables.more_faithfulness)),
                    *(make(dataset(), OPERATORS) for make in (tables.comparisons, tables.verdicts)),
                    tables.costs(dataset()),
                    tables.heads(heads()),
                    tables.patterns(heads()),
                )
            ),
        },
    )


@pytest.mark.parametrize(
    ("means", "expected"),
    [((0.1, 0.2), "better"), ((-0.1, -0.2), "worse"), *((means, "unclear") for means in ((0.1, 0.01), (0.1, -0.1), (0.1, None), ()))],
)
def test_a_status_needs_every_operator(means: tuple[float | None, ...], expected: str) -> None:
    assert status([None if mean is None else difference(mean) for mean in means]) == expected


@pytest.mark.usefixtures("undrawn")
def test_a_page_is_one_file_with_every_part_and_its_pictures() -> None:
    html = as_page(findings())

    parser = read(html)
    images = [value for tag, name, value in parser.attributes if (tag, name) == ("img", "src")]
    assert len(images) == 6
    assert all(image.startswith("data:image/png;base64,") for image in images)
    assert all(value for tag, name, value in parser.attributes if (tag, name) == ("img", "alt"))
    assert not {"script", "link"} & {tag for tag, *_ in parser.attributes}
    for title in ("Summary", "Faithfulness", "Do methods agree?", "Does attention explain?", "Heads", "Patterns", "Agreement with people"):
        assert f"<h2>{title}</h2>" in html
    assert "digest " + "d" * 64 in html
    assert "<h2>Heads, two</h2>" in as_page(findings(("one", "two")))
    assert "Does attention explain?" not in as_page(bare())


def test_pictures_are_pngs_and_equal_for_equal_findings() -> None:
    rows = {"occlusion": {"attention_mask": difference(0.1), "mask_token": None}, "rollout": {"attention_mask": difference(0.0)}}
    drawn = [
        (
            by_fraction(dataset(), OPERATORS),
            forest(rows, "x", "t"),
            heads_map(heads(), "t"),
            tau_matrix({"occlusion": {"occlusion": 1.0}, "rollout": {}}, "t"),
        )
        for _ in range(2)
    ]

    assert drawn[0] == drawn[1]
    assert all(png.startswith(PNG) for png in drawn[0])


def test_methods_agree_as_their_orders_do() -> None:
    def scored(*values: float) -> Scores:
        return Scores(np.array(values), 0, 0.0)

    texts = [
        {"occlusion": scored(3, 2, 1), "rollout": scored(1, 2, 3), "lexicon": scored(3, 1, 2), "position_first": scored(3, 2, 1)},
        {"occlusion": scored(3, 2, 1), "rollout": scored(6, 5, 4), "lexicon": scored(0, 0, 0), "position_first": scored(3, 2, 1)},
        {"occlusion": scored(1), "rollout": scored(1), "lexicon": scored(1), "position_first": scored(1)},
    ]

    found = agreement(texts)

    assert list(found) == ["occlusion", "rollout", "lexicon"]
    assert found["occlusion"] == {"occlusion": 1.0, "rollout": 0.0, "lexicon": 0.3333}
    assert found["rollout"]["lexicon"] == found["lexicon"]["rollout"] == -0.3333
