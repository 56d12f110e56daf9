"""What the texts are compared with: another file or journal, or the references in the bundle's manifest."""

from collections.abc import Hashable, Iterable, Sequence

from sentiment.observability.drift import SHARE_EDGES, Signal
from sentiment.observability.metrics import SCORE_EDGES, TEXT_TOKENS_EDGES
from sentiment_tools.watch.counts import Entry, Told, Watch

# The name of a reference that was given as a file.
GIVEN = "given"
EDGES = {"score": SCORE_EDGES, "tokens": TEXT_TOKENS_EDGES, "unknown": SHARE_EDGES, "fragments": SHARE_EDGES}


def without_reference(labels: Sequence[str], names: Sequence[str]) -> list[Signal]:
    """The signals of these names with the bins of the server's histograms, and nothing to compare with."""
    values: dict[str, dict[Hashable, str]] = {
        "label": {label: label for label in labels},
        "abstained": {False: "false", True: "true"},
    }
    return [Signal.of_values(name, values[name], {}) if name in values else Signal.of_numbers(name, EDGES[name], {}) for name in names]


def of_entries(labels: Sequence[str], names: Sequence[str], entries: Iterable[Entry]) -> list[Signal]:
    """The counts of the answers to other texts, in the same bins."""
    signals = without_reference(labels, names)
    watch = Watch(signals, 1000)
    for entry in entries:
        if not isinstance(entry, Told):
            watch.add(entry)
    watch.end()
    return [
        Signal(signal.name, signal.bins, {GIVEN: tuple(counts)}, signal.place)
        for signal, counts in zip(signals, watch.whole.bins, strict=True)
    ]
