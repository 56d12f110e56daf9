"""A study that nobody made: small, with every part, and figures from which it is known what must be said of them."""

from sentiment_models.explanations.findings import (
    KINDS,
    AttentionFound,
    Comparison,
    DatasetFound,
    Difference,
    EvidenceFound,
    Faithfulness,
    Findings,
    HeadsFound,
    MethodFound,
    PlausibilityFound,
    Plausible,
)

OPERATORS = ("attention_mask", "mask_token")
DEFAULT = "integrated_gradients"
# How much more than random orders each takes; that of attention is chance by the mask token.
OVER = {
    "integrated_gradients": 0.30,
    "gradient_x_input": 0.20,
    "occlusion": 0.32,
    "shapley": 0.31,
    "two_step_shapley": 0.25,
    "attention_last_cls": 0.10,
    "attention_mean_cls": 0.08,
    "rollout": -0.05,
    "rollout_value_norms": 0.01,
    "rollout_gradient": 0.27,
    "uniform": 0.0,
    "position_first": -0.02,
    "position_last": 0.04,
    "inverse_frequency": 0.06,
    "lexicon": 0.21,
    "greedy": 0.40,
    "default_unsigned": 0.14,
}


def difference(mean: float, half: float = 0.015, texts: int = 40) -> Difference:
    """Clear of 0 unless it is nearer to it than ``half``."""
    return Difference(mean=mean, low=mean - half, high=mean + half, texts=texts)


def findings(
    names: tuple[str, ...] = ("made/dev",),
    comparisons: tuple[Comparison, ...] | None = None,
    default: str = DEFAULT,
    better: float | None = 0.83,
) -> Findings:
    """A study of the data sets ``names``, all alike."""
    return Findings(
        bundle="tiny/1",
        digest="d" * 64,
        graph="int8.onnx",
        graph_sha256="a" * 64,
        operators=OPERATORS,
        default_method=default,
        seed=7,
        datasets={name: dataset(comparisons, default, better) for name in names},
        plausibility=plausibility(),
    )


def dataset(comparisons: tuple[Comparison, ...] | None = None, default: str = DEFAULT, better: float | None = 0.83) -> DatasetFound:
    kinds = ("attribution", "attention", "baseline")
    rivals = {name: OVER[default] - over for name, over in OVER.items() if KINDS[name] in kinds and name not in (default, "uniform")}
    unsigned = {name: OVER["default_unsigned"] - over for name, over in OVER.items() if KINDS[name] == "attention"}
    return DatasetFound(
        texts=40,
        rows=120,
        sha256="b" * 64,
        words=19.5,
        words_max=48,
        accuracy=0.9,
        methods={name: method(name, better) for name in KINDS},
        comparisons=comparisons
        or (
            *(comparison(name, by, default) for name, by in rivals.items()),
            *(comparison(name, by, "default_unsigned") for name, by in unsigned.items()),
        ),
        attention=attention(),
        heads=heads(),
        agreement={"occlusion": {"occlusion": 1.0, "rollout": -0.2}, "rollout": {"occlusion": -0.2, "rollout": 1.0}},
        unseen={"case": 40, "space": 39},
        deciding=EvidenceFound(
            better_than_random=27, inconclusive=3, not_faithful=0, flat=0, tested=30, better_of_tested=0.9, better_interval=(0.8, 0.97)
        ),
        seconds=100.0,
    )


def comparison(than: str, by: float, better: str = DEFAULT) -> Comparison:
    both = {operator: difference(by) for operator in OPERATORS}
    return Comparison(better=better, than=than, operators=both, holds=by > 0.015)


def method(name: str, better: float | None) -> MethodFound:
    explains = KINDS[name] in ("attribution", "attention")
    tested = 0 if better is None else 36
    interval = None if better is None else (round(better - 0.05, 4), round(better + 0.05, 4))
    return MethodFound(
        kind=KINDS[name],
        operators={operator: faithfulness(name, operator) for operator in OPERATORS},
        rows=24.0,
        ms=12.5,
        evidence=EvidenceFound(
            better_than_random=30,
            inconclusive=5,
            not_faithful=3,
            flat=2,
            tested=tested,
            better_of_tested=better,
            better_interval=interval,
        )
        if explains
        else None,
        stability={"stop": 0.91} if explains else None,
        residual=(0.01, 0.04) if name == DEFAULT else None,
    )


def faithfulness(name: str, operator: str) -> Faithfulness:
    over = OVER.get(name, 0.0)
    if KINDS[name] == "attention" and operator == "mask_token":
        over = min(over, 0.001)
    steps = (0.3, 0.5, 0.8, 1.2, 2.2)
    return Faithfulness(
        comprehensiveness=0.1 + over,
        sufficiency=0.3 - over / 2,
        comprehensiveness_by_fraction=tuple((0.1 + over) * step for step in steps),
        sufficiency_by_fraction=tuple((0.3 - over / 2) * (2.5 - step) for step in steps),
        normalised_comprehensiveness=0.2 + over,
        normalised_sufficiency=0.4 + over,
        naopc=None if name == "uniform" else 0.5 + over,
        flip=0.6 - over,
        tau_loo=None if name == "uniform" else over,
        over_random=None if name == "random" else difference(over, texts=30 if name == "greedy" else 40),
        under_random=None if name == "random" else difference(over / 2),
    )


def attention() -> AttentionFound:
    return AttentionFound(
        accuracy=0.9,
        uniform_accuracy=(0.9, 0.85, 0.5),
        uniform_texts=40,
        tau_gradient={"attention_last_cls": 0.21, "attention_mean_cls": 0.12},
        tau_loo={"attention_last_cls": 0.25, "attention_mean_cls": 0.1},
        adversarial={"0.01": (0.41, 0.7), "0.05": (0.5, 0.9)},
        adversarial_shown={"0.01": (0.11, 0.0), "0.05": (0.2, 0.1)},
        adversarial_texts=30,
        top_weight=difference(0.02),
        top_weight_flips=(0.05, 0.0),
        flip_share={"attention": 0.8, "gradient": 0.7, "attention_x_gradient": 0.6, "random": 0.95},
        flips={"attention": 0.4, "gradient": 0.5, "attention_x_gradient": 0.6, "random": 0.2},
        erased_texts=40,
        randomisation={"gradient_x_input": 0.02, "integrated_gradients": 0.05},
        randomisation_sizes={"gradient_x_input": 0.4, "integrated_gradients": 0.3},
        randomisation_texts=20,
    )


def heads() -> HeadsFound:
    return HeadsFound(
        texts=40,
        effect=((0.1, 0.02, 0.3), (0.9, 0.0, 0.25)),
        pattern=(("next", "mixed", "identical_word"), ("sep", "broad", "mixed")),
        pattern_share=((0.9, 0.5, 0.6), (0.7, 1.0, 0.4)),
        lift={"next": ((0.8, 0.1, 0.0), (0.0, 0.0, 0.1)), "sep": ((0.0, 0.1, 0.2), (0.7, 0.0, 0.3))},
    )


def plausibility() -> PlausibilityFound:
    return PlausibilityFound(
        documents=12,
        prevalence=0.08,
        sha256="c" * 64,
        methods={
            "integrated_gradients": Plausible(auprc=0.31, auprc_interval=(0.25, 0.37), f1_at_share=0.3, f1_at_20=0.25),
            "random": Plausible(auprc=0.1, auprc_interval=(0.08, 0.12), f1_at_share=0.08, f1_at_20=0.1),
        },
    )
