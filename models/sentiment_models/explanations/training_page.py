"""The report of ``attention-tests``: tables with interpretations, a plot, an HTML page."""

from collections.abc import Iterator, Sequence

from sentiment_models.explanations.conclusions import signed
from sentiment_models.explanations.findings import Difference
from sentiment_models.explanations.training_findings import (
    ADVERSARY,
    ATTENTION,
    DIVERGENCE_MAX,
    LEARNED,
    Accuracy,
    AdversariesFound,
    FrozenFound,
    SeedsFound,
    TrainingFindings,
    UniformFound,
)
from sentiment_models.reports.plots import curves
from sentiment_models.reports.report import Table, picture
from sentiment_tools.reports.html_report import Section, page, paragraph, table

SEEDS, UNIFORM, ADVERSARIES, FROZEN = "Other seeds", "Uniform attention", "Trained adversaries", "Weights in a bag of embeddings"
PAPER = {
    UNIFORM: "The paper, on BiLSTMs: on several data sets uniform attention did about as well. Those tasks need no attention, so they "
    "cannot show whether it explains.",
    SEEDS: "The paper, on BiLSTMs: attention also differs between seeds, on some data sets strongly. Other attention means something only "
    "if it differs more than that.",
    FROZEN: "The paper, on BiLSTMs: the trained model's attention did as well as weights that the bag learned, or better; an adversary's "
    "attention did worse.",
    ADVERSARIES: "The paper, on BiLSTMs: adversaries with very different attention and nearly the same answers can be trained. The change "
    "of the answers differs by data set, and the adversaries' attention then fails as weights of the bag.",
}


def tables(found: TrainingFindings) -> Iterator[Table]:
    """Yield a table for every finished test; its note has an interpretation and the result of the paper."""
    if found.uniform is not None:
        yield _uniform(found.uniform)
    if found.seeds is not None:
        yield _seeds(found.seeds)
    if found.frozen is not None:
        yield _frozen(found.frozen)
    if found.adversaries is not None and found.seeds is not None:
        yield _adversaries(found.adversaries, found.seeds)


def as_text(found: TrainingFindings) -> str:
    """Format the figures for a terminal, with their interpretation."""
    return "\n\n".join([_drawn(found), *(one.text(note=True) for one in tables(found))])


def curve_png(found: TrainingFindings) -> bytes:
    """Draw output change by divergence: the adversaries, and the pairs of seeds for comparison.

    Raises:
        ValueError: the test of the adversaries or of the seeds is not done.
    """
    if found.adversaries is None or found.seeds is None:
        raise ValueError("the plot needs the results of both adversaries and seeds")
    # Every adversary starts as the base, at 0 on both axes.
    adversaries = [(0.0, 0.0), *((one.divergence, one.output_change) for one in found.adversaries.curve)]
    # Each pair of seeds is a separate point: a line between them would suggest an order.
    seeds = {f"seeds {pair.first} and {pair.second}": [(pair.divergence, pair.output_change)] for pair in found.seeds.pairs}
    return curves(
        {"trained adversaries": adversaries, **seeds},
        x="divergence of attention (Jensen-Shannon, nats; at most 0.693)",
        y="change of the answer (total variation, 0 to 1)",
        title="Divergence of attention and change of the answer",
    )


def as_page(found: TrainingFindings, png: bytes) -> str:
    """Compose a self-contained HTML document; ``png``: from ``curve_png``."""
    facts = [
        *((name.replace("_", " "), _setting(value)) for name, value in found.settings.items()),
        ("parameters of an encoder", f"{found.parameters:,}"),
        ("vocabulary of its tokenizer", f"{found.vocabulary:,}"),
        *((f"SHA-256 of {name}", digest) for name, digest in found.files.items()),
        *((f"seconds of {name}", f"{seconds:.0f}") for name, seconds in found.seconds.items()),
    ]
    trained = Section("What was trained", paragraph(_drawn(found)) + table(("", ""), facts))
    return page("Tests of attention on small encoders", [*sections(found, png), trained])


def sections(found: TrainingFindings, png: bytes = b"") -> list[Section]:
    """Return a section for every finished test; ``png``: from ``curve_png``, if it is drawn already."""
    alt = "Change of the answer by divergence of attention; the table has the figures."
    return [one.section(picture(png or curve_png(found), alt) if one.title == ADVERSARIES else "") for one in tables(found)]


def _drawn(found: TrainingFindings) -> str:
    return (
        f"{found.train_texts:,} training texts and {found.heldout_texts:,} held-out texts of {', '.join(found.files)}; "
        f"{found.words:.1f} words per held-out text. The most frequent label alone has an accuracy of {found.majority:.3f}. "
        "Intervals are 95 % over the held-out texts; they do not cover other training texts."
    )


