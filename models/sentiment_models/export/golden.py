"""The golden set: texts whose answers a bundle carries, so that a server can check its graph on its own machine before it serves."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sentiment_models.errors import ParityFailed
from sentiment_models.export.inference import Graph
from sentiment_models.export.provenance import Json

# The kernels of a server may differ from those here: allow 1.5 times the measured error, and at least rounding.
TOLERANCE_FACTOR, TOLERANCE_MIN = 1.5, 1e-3
GOLDEN_MIN = 4

PARAGRAPH = (
    "I went into this with low expectations, since the trailer gave away half of the plot and the director's last two pictures "
    "were, to put it kindly, forgettable. For the first twenty minutes nothing changed my mind: the dialogue is stiff and the "
    "score tells you what to feel. Then the daughter arrives, the whole thing wakes up, and what follows is one of the most "
    "generous, funny and quietly moving hours I have spent in a cinema this year. I left grinning and called my mother."
)
COMPLAINT = (
    "The hotel had promised us a quiet room with a view of the sea. What we were given was a damp cell above the kitchen, where "
    "the fans ran until three in the morning, the shower dripped, and the window opened onto a brick wall. When I asked for "
    "another room the clerk shrugged, said that everything was full, and went back to his telephone. We paid for four nights, "
    "stayed for one, and are still waiting for the refund that the manager promised us in writing."
)

# The label that a reader would give each text, for the card. A bundle records its model's label, correct or not.
MEANT = {
    "Wonderful.": "positive",
    "Terrible!": "negative",
    "a warm, funny and beautifully acted film": "positive",
    "the plot makes no sense and the jokes fall flat": "negative",
    "It is not good at all.": "negative",
    "There is nothing I did not love about this record.": "positive",
    "The acting is superb, but the story is so dull that I wanted to leave.": "negative",
    "It starts slowly, yet by the end I was completely won over.": "positive",
    "THE WORST CUSTOMER SERVICE I HAVE EVER SEEN. NEVER AGAIN!!!": "negative",
    "absolutely loved it 😍🎉 best night in years": "positive",
    "Broke after two days 😡 and nobody answers my mails.": "negative",
    "The review at https://example.com/films?id=42&lang=en says it all: a triumph from start to finish.": "positive",
    "Don't waste your money; the second edition fixes none of the mistakes of the first.": "negative",
    "Café scenes shot with real tenderness — naïve, perhaps, but never false.": "positive",
    PARAGRAPH: "positive",
    COMPLAINT: "negative",
}
GOLDEN_TEXTS = tuple(MEANT)
GOLDEN_PAIRS = tuple(zip(GOLDEN_TEXTS[::2], GOLDEN_TEXTS[1::2], strict=True))
# Texts and targets that they name.
GOLDEN_TARGETS = (
    ("The acting is superb, but the story is so dull that I wanted to leave.", "acting"),
    ("The acting is superb, but the story is so dull that I wanted to leave.", "story"),
    ("Broke after two days 😡 and nobody answers my mails.", "mails"),
    ("Good food, bad service.", "food"),
    ("Good food, bad service.", "service"),
    ("We came by train and went home by bus.", "bus"),
)


@dataclass(frozen=True, slots=True)
class GoldenSet:
    """The manifest's golden entries, and the tolerance of the logits by precision."""

    entries: list[dict[str, Json]]
    tolerance: dict[str, float]


def golden_set(
    graphs: Mapping[str, Graph], labels: Sequence[str], pairs: Sequence[tuple[str, str]] = (), tolerance_min: float = TOLERANCE_MIN
) -> GoldenSet:
    """Record the fp32 graph's raw logits of the golden texts, and of ``pairs``, and measure every graph.

    The graphs may have further outputs after the ``labels``. ``tolerance_min``: of a logit, at least.

    A text whose label could change within the tolerance is left out, because it could fail on a healthy machine.

    Raises:
        ParityFailed: fewer than GOLDEN_MIN texts are left.
    """
    texts: list[tuple[str, ...]] = [*((text,) for text in GOLDEN_TEXTS), *pairs]
    logits = {p: np.concatenate([graph.logits([graph.tokenizer.encode(*text)]) for text in texts]) for p, graph in graphs.items()}
    wanted = logits["fp32"].astype(np.float64).round(6)
    errors = {p: np.abs(found - wanted).max(axis=1) for p, found in logits.items()}
    ordered = np.sort(wanted[:, : len(labels)], axis=1)
    margin = ordered[:, -1] - ordered[:, -2]
    largest = np.max(list(errors.values()), axis=0)
    # First those that could change by their own error: one text between two labels would set the tolerance of all.
    sure = margin > 2 * TOLERANCE_FACTOR * largest
    allowed = _tolerance(float(largest[sure].max(initial=0)), tolerance_min)
    kept = np.flatnonzero(sure & (margin > 2 * allowed))
    if len(kept) < GOLDEN_MIN:
        raise ParityFailed(
            f"only {len(kept)} of {len(texts)} golden texts keep their label within the logit tolerance {allowed}; "
            f"at least {GOLDEN_MIN} are needed"
        )
    entries: list[dict[str, Json]] = [
        {
            **dict(zip(("text", "text_pair"), texts[i], strict=False)),
            "label": labels[int(wanted[i, : len(labels)].argmax())],
            "logits": [float(logit) for logit in wanted[i]],
        }
        for i in kept
    ]
    return GoldenSet(entries, {p: _tolerance(float(error[kept].max()), tolerance_min) for p, error in errors.items()})


def misread(answers: Iterable[tuple[str, str]], labels: Sequence[str]) -> list[tuple[str, str]]:
    """Return the golden texts that a reader would give another one of ``labels``. ``answers``: texts and their labels."""
    names = {label.casefold() for label in labels}
    return [(text, label) for text, label in answers if MEANT.get(text, label) in names - {label.casefold()}]


def misordered(entries: Sequence[Mapping[str, Json]], labels: Sequence[str]) -> Iterator[str]:
    """Yield a line if most single texts of a golden set are misread, as they are where labels are in a wrong order."""
    singles = [(str(one["text"]), str(one["label"])) for one in entries if "text_pair" not in one]
    wrong = misread(singles, labels)
    if 2 * len(wrong) > len(singles):
        yield (
            f"{len(wrong)} of {len(singles)} golden texts are answered against their meaning, such as {wrong[0][0]!r} with {wrong[0][1]}: "
            "if the model reads English, look whether its labels are in the right order (--labels)"
        )


def _tolerance(error: float, least: float) -> float:
    return round(max(TOLERANCE_FACTOR * error, least), 4)
