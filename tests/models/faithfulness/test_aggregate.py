"""Means over texts, against numbers done by hand."""

import numpy as np
import pytest

from sentiment.explain.methods.evidence import Verdict
from sentiment_models.explanations.aggregate import methods_found
from sentiment_models.explanations.one_text import MethodText, OperatorText, OrderText, TextFound

OPERATORS = ("attention_mask", "mask_token")
# Of ten words the fractions are 1, 1, 1, 2 and 5 words: the first three count once.
WORDS = 10


def order(comprehensiveness: tuple[float, ...], tau: float | None = 0.5, aopc: float | None = 0.3, flip: float = 0.4) -> OrderText:
    return OrderText(comprehensiveness=comprehensiveness, sufficiency=(0.3, 0.3, 0.3, 0.2, 0.1), flip=flip, tau=tau, aopc=aopc)


def method(verdict: Verdict, sets: int = 19, ms: float = 1.0, stability: dict[str, float] | None = None) -> MethodText:
    shifts = stability or {}
    return MethodText(values=(1.0,) * WORDS, rows=5, ms=ms, residual=0.01, verdict=int(verdict), random_sets=sets, stability=shifts)


def text(best: float, other: float, *, empty: float = 0.4, low: float | None = 0.1, greedy: bool = False, **more: MethodText) -> TextFound:
    def operator(by: float) -> OperatorText:
        orders = {
            "occlusion": order((best, best, best, best + 0.1, best + by)),
            "rollout": order((other,) * 5),
            "random": order((0.1,) * 5, tau=None),
        }
        if greedy:
            orders["greedy"] = order((0.6,) * 5)
        return OperatorText(whole=0.9, empty=empty, low=low, high=None if low is None else 0.5, orders=orders)

    methods = {"occlusion": method(Verdict.BETTER_THAN_RANDOM), "rollout": method(Verdict.INCONCLUSIVE), **more}
    operators = {OPERATORS[0]: operator(0.2), OPERATORS[1]: operator(0.2)}
    return TextFound(words=WORDS, tokens=12, label=1, right=1, seconds=1.0, operators=operators, methods=methods)


def test_aopc_is_the_mean_over_different_sizes_and_fractions_are_kept_apart() -> None:
    found, _ = methods_found([text(0.1, 0.05), text(0.3, 0.05)], "occlusion", seed=1)

    faithful = found["occlusion"].operators["attention_mask"]
    # The means of 0.1, 0.2 and 0.3, and of 0.3, 0.4 and 0.5.
    assert faithful.comprehensiveness == pytest.approx(0.3)
    assert faithful.comprehensiveness_by_fraction == pytest.approx((0.2, 0.2, 0.2, 0.3, 0.4))
    assert faithful.sufficiency == pytest.approx(0.2)
    assert faithful.flip == pytest.approx(0.4)
    assert faithful.tau_loo == pytest.approx(0.5)
    assert found["random"].operators["attention_mask"].tau_loo is None


def test_shares_are_of_what_the_text_moves_and_left_out_where_that_is_too_little() -> None:
    flat = text(0.2, 0.1, empty=0.86)

    found, _ = methods_found([text(0.2, 0.1), flat], "occlusion", seed=1)
    nothing, _ = methods_found([flat], "occlusion", seed=1)

    faithful = found["occlusion"].operators["attention_mask"]
    # Of 0.9 - 0.4: 0.2, 0.3 and 0.4 are taken; 0.3, 0.2 and 0.1 are missing from what is kept.
    assert faithful.normalised_comprehensiveness == pytest.approx(np.mean([0.4, 0.6, 0.8]), abs=1e-5)
    assert faithful.normalised_sufficiency == pytest.approx(np.mean([0.4, 0.6, 0.8]), abs=1e-5)
    assert nothing["occlusion"].operators["attention_mask"].normalised_comprehensiveness is None


def test_naopc_lies_between_the_bounds_and_is_undefined_without_them() -> None:
    found, _ = methods_found([text(0.2, 0.1), text(0.2, 0.1, low=None)], "occlusion", seed=1)
    nothing, _ = methods_found([text(0.2, 0.1, low=None)], "occlusion", seed=1)

    # 0.3 lies half way from 0.1 to 0.5.
    assert found["occlusion"].operators["attention_mask"].naopc == pytest.approx(0.5)
    assert nothing["occlusion"].operators["attention_mask"].naopc is None


