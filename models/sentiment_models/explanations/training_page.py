"""What training small encoders told of attention, for people: tables, a picture, a page, and in words what each figure means."""

from collections.abc import Sequence

from sentiment.files.html_report import Section, page, paragraph, plain, table
from sentiment_models.evaluation.tables import Table
from sentiment_models.explanations.bag import ADVERSARY, ATTENTION, LEARNED
from sentiment_models.explanations.findings import Difference
from sentiment_models.explanations.training_findings import (
    DIVERGENCE_MAX,
    Accuracy,
    AdversariesFound,
    FrozenFound,
    SeedsFound,
    TrainingFindings,
    UniformFound,
)
from sentiment_models.reports.plots import curves
from sentiment_models.reports.report import picture

SEEDS, UNIFORM, ADVERSARIES, FROZEN = "Other seeds", "Uniform attention", "Trained adversaries", "Weights in a bag of embeddings"
PAPER = {
    UNIFORM: "The paper on BiLSTMs: on several of its data sets uniform attention did about as well, so that those tasks need no attention "
    "and cannot tell whether it explains.",
    SEEDS: "The paper on BiLSTMs: attention differs from seed to seed too, on some data sets much; other attention tells nothing "
    "unless it is farther away than that.",
    FROZEN: "The paper on BiLSTMs: the trained model's attention served as well as or better than weights that the bag learned itself, "
    "and an adversary's attention served worse.",
    ADVERSARIES: "The paper on BiLSTMs: adversaries with far-off attention and nearly the same answers can be trained, at a price in the "
    "answers that differs by data set, and their attention then fails as weights of the bag.",
}


def tables(found: TrainingFindings) -> list[Table]:
    """Lay out every test that has been done; a table's note says what its figures mean and what the paper found."""
    laid_out = []
    if found.uniform is not None:
        laid_out.append(_uniform(found.uniform))
    if found.seeds is not None:
        laid_out.append(_seeds(found.seeds))
    if found.frozen is not None:
        laid_out.append(_frozen(found.frozen))
    if found.adversaries is not None and found.seeds is not None:
        laid_out.append(_adversaries(found.adversaries, found.seeds))
    return laid_out


def as_text(found: TrainingFindings) -> str:
    """Lay the figures out for a terminal, with what they mean."""
    parts = [_drawn(found)]
    parts += [f"{one.title}\n{plain(one.header, one.rows)}\n{one.note}" for one in tables(found)]
    return "\n\n".join(parts)


def curve_png(found: TrainingFindings) -> bytes:
    """Draw output change against divergence: the adversaries, and pairs of seeds as what training itself varies by.

    Raises:
        ValueError: the adversaries or the seeds have not been tested.
    """
    if found.adversaries is None or found.seeds is None:
        raise ValueError("no adversaries or no seeds to draw")
    # Every adversary began as the base, at 0 on both axes.
    adversaries = [(0.0, 0.0), *((one.divergence, one.output_change) for one in found.adversaries.curve)]
    # A pair of seeds is a point of its own; a line through several would tell of a course that is none.
    seeds = {f"seeds {pair.first} and {pair.second}": [(pair.divergence, pair.output_change)] for pair in found.seeds.pairs}
    return curves(
        {"trained adversaries": adversaries, **seeds},
        x="divergence of attention (Jensen-Shannon, nats; at most 0.693)",
        y="change of the answer (total variation, 0 to 1)",
        title="How far attention can be moved, and what that costs",
    )


def as_page(found: TrainingFindings, png: bytes) -> str:
    """Compose a self-contained HTML document; ``png`` is ``curve_png``'s."""
    sections = []
    for one in tables(found):
        drawn = picture(png, "Change of the answer against divergence of attention; the table has its points.")
        body = paragraph(one.note) + table(one.header, one.rows) + (drawn if one.title == ADVERSARIES else "")
        sections.append(Section(one.title, body))
    facts = [
        *((name.replace("_", " "), _told(value)) for name, value in found.settings.items()),
        ("parameters of an encoder", f"{found.parameters:,}"),
        ("pieces of its tokenizer", f"{found.vocabulary:,}"),
        *((f"SHA-256 of {name}", digest) for name, digest in found.files.items()),
        *((f"seconds of {name}", f"{seconds:.0f}") for name, seconds in found.seconds.items()),
    ]
    sections.append(Section("What was trained", paragraph(_drawn(found)) + table(("", ""), facts)))
    return page("Is attention needed, stable, useful, and hard to fake?", sections)


def _drawn(found: TrainingFindings) -> str:
    return (
        f"{found.train_texts:,} texts to train on and {found.heldout_texts:,} held out, of {', '.join(found.files)}; "
        f"{found.words:.1f} words a held-out text. The commonest label alone would be right on {found.majority:.3f}. "
        "Intervals are of 95 % over the held-out texts; what other training texts would change is not in them."
    )


