"""What is said of a study: what holds is said to hold, what does not is said plainly; text, page and pictures."""

import numpy as np
import pytest

from sentiment_models.explanations import tables
from sentiment_models.explanations.agreement import agreement
from sentiment_models.explanations.conclusions import in_words, status
from sentiment_models.explanations.findings import EvidenceFound, Findings
from sentiment_models.explanations.page import as_page, as_text
from sentiment_models.explanations.pictures import Row, by_fraction, forest, heads_map, tau_matrix
from sentiment_models.explanations.rankings import Scores
from sentiment_models.study import attention_tables
from tests.models.faithfulness.made_up import DEFAULT, OPERATORS, attention, comparison, dataset, difference, findings, heads, plausibility
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


@pytest.mark.parametrize(
    ("means", "expected"),
    [((0.1, 0.2), "better"), ((-0.1, -0.2), "worse"), *((means, "unclear") for means in ((0.1, 0.01), (0.1, -0.1), (0.1, None), ()))],
)
def test_a_status_needs_every_operator(means: tuple[float | None, ...], expected: str) -> None:
    assert status([None if mean is None else difference(mean) for mean in means]) == expected


def test_what_the_default_beats_is_named_and_what_it_does_not_too() -> None:
    text = said(findings())

    assert "integrated_gradients, the default, beats random orders with both operators" in text
    assert (
        "integrated_gradients beats every attention method with every operator: "
        "attention_last_cls, attention_mean_cls, rollout, rollout_value_norms, rollout_gradient." in text
    )
    assert "beats gradient_x_input, two_step_shapley; it does not clearly beat shapley [by attention_mask -0.010" in text
    assert "it does worse than occlusion [by attention_mask -0.020 (-0.035 to -0.005), by mask_token" in text
    assert "Worse than random orders with every operator: rollout." in text
    assert "with every operator: attention_last_cls, attention_mean_cls, rollout_value_norms, rollout_gradient." in text
    assert "better than random on 83.0 % (78.0 % to 88.0 %) of the 36 texts that are not flat and have 19 random sets." in text
    assert "The target of 90 % is missed. The verdict erases words by attention_mask, as occlusion and shapley do." in text
    assert (
        "integrated_gradients beats every baseline method with every operator: "
        "position_first, position_last, inverse_frequency, lexicon." in text
    )
    assert "default_unsigned ranks by the absolute values of the default" in text
    assert "Compared with attention methods, default_unsigned beats attention_last_cls, attention_mean_cls, rollout, " in text
    assert "it does worse than rollout_gradient [by attention_mask -0.130" in text
    assert "The best baseline that does not use the model is lexicon: comprehensiveness 0.310 and 0.310" in text


@pytest.mark.parametrize("mean", [0.005, -0.1], ids=["unclear", "worse"])
def test_a_default_that_wins_under_one_way_of_erasing_only_is_not_called_better(mean: float) -> None:
    text = said(without_default_over_random(mean))

    assert "is not shown to beat random orders with both operators; the drop in probability, minus that of random words" in text
    assert "are not shown to keep more of the probability than random ones" in text
    assert "beats random orders" not in text
    assert "lowers the probability more" not in text


def test_an_attention_method_that_is_not_beaten_is_said_so() -> None:
    found = findings(comparisons=(comparison("rollout", 0.2), comparison("rollout_gradient", -0.1), comparison("attention_last_cls", 0.01)))

    text = said(found)

    assert "Compared with attention methods, integrated_gradients beats rollout; it does not clearly beat attention_last_cls [" in text
    assert "it does worse than rollout_gradient [by attention_mask -0.100" in text
    assert "every attention method" not in text


def test_the_aim_of_evidence_is_reached_or_could_not_be_tested() -> None:
    one = findings().datasets["made/dev"]

    def with_evidence(told: EvidenceFound) -> str:
        methods = {**one.methods, DEFAULT: one.methods[DEFAULT].model_copy(update={"evidence": told})}
        return in_words(one.model_copy(update={"methods": methods}), DEFAULT, OPERATORS)[-1]

    counts = {"better_than_random": 18, "inconclusive": 2, "not_faithful": 0, "flat": 0}

    def near(share: float, tested: int = 20) -> str:
        interval = (round(share - 0.04, 2), round(share + 0.04, 2))
        return with_evidence(EvidenceFound(**counts, tested=tested, better_of_tested=share, better_interval=interval))

    assert "92.0 % (88.0 % to 96.0 %) of the 20 texts" in near(0.92)
    assert "The target of 90 % is neither shown to be reached nor to be missed" in near(0.92)
    assert "is neither shown to be reached nor to be missed" in near(0.94, tested=19)
    assert "The target of 90 % is reached" in near(0.94)
    assert "The target of 90 % is missed" in near(0.85)
    assert "could not test any text" in with_evidence(EvidenceFound(**counts, tested=0, better_of_tested=None))