def test_differences_are_paired_and_of_those_texts_that_have_both() -> None:
    texts = [text(0.2, 0.1, greedy=number < 2) for number in range(20)]

    found, comparisons = methods_found(texts, "occlusion", seed=1)

    over = found["occlusion"].operators["mask_token"].over_random
    assert over is not None
    # Every text says the same: 0.3 against 0.1.
    assert (over.mean, over.low, over.high, over.texts) == pytest.approx((0.2, 0.2, 0.2, 20))
    under = found["occlusion"].operators["mask_token"].under_random
    assert under is not None
    assert under.mean == 0
    greedy = found["greedy"].operators["mask_token"].over_random
    assert greedy is not None
    assert (greedy.mean, greedy.texts, greedy.shown) == pytest.approx((0.5, 2, 0))
    assert found["random"].operators["mask_token"].over_random is None
    assert [(one.better, one.than, one.holds) for one in comparisons] == [("occlusion", "rollout", True)]
    assert comparisons[0].operators["attention_mask"].mean == pytest.approx(0.2)


def test_a_comparison_holds_only_if_it_is_clear_by_every_way_of_erasing() -> None:
    texts = []
    for number in range(20):
        one = text(0.2, 0.1)
        # By the second way, as good as the other and better by turns.
        turned = order((0.6 if number % 2 else 0.0,) * 5)
        operators = {
            **one.operators,
            OPERATORS[1]: one.operators[OPERATORS[1]].model_copy(
                update={"orders": {**one.operators[OPERATORS[1]].orders, "rollout": turned}}
            ),
        }
        texts.append(one.model_copy(update={"operators": operators}))

    _, (comparison,) = methods_found(texts, "occlusion", seed=1)

    assert comparison.operators["attention_mask"].low > 0
    assert comparison.operators["mask_token"].low < 0
    assert not comparison.holds


def test_the_default_is_compared_with_baselines_and_its_sizes_with_attention() -> None:
    def with_more(one: TextFound) -> TextFound:
        more = {"lexicon": order((0.3,) * 5), "uniform": order((0.1,) * 5), "default_unsigned": order((0.15,) * 5)}
        operators = {name: operator.model_copy(update={"orders": {**operator.orders, **more}}) for name, operator in one.operators.items()}
        return one.model_copy(update={"operators": operators})

    found, comparisons = methods_found([with_more(text(0.2, 0.1)) for _ in range(5)], "occlusion", seed=1)

    assert [(one.better, one.than) for one in comparisons] == [
        ("occlusion", "rollout"),
        ("occlusion", "lexicon"),
        ("default_unsigned", "rollout"),
    ]
    assert comparisons[2].operators["mask_token"].mean == pytest.approx(0.05)
    assert found["default_unsigned"].kind == "control"
    assert found["default_unsigned"].evidence is None


def test_verdicts_are_counted_and_the_share_is_of_those_that_could_win() -> None:
    verdicts = [
        method(Verdict.BETTER_THAN_RANDOM),
        method(Verdict.BETTER_THAN_RANDOM, sets=5),
        method(Verdict.INCONCLUSIVE),
        method(Verdict.NOT_FAITHFUL),
        method(Verdict.FLAT),
    ]

    found, _ = methods_found([text(0.2, 0.1, occlusion=one) for one in verdicts], "occlusion", seed=1)

    evidence = found["occlusion"].evidence
    assert evidence is not None
    assert (evidence.better_than_random, evidence.inconclusive, evidence.not_faithful, evidence.flat) == (2, 1, 1, 1)
    assert evidence.tested == 3
    assert evidence.better_of_tested == pytest.approx(1 / 3, abs=1e-5)
    # Three texts, of which one says better: anything is possible.
    assert evidence.better_interval == (0, 1)
    assert found["random"].evidence is None


def test_cost_is_a_median_and_stability_a_mean_of_what_there_is() -> None:
    shifts = [{"case": 1.0, "stop": 0.5}, {"case": 0.5}, {}]

    texts = [text(0.2, 0.1, occlusion=method(Verdict.FLAT, ms=ms, stability=shift)) for ms, shift in zip((1, 3, 50), shifts, strict=True)]
    found, _ = methods_found(texts, "occlusion", seed=1)

    assert found["occlusion"].ms == 3
    assert found["occlusion"].rows == 5
    assert found["occlusion"].stability == {"case": 0.75, "stop": 0.5}
    assert found["rollout"].stability is None
    assert found["occlusion"].residual == (0.01, 0.01)
    assert found["random"].residual is None
