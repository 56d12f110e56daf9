"""Findings made up, of a bundle that is there: what a study would have found, without one."""

from pathlib import Path

from sentiment.model.bundle import load_bundle
from sentiment_models.explanations.findings import (
    KINDS,
    AttentionFound,
    Comparison,
    DatasetFound,
    Difference,
    EvidenceFound,
    Faithfulness,
    Findings,
    MethodFound,
    PlausibilityFound,
    Plausible,
)

OPERATORS = ("attention_mask", "mask_token")
# Comprehensiveness over random orders.
OVER = {
    "integrated_gradients": 0.12,
    "gradient_x_input": 0.01,
    "occlusion": 0.2,
    "attention_last_cls": 0.05,
    "rollout": -0.03,
    "random": None,
    "position_first": 0.0,
    "greedy": 0.4,
    "default_unsigned": 0.06,
}


def difference(mean: float) -> Difference:
    """With an interval of 0.02 to either side."""
    return Difference(mean=mean, low=round(mean - 0.02, 4), high=round(mean + 0.02, 4), texts=80)


def faithfulness(over: float | None) -> Faithfulness:
    """Of a method that is so much better than random orders."""
    return Faithfulness(
        comprehensiveness=0.1 + (over or 0.0),
        sufficiency=0.3,
        comprehensiveness_by_fraction=(0.1,) * 5,
        sufficiency_by_fraction=(0.3,) * 5,
        normalised_comprehensiveness=None,
        normalised_sufficiency=None,
        naopc=None,
        flip=0.5,
        tau_loo=None,
        over_random=None if over is None else difference(over),
        under_random=None,
    )


def method(name: str, better: float | None) -> MethodFound:
    """One method; ``better``: the share of its 50 tested texts that are better than random, give or take 0.05, None if none was tested."""
    tested = 0 if better is None else 50
    counts = {"better_than_random": 30, "inconclusive": 20, "not_faithful": 0, "flat": 30}
    return MethodFound(
        kind=KINDS[name],
        operators={operator: faithfulness(OVER[name]) for operator in OPERATORS},
        rows=12.5,
        ms=3.25,
        evidence=None
        if name in ("random", "greedy", "default_unsigned")
        else EvidenceFound(
            **counts,
            tested=tested,
            better_of_tested=better,
            better_interval=None if better is None else (round(better - 0.05, 3), round(better + 0.05, 3)),
        ),
        stability={"case": 0.97} if name == "occlusion" else None,
        residual=(0.01, 0.06) if name == "integrated_gradients" else None,
    )


def comparison(better: str, than: str) -> Comparison:
    """By how much one is better than the other under both ways of erasing."""
    gap = (OVER[better] or 0.0) - (OVER[than] or 0.0)
    by = {operator: difference(round(gap, 4)) for operator in OPERATORS}
    return Comparison(better=better, than=than, operators=by, holds=all(one.low > 0 for one in by.values()))


def dataset(default: str, better: float | None = 0.8) -> DatasetFound:
    """80 of 100 texts, on which ``default`` was compared with the others."""
    rivals = [name for name in OVER if KINDS[name] in ("attribution", "attention", "baseline") and name not in (default, "random")]
    compared = [(default, than) for than in rivals] + [("default_unsigned", than) for than in rivals if KINDS[than] == "attention"]
    return DatasetFound(
        texts=80,
        rows=100,
        sha256="ab" * 32,
        words=19.5,
        words_max=48,
        accuracy=0.9,
        methods={name: method(name, None if name == "position_first" else better) for name in OVER},
        comparisons=tuple(comparison(better, than) for better, than in compared),
        attention=AttentionFound(
            accuracy=0.91,
            uniform_accuracy=(0.9, 0.6),
            uniform_texts=80,
            tau_gradient={},
            tau_loo={"attention_last_cls": 0.11},
            adversarial={"0.01": (0.42, 0.7)},
            adversarial_texts=40,
            top_weight=difference(0.01),
            flip_share={"attention": 0.6, "random": 0.9},
            erased_texts=80,
            randomisation={"gradient_x_input": 0.02},
        ),
    )


def findings(bundle: Path, default: str = "integrated_gradients", better: float | None = 0.8) -> Findings:
    """Of the graph that the bundle serves first, on two data sets."""
    loaded = load_bundle(bundle)
    graph = loaded.manifest.graphs.classify[0].file
    chance = Plausible(auprc=0.27, auprc_interval=(0.25, 0.29), f1_at_share=0.2, f1_at_20=0.2)
    agreed = Plausible(auprc=0.4, auprc_interval=(0.35, 0.45), f1_at_share=0.3, f1_at_20=0.25)
    return Findings(
        bundle=loaded.id,
        digest=loaded.digest,
        graph=graph,
        graph_sha256=loaded.manifest.files[graph].sha256,
        operators=OPERATORS,
        default_method=default,
        seed=1,
        datasets={"made/dev": dataset(default, better), "made/other": dataset(default, better)},
        plausibility=PlausibilityFound(documents=9, prevalence=0.2, sha256="cd" * 32, methods={"occlusion": agreed, "random": chance}),
    )