def test_tables_hold_the_figures_with_the_best_first() -> None:
    one = dataset()

    faithful, more = tables.faithfulness(one, "mask_token"), tables.more_faithfulness(one, "mask_token")
    verdicts, against, costs = tables.verdicts(one, OPERATORS), tables.comparisons(one, OPERATORS), tables.costs(one)

    assert [row[0] for row in faithful.rows[:3]] == [row[0] for row in more.rows[:3]] == ["greedy (30 texts)", "occlusion", "shapley"]
    interval = ("+0.300", "+0.285 to +0.315")
    assert next(row for row in faithful.rows if row[0] == DEFAULT)[1:6] == ("0.400", *interval, "0.150", "+0.150")
    assert next(row for row in more.rows if row[0] == DEFAULT)[1:] == ("attribution", "30.0 %", "0.300", "0.500", "0.700", "0.800")
    told = {row[0]: row for row in verdicts.rows}
    assert told[DEFAULT][1:7] == ("better", "83.0 % (78.0 % to 88.0 %)", 30, 5, 3, 2)
    assert told["rollout"][1] == "worse"
    assert told["rollout_gradient"][1] == "unclear"
    assert told["greedy"][1:3] == ("better", None)
    assert costs.rows[0] == (DEFAULT, "0.910", "0.010 to 0.040", "24.0", "12.5")
    assert "changes that do not change the tokens are left out (case in 40 texts, space in 39 texts)" in (costs.note or "")
    # Neither random orders nor a searched one are scores of words.
    assert not {"random", "greedy", "default_unsigned"} & {row[0] for row in costs.rows}
    assert [row[-1] for row in against.rows[:3]] == ["yes", "worse", "no"]
    assert [row[:2] for row in against.rows[-2:]] == [
        ("default_unsigned", "rollout_value_norms"),
        ("default_unsigned", "rollout_gradient"),
    ]
    assert "have a sign" in (against.note or "")


def test_heads_are_listed_by_effect_and_patterns_with_their_clearest_head() -> None:
    most, patterns = tables.heads(heads()), tables.patterns(heads())

    assert most.rows[0] == (2, 1, 0.9, "sep", "70 %")
    assert [row[2] for row in most.rows] == sorted((row[2] for row in most.rows), reverse=True)
    # Patterns without a lift were measured on no text.
    assert patterns.rows[0] == ("next", 1, "1.1", 0.8)
    assert ("broad", 1, None, None) in patterns.rows
    assert sum(row[1] for row in patterns.rows) == 6


CORRELATION, ADVERSARIAL, ONE_WEIGHT, FLIPS, UNIFORM, RANDOMISED = (
    *("Attention and other importance measures", "Adversarial attention", "Removing one attention weight"),
    *("Removing attention until the decision flips", "Uniform attention", "Model randomisation"),
)


def attention_notes(**changes: object) -> dict[str, str]:
    return {one.title: one.note for one in attention_tables.attention_tables(attention().model_copy(update=changes))}


def test_each_test_of_attention_ends_with_what_its_paper_found() -> None:
    papers = ("correlation", "adversarial", "erasure", "erasure", "uniform", "randomisation")

    notes = attention_notes()

    assert list(notes) == [CORRELATION, ADVERSARIAL, ONE_WEIGHT, FLIPS, UNIFORM, RANDOMISED]
    assert [note.endswith(attention_tables.PAPER[paper]) for note, paper in zip(notes.values(), papers, strict=True)] == [True] * 6