def _uniform(found: UniformFound) -> Table:
    rows = (
        ("learned", *_accuracy(found.learned), None),
        ("uniform in the last layer", *_accuracy(found.last_layer), _difference(found.last_loss)),
        ("uniform in all layers", *_accuracy(found.all_layers), _difference(found.all_loss)),
    )
    if found.all_loss.low > 0:
        means = "Attention is needed here: an encoder whose attention was frozen uniform answers worse, by more than chance."
    else:
        most = max(found.all_loss.high, 0.0)
        means = "An encoder whose attention was frozen uniform does not answer worse by more than chance: such encoders gain nothing by it "
        means += f"on these texts (at most {most:.3f} of accuracy). It may still tell where an encoder looks, but that it does cannot be "
        means += "shown by how well the encoder answers."
    return Table(UNIFORM, ("attention", "accuracy", "95 % interval", "by seed", "lost"), rows, f"{means} {PAPER[UNIFORM]}")


def _seeds(found: SeedsFound) -> Table:
    rows = tuple((f"{one.first} and {one.second}", one.divergence, one.output_change, one.agreement) for one in found.pairs)
    share = found.divergence / found.divergence_from_uniform if found.divergence_from_uniform else float("inf")
    means = (
        f"Two trainings that differ in their seed alone put attention {found.divergence:.3f} nats apart, of at most {DIVERGENCE_MAX:.3f}: "
        f"{share:.1f} times what parts an encoder's attention from uniform weights ({found.divergence_from_uniform:.3f}). "
    )
    if share >= 1:
        means += "Where an encoder of this size looks is a matter of chance as much as of the text. "
    else:
        means += "The seeds agree in part on where to look. "
    means += (
        f"Attention that lies no farther apart tells nothing. Words get {found.on_words:.0%} of the attention, special tokens the rest."
    )
    return Table(SEEDS, ("seeds", "divergence", "change of the answer", "same answer"), rows, f"{means} {PAPER[SEEDS]}")


def _frozen(found: FrozenFound) -> Table:
    rows = tuple(
        (name, *_accuracy(one), _difference(found.over_uniform[name]) if name in found.over_uniform else None)
        for name, one in found.accuracy.items()
    )
    attention, learned, adversary = (_compared(found.over_uniform[name]) for name in (ATTENTION, LEARNED, ADVERSARY))
    means = (
        f"As weights of a bag, which sees no order, the encoders' attention is {attention} uniform weights, weights that the bag learned "
        f"itself are {learned} them, and an adversary's attention is {adversary} them; the encoders' is "
        f"{_compared(found.attention_over_adversary)} the adversary's (by {_difference(found.attention_over_adversary)}). Each seed's bag "
        "gets the attention of that seed's encoder, so that the column by seed tells how far encoders differ, which the intervals over "
        "texts do not hold; the adversary is a single one. "
    )
    if found.over_uniform[ATTENTION].low > 0:
        means += "So the encoders' attention does tell which words matter, outside of the encoders, too."
    elif found.attention_over_adversary.low > 0:
        than = "less" if found.over_uniform[ATTENTION].high < 0 else "no more"
        means += (
            "So the attention of encoders that were left free says more of the words than an adversary's with like answers, but tells "
            f"{than} of which words matter than counting all alike does."
        )
    else:
        means += "So it is not shown that the encoders' attention tells which words matter."
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
            f"has attention {chosen.divergence:.3f} nats off the base's; another seed's is {seeds.divergence:.3f} off. "
        )
        if chosen.divergence > seeds.divergence:
            means += "So attention can be moved farther than chance moves it with the answers kept: it is not the only story of an answer."
        else:
            means += "So attention was not moved farther than chance moves it while the answers were kept."
    else:
        means = (
            f"No adversary changes the answer by at most what another seed does ({found.allowed:.3f}); the closest changes it by "
            f"{chosen.output_change:.3f}. So attention was not moved while the answers were kept."
        )
    means += f" The bag took the attention of weight {found.chosen:g}. The base's accuracy is {found.base:.4f}."
    return Table(ADVERSARIES, header, rows, f"{means} {PAPER[ADVERSARIES]}")


def _accuracy(one: Accuracy) -> tuple[float, str, str]:
    return one.mean, f"{one.low:.3f} to {one.high:.3f}", ", ".join(f"{seed:.3f}" for seed in one.seeds)


def _difference(one: Difference) -> str:
    return f"{one.mean:+.3f} ({one.low:+.3f} to {one.high:+.3f})"


def _compared(one: Difference) -> str:
    if not one.clear:
        return "not clearly better or worse than"
    return "better than" if one.mean > 0 else "worse than"


def _told(value: float | str | Sequence[float | str]) -> str:
    return str(value) if isinstance(value, int | float | str) else ", ".join(map(str, value))