def _uniform(found: UniformFound) -> Table:
    rows = (
        ("learned", *_accuracy(found.learned), None),
        ("uniform in the last layer", *_accuracy(found.last_layer), signed(found.last_loss)),
        ("uniform in all layers", *_accuracy(found.all_layers), signed(found.all_loss)),
    )
    if found.all_loss.shown > 0:
        means = "Attention is needed here: an encoder with uniform attention is less accurate, by more than chance."
    else:
        most = max(found.all_loss.high, 0.0)
        means = "An encoder with uniform attention is not less accurate by more than chance: such encoders gain little from attention on "
        means += f"these texts (at most {most:.3f} of accuracy). Their accuracy cannot show whether attention explains."
    return Table(UNIFORM, ("attention", "accuracy", "95 % interval", "by seed", "lost"), rows, f"{means} {PAPER[UNIFORM]}")


def _seeds(found: SeedsFound) -> Table:
    rows = tuple((f"{one.first} and {one.second}", one.divergence, one.output_change, one.agreement) for one in found.pairs)
    share = found.divergence / found.divergence_from_uniform if found.divergence_from_uniform else float("inf")
    means = (
        f"The attention of two trainings that differ only in their seed diverges by {found.divergence:.3f} nats (maximum "
        f"{DIVERGENCE_MAX:.3f}): {share:.1f} times its divergence from uniform weights ({found.divergence_from_uniform:.3f}). "
    )
    if share >= 1:
        means += "The attention of an encoder of this size depends as much on chance as on the text. "
    else:
        means += "The seeds agree partly on the attention. "
    means += f"A divergence no larger than that means nothing. Words get {found.on_words:.0%} of the attention, special tokens the rest."
    return Table(SEEDS, ("seeds", "divergence", "change of the answer", "same answer"), rows, f"{means} {PAPER[SEEDS]}")


def _frozen(found: FrozenFound) -> Table:
    rows = tuple(
        (name, *_accuracy(one), signed(found.over_uniform[name]) if name in found.over_uniform else None)
        for name, one in found.accuracy.items()
    )
    attention, learned, adversary = (_compared(found.over_uniform[name]) for name in (ATTENTION, LEARNED, ADVERSARY))
    means = (
        f"As weights of a bag of embeddings, the encoders' attention is {attention} uniform weights. Weights that the bag learned are "
        f"{learned} uniform ones, and an adversary's attention is {adversary} uniform ones. The encoders' attention is "
        f"{_compared(found.attention_over_adversary)} the adversary's (by {signed(found.attention_over_adversary)}). Each seed's bag "
        "gets the attention of that seed's encoder: the column by seed shows how much encoders differ, which the intervals do not cover. "
        "There is only one adversary. "
    )
    if found.over_uniform[ATTENTION].shown > 0:
        means += "So the encoders' attention shows which words matter, even outside of the encoders."
    elif found.attention_over_adversary.shown > 0:
        than = "less" if found.over_uniform[ATTENTION].shown < 0 else "no more"
        means += (
            "So the encoders' attention says more about the words than the attention of an adversary with similar answers, but "
            f"{than} than uniform weights."
        )
    else:
        means += "So it is not shown that the encoders' attention says which words matter."
    return Table(FROZEN, ("weights", "accuracy", "95 % interval", "by seed", "over uniform"), rows, f"{means} {PAPER[FROZEN]}")


def _adversaries(found: AdversariesFound, seeds: SeedsFound) -> Table:
    header = ("weight", "divergence", "KL", "change of the answer", "same answer", "accuracy", "on words")
    rows = tuple(
        (f"{one.weight:g}", one.divergence, one.kl, one.output_change, one.agreement, one.accuracy, f"{one.on_words:.0%}")
        for one in found.curve
    )
    chosen = next(one for one in found.curve if one.weight == found.chosen)
    if chosen.output_change <= found.allowed:
        means = (
            f"An adversary that changes the answer by {chosen.output_change:.3f}, no more than another seed does ({found.allowed:.3f}), "
            f"has a divergence of {chosen.divergence:.3f} nats from the base's attention; another seed has {seeds.divergence:.3f}. "
        )
        if chosen.divergence > seeds.divergence:
            means += "So attention can be changed by more than chance with the same answers: it is not the only explanation of an answer."
        else:
            means += "So attention was not changed by more than chance with the same answers."
    else:
        means = (
            f"No adversary changes the answer by at most as much as another seed ({found.allowed:.3f}); the closest changes it by "
            f"{chosen.output_change:.3f}. So attention was not changed with the same answers."
        )
    means += f" The bag uses the attention of the adversary with weight {found.chosen:g}. The accuracy of the base is {found.base:.4f}."
    return Table(ADVERSARIES, header, rows, f"{means} {PAPER[ADVERSARIES]}")


def _accuracy(one: Accuracy) -> tuple[float, str, str]:
    return one.mean, f"{one.low:.3f} to {one.high:.3f}", ", ".join(f"{seed:.3f}" for seed in one.seeds)


def _compared(one: Difference) -> str:
    if not one.shown:
        return "not clearly better or worse than"
    return "better than" if one.mean > 0 else "worse than"


def _setting(value: float | str | Sequence[float | str]) -> str:
    return str(value) if isinstance(value, int | float | str) else ", ".join(map(str, value))