@pytest.mark.parametrize(
    ("title", "changes", "said"),
    [
        (CORRELATION, {}, "Here, too, attention agrees weakly with gradients"),
        (CORRELATION, {"tau_gradient": {"a": 0.7}, "tau_loo": {"a": 0.5}}, "agrees strongly with gradients or erasure"),
        (ADVERSARIAL, {}, "on 70 % of the texts by more than half of the maximum. So here, too"),
        (ADVERSARIAL, {}, "moved by a median of 0.110"),
        (ADVERSARIAL, {"adversarial": {"0.01": (0.05, 0.02)}}, "the search found no very different attention. It gives a lower bound"),
        (ONE_WEIGHT, {}, "moves the answer more than removing another"),
        (ONE_WEIGHT, {"top_weight": difference(0.001)}, "not clearly more or less than removing another"),
        (FLIPS, {}, "attention is number 3 of 4"),
        (FLIPS, {"flip_share": {"attention": 0.2, "random": 0.9}}, "never flips. The ranking by attention needs the fewest removals. "),
        (FLIPS, {"flip_share": {"attention": 1.0}, "flips": {"attention": 0.0}}, "never flips. No ranking flips a decision on any text"),
        (UNIFORM, {}, "accuracy on 40 texts is 0.400 lower"),
        (UNIFORM, {"uniform_accuracy": (0.9, 0.95)}, "no accuracy is lost: on 40 texts it is 0.050 higher"),
    ],
)
def test_each_test_of_attention_says_what_its_figures_mean(title: str, changes: dict[str, object], said: str) -> None:
    assert said in attention_notes(**changes)[title]


@pytest.mark.parametrize(
    ("changes", "titles", "left_out"),
    [
        ({}, [CORRELATION, ADVERSARIAL, ONE_WEIGHT, FLIPS, UNIFORM, RANDOMISED], ""),
        (
            {"tau_gradient": {}, "tau_loo": {}, "randomisation": None},
            [ADVERSARIAL, ONE_WEIGHT, FLIPS, UNIFORM],
            "Model randomisation was not measured: none of its texts has two words. "
            "The correlation of attention with gradients and erasure was not measured: no text has at least two words.",
        ),
        (
            {"adversarial": None, "top_weight": None, "flip_share": None, "randomisation": None},
            [CORRELATION, UNIFORM],
            "Not measured for this architecture: adversarial attention, erasure of attention, model randomisation.",
        ),
    ],
    ids=["all measured", "texts too short", "another architecture"],
)
def test_what_was_not_measured_is_left_out_with_the_reason(changes: dict[str, object], titles: list[str], left_out: str) -> None:
    assert list(attention_notes(**changes)) == titles
    assert attention_tables.not_measured(attention().model_copy(update=changes)) == left_out


def test_agreement_with_people_is_apart_and_says_that_it_is_no_faithfulness() -> None:
    told = tables.plausibility(plausibility())

    assert told.rows[0] == ("integrated_gradients", 0.31, "0.250 to 0.370", 0.3, 0.25)
    assert "not faithfulness" in told.note


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


@pytest.mark.usefixtures("undrawn")
def test_of_two_files_each_section_says_of_which_it_is() -> None:
    html = as_page(findings(("one", "two")))

    assert "<h2>Faithfulness, one</h2>" in html
    assert "<h2>Heads, two</h2>" in html
    assert html.count("beats random orders with both operators") == 2


def test_a_terminal_gets_the_same_in_lines() -> None:
    found = findings()

    text = as_text(found)

    assert text.startswith("tiny/1, int8.onnx: how far its explanations can be trusted\n\nmade/dev: 40 of 120 texts")
    assert "made/dev: words erased by mask_token\nmethod " in text
    assert "Adversarial attention" in text
    assert max(len(line) for line in text.splitlines() if line.startswith("rollout ")) <= 170


@pytest.mark.usefixtures("undrawn")
def test_without_an_explain_graph_the_page_has_the_other_parts() -> None:
    found = findings()
    bare = found.datasets["made/dev"].model_copy(update={"attention": None, "heads": None, "agreement": None, "comparisons": ()})
    found = found.model_copy(update={"datasets": {"made/dev": bare}, "plausibility": None})

    html, text = as_page(found), as_text(found)

    assert "Does attention explain?" not in html
    assert "Summary" in html
    assert "beats random orders" in text


def test_pictures_are_pngs_and_equal_for_equal_findings() -> None:
    rows = [Row("occlusion", {"attention_mask": difference(0.1), "mask_token": None}), Row("rollout", {"attention_mask": difference(0.0)})]
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
