"""The report of the from-scratch experiment: a table, a plot of the curves, an HTML page."""

from collections.abc import Sequence

from sentiment_models.export.provenance import Json
from sentiment_models.reports.plots import panels
from sentiment_models.reports.report import picture
from sentiment_models.study.experiment import Outcome
from sentiment_models.study.recipes import Experiment
from sentiment_tools.reports.html_report import Section, page, paragraph, table

PUBLISHED = {"8x6": 0.76, "8x12": 0.76, "16x6": 0.76, "16x12": 0.76}
"""Published test accuracy from scratch with 4,000 reviews, 128 tokens and 5 epochs, by heads x layers."""
PUBLISHED_FINE_TUNED = 0.93
"""Published test accuracy of a fine-tuned BERT-base on the same data."""

HEADER = ("run", "parameters", "train", "valid", "test", "minutes", "published test")


def rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Return one row per run with the columns of HEADER; the last row is the published BERT-base."""
    lines = []
    for one in outcomes:
        published = f"{PUBLISHED[one.name]:.2f}" if one.from_scratch and one.name in PUBLISHED else ""
        figures = [f"{one.train:.4f}", f"{one.valid:.4f}", f"{one.test:.4f}"]
        lines.append([_title(one), f"{one.parameters:,}", *figures, ("over " if one.resumed else "") + f"{one.minutes:.1f}", published])
    return [*lines, ["BERT-base, fine-tuned (published)", "", "", "", "", "", f"{PUBLISHED_FINE_TUNED:.2f}"]]


def curves_png(outcomes: Sequence[Outcome]) -> bytes:
    """Plot the accuracy of all runs per epoch: training texts on the left, the development set on the right."""
    train = {_title(one): [(point.epoch, point.train) for point in one.curve] for one in outcomes}
    valid = {_title(one): [(point.epoch, point.valid) for point in one.curve] for one in outcomes}
    return panels({"training texts, during training": train, "development set": valid}, x="epoch", y="accuracy")


def report(experiment: Experiment, outcomes: Sequence[Outcome], png: bytes) -> str:
    """Return the experiment as a self-contained HTML page."""
    published = experiment.published().items()
    settings = [[name.replace("_", " "), _setting(value)] for name, value in published]
    epochs = [[_title(one), f"{point.epoch:.0f}", point.train, point.valid] for one in outcomes for point in one.curve]
    best = max(outcomes, key=lambda one: one.test)
    alt = f"Accuracy per epoch of {len(outcomes)} runs; the table below has the figures."
    return page(
        "Transformers from scratch and fine-tuned",
        [
            Section(
                "Accuracy",
                paragraph(
                    f"{_title(best)} has the highest test accuracy: {best.test:.4f}. Each run's figures are those of its best epoch on "
                    "the development set. Runs from scratch are named heads x layers."
                )
                + table(HEADER, rows(outcomes)),
            ),
            Section("Curves", picture(png, alt) + table(("run", "epoch", "train", "valid"), epochs)),
            Section("Settings", table(("setting", "value"), settings)),
        ],
    )


def _setting(value: Json) -> str:
    """Format a setting: a list of pairs as "8x6, 16x6", another list separated by commas."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return str(value)
    return ", ".join("x".join(map(str, one)) if isinstance(one, Sequence) and not isinstance(one, str) else str(one) for one in value)


def _title(outcome: Outcome) -> str:
    return f"{outcome.name} from scratch" if outcome.from_scratch else f"{outcome.name} fine-tuned"
