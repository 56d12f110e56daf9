"""What the experiment from scratch found, for people: a table, a picture of the curves, a page."""

from collections.abc import Sequence

from sentiment.files.html_report import Section, page, paragraph, table
from sentiment_models.export.provenance import Json
from sentiment_models.reports.plots import panels
from sentiment_models.reports.report import picture
from sentiment_models.training.experiment import Experiment, Outcome

PUBLISHED = {"8x6": 0.76, "8x12": 0.76, "16x6": 0.76, "16x12": 0.76}
"""Test accuracy that was published for 4,000 reviews, 128 tokens and 5 epochs, by heads x layers, from scratch."""
PUBLISHED_FINE_TUNED = 0.93
"""The same of a fine-tuned BERT-base."""

HEADER = ("run", "parameters", "train", "valid", "test", "minutes", "published test")


def rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """One row a run, as in HEADER, and the published BERT-base's at the end."""
    lines = []
    for one in outcomes:
        told = f"{PUBLISHED[one.name]:.2f}" if one.from_scratch and one.name in PUBLISHED else ""
        figures = [f"{one.train:.4f}", f"{one.valid:.4f}", f"{one.test:.4f}"]
        lines.append([_title(one), f"{one.parameters:,}", *figures, ("over " if one.resumed else "") + f"{one.minutes:.1f}", told])
    return [*lines, ["BERT-base, fine-tuned (published)", "", "", "", "", "", f"{PUBLISHED_FINE_TUNED:.2f}"]]


def text_table(outcomes: Sequence[Outcome]) -> str:
    """Lay the figures out for a terminal."""
    cells = [list(HEADER), *rows(outcomes)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADER))]
    return "\n".join(
        f"{row[0]:{widths[0]}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)) for row in cells
    )


def curves_png(outcomes: Sequence[Outcome]) -> bytes:
    """Draw the accuracy of all runs per epoch, on training texts to the left and on the development set to the right."""
    train = {_title(one): [(point.epoch, point.train) for point in one.curve] for one in outcomes}
    valid = {_title(one): [(point.epoch, point.valid) for point in one.curve] for one in outcomes}
    return panels({"training texts, while they are learned": train, "development set": valid}, x="epoch", y="accuracy")


def report(experiment: Experiment, outcomes: Sequence[Outcome], png: bytes) -> str:
    """Return the whole experiment as one HTML page."""
    published = experiment.published().items()
    settings = [[name.replace("_", " "), _told(value)] for name, value in published]
    epochs = [[_title(one), f"{point.epoch:.0f}", point.train, point.valid] for one in outcomes for point in one.curve]
    best = max(outcomes, key=lambda one: one.test)
    alt = f"Accuracy per epoch of {len(outcomes)} runs; the figures stand in the table below the picture."
    return page(
        "Transformers from scratch against fine-tuned ones",
        [
            Section(
                "Accuracy",
                paragraph(
                    f"{_title(best)} answers most of the test texts rightly: {best.test:.4f}. Each run's figures are those of its best "
                    "epoch on the development set. Runs from scratch are called by heads x layers."
                )
                + table(HEADER, rows(outcomes)),
            ),
            Section("Curves", picture(png, alt) + table(("run", "epoch", "train", "valid"), epochs)),
            Section("Settings", table(("setting", "value"), settings)),
        ],
    )


def _told(value: Json) -> str:
    """A setting as people write it: 8x6, 16x6 for a list of pairs, and its words parted by commas for another."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return str(value)
    return ", ".join("x".join(map(str, one)) if isinstance(one, Sequence) and not isinstance(one, str) else str(one) for one in value)


def _title(outcome: Outcome) -> str:
    return f"{outcome.name} from scratch" if outcome.from_scratch else f"{outcome.name} fine-tuned"
