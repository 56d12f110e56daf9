"""Windows of texts against a bundle's references: how many alarm, and after how many texts of another kind.

``python -m tests.bench.drift BUNDLE --known FILE ... --other FILE ...``. Each file is a kind of texts. Windows are drawn from the answers
to at most TEXTS texts of a file, with replacement:

1. Windows of one file, against the bundle's references: the share above a threshold, the share that meets the alert's condition, and the
   share of which no expected accuracy is stated.
2. False alarms: references drawn from the known files, of as many texts as the bundle's largest, and windows of all mixtures of two files.
3. Time to fire: a window of one known file or of halves of two; then texts of another file come, or 30 % of the texts are such.

With ``--hidden`` all this of the hidden states in place of the other signals.
"""

import argparse
import random
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

from sentiment.explain.engine import Explainer
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.tokenizer import Row
from sentiment.observability.drift import SLOT_TEXTS, TEXTS_MIN, WINDOW_TEXTS, Fit, Signal, nearest
from sentiment.observability.expected_accuracy import LIKE_TEXTS_MIN, UNLIKE_INDEX
from sentiment_models.data.labelled import read_texts
from sentiment_models.evaluation.reference import projections
from sentiment_models.export.inference import serve

TEXTS = 500
# Of deploy/chart/files/rules.yaml.
ALERT_ABOVE = 0.25
SHARES = (1, 0.95, 0.9, 0.7, 0.5, 0.3, 0.1, 0.05, 0)
# After so many texts, the window has none from before.
TEXTS_AFTER = WINDOW_TEXTS + 5 * SLOT_TEXTS

# A text's bin in each signal.
Placed = tuple[int, ...]
Kind = Sequence[Placed]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--known", nargs="+", type=Path, required=True, help="files of the references' kinds, not their own texts")
    parser.add_argument("--other", nargs="*", type=Path, default=[], help="files of other kinds")
    parser.add_argument("--windows", type=int, default=60, help="windows of each measurement (default: 60)")
    parser.add_argument("--hidden", action="store_true", help="of hidden states")
    arguments = parser.parse_args()
    classifier = load_classifier(arguments.bundle)
    manifest, rng = classifier.manifest, random.Random(34)
    signals = manifest.hidden_signals if arguments.hidden else manifest.signals
    kinds: dict[Path, Kind] = {}
    for file in (*arguments.known, *arguments.other):
        texts = list(read_texts(file, pairs=manifest.pairs))
        served = serve(classifier, rng.sample(texts, min(TEXTS, len(texts))), str(file))
        answers: Sequence[Sequence[Hashable]] = hidden_states(classifier, served.rows) if arguments.hidden else served.signals
        kinds[file] = [placed(signals, one) for one in answers]

    def draw(shares: Mapping[Path, float], texts: int) -> list[Placed]:
        files = rng.choices(list(shares), list(shares.values()), k=texts)
        return [rng.choice(kinds[file]) for file in files]

    def fit(window: Kind, references: Mapping[str, Mapping[str, Sequence[float]]]) -> Fit:
        return nearest({signal.name: of for signal, of in zip(signals, counted(signals, window), strict=True)}, references)

    recorded = {signal.name: signal.counts for signal in signals}
    for file in kinds:
        for texts_drawn in (LIKE_TEXTS_MIN, WINDOW_TEXTS):
            fits = [fit(draw({file: 1}, texts_drawn), recorded) for _ in range(arguments.windows)]
            print(f"{file}, windows of {texts_drawn}: {rates(fits)}; {shown(fits[0])}")
    size = max(one.texts for one in manifest.references.values())
    for one, other in combinations(arguments.known, 2):
        for share in SHARES:
            fits = []
            for _ in range(arguments.windows):
                known = {file.name: counted(signals, draw({file: 1}, size)) for file in (one, other)}
                references = {signal.name: {name: known[name][at] for name in known} for at, signal in enumerate(signals)}
                fits.append(fit(draw({one: share, other: 1 - share}, TEXTS_MIN), references))
            print(f"{share:.0%} {one.name}, the others {other.name}, references of {size} texts of them: {rates(fits)}")
    befores: list[tuple[Path, ...]] = [(file,) for file in arguments.known]
    if len(befores) > 1:
        befores.append(tuple(arguments.known))
    for file in arguments.other:
        for before in befores:
            usual = {one: 1 / len(before) for one in before}
            for share in (1, 0.3):
                mixture = {**{one: part * (1 - share) for one, part in usual.items()}, file: share}
                after = []
                for _ in range(arguments.windows):
                    window = draw(usual, WINDOW_TEXTS)
                    for come in range(SLOT_TEXTS, TEXTS_AFTER + 1, SLOT_TEXTS):
                        window = [*window[SLOT_TEXTS:], *draw(mixture, SLOT_TEXTS)]
                        if fires(fit(window, recorded)):
                            after.append(come)
                            break
                found = f", after {median(after):.0f} texts, at most {max(after)}" if after else ""
                names = " and ".join(one.name for one in before)
                print(f"{share:.0%} {file.name} after {names}: {len(after)} of {arguments.windows} fire{found}")


def hidden_states(classifier: Classifier, rows: Sequence[Row]) -> list[list[float]]:
    graph, layer = Explainer(classifier).load(), classifier.manifest.hidden_layer
    assert graph is not None
    assert layer is not None
    found: list[list[float]] = projections(classifier, graph.session, rows, layer).tolist()
    return found


def placed(signals: Sequence[Signal], values: Sequence[Hashable]) -> Placed:
    return tuple(signal.place(value) for signal, value in zip(signals, values, strict=False))


def counted(signals: Sequence[Signal], texts: Kind) -> list[list[int]]:
    """Texts in each bin, by signal."""
    found = [[0] * len(signal.bins) for signal in signals]
    for text in texts:
        for counts, place in zip(found, text, strict=True):
            counts[place] += 1
    return found


def fires(fit: Fit) -> bool:
    return bool(fit.above(ALERT_ABOVE))


def withheld(fit: Fit) -> bool:
    return bool(fit.above(UNLIKE_INDEX))


def rates(fits: Sequence[Fit]) -> str:
    above, alert, unlike = (sum(map(of, fits)) / len(fits) for of in (lambda one: one.excess > 1, fires, withheld))
    return f"{above:.1%} above a threshold, {alert:.1%} as the alert, {unlike:.1%} without an expected accuracy"


def shown(fit: Fit) -> str:
    indexes = (f"{signal} {index:.3f} ({fit.thresholds[signal]:.3f})" for signal, index in fit.indexes.items())
    return f"{', '.join(indexes)}; of {', '.join(f'{name} {share:.2f}' for name, share in fit.shares.items())}"


if __name__ == "__main__":
    main()
