"""Further measurements of a classifier: behavioural tests, texts without a correct label, texts with typos or other casing."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sentiment.model.classifier import Classifier
from sentiment_models.data.labelled import PLAIN, LabelledReading, TextOrPair
from sentiment_models.data.perturb import recase, typos
from sentiment_models.data.text_files import check_text, tabbed
from sentiment_models.errors import BadData
from sentiment_models.evaluation import behaviours
from sentiment_models.evaluation.findings import BehaviourFound, Robustness, Undecided
from sentiment_models.evaluation.metrics import Labels
from sentiment_models.evaluation.resample import SEED
from sentiment_models.export.inference import Served, serve

# Texts drawn from a larger file. With 2,000 texts, a share of 3 % is known to within 0.8 %.
PERTURBED_TEXTS_MAX = 2000
PERTURBATIONS: dict[str, Callable[[str, random.Random], str]] = {"typos": typos, "casing": recase}


def behave(classifier: Classifier, threads: int) -> list[BehaviourFound]:
    """Run the behavioural tests; the result is empty unless the labels include negative and positive."""
    labels = classifier.manifest.labels
    if not behaviours.applies_to(labels):
        return []
    tests = behaviours.behaviours()
    texts = behaviours.texts(tests)
    stated = serve(classifier, texts, "behaviours", threads).stated
    found = dict(zip(texts, stated, strict=True))
    return [behaviours.judge(test, found, labels) for test in tests]


def catch(classifier: Classifier, kinds: Mapping[str, Sequence[str]], threads: int) -> dict[str, Undecided]:
    """Count by kind how many texts without a correct label are marked ``abstain``, and how many others are neutral."""
    if not kinds:
        return {}
    served = serve(classifier, [text for texts in kinds.values() for text in texts], "undecided", threads)
    labels, neutral = classifier.manifest.labels, classifier.manifest.neutral
    answers = iter(zip(served.abstain.tolist(), (labels[place] for place in served.answers.tolist()), strict=True))
    return {kind: _caught([next(answers) for _ in texts], neutral) for kind, texts in kinds.items()}


def _caught(answers: Sequence[tuple[bool, str]], neutral: str | None) -> Undecided:
    """Count answers: whether each abstains, and its label."""
    caught = sum(abstain for abstain, _ in answers)
    return Undecided(rows=len(answers), caught=caught, neutral=sum(not abstain and label == neutral for abstain, label in answers))


def read_kinds(path: Path, reading: LabelledReading = PLAIN) -> dict[str, list[str]]:
    """Read texts by kind from a .tsv file of kind<TAB>text, compressed or not.

    Raises:
        BadData: the file cannot be read; names the file and the line.
    """
    kinds: dict[str, list[str]] = {}
    for place, kind, text in tabbed(path, "kind", reading):
        if not kind:
            raise BadData(f"{path}: {place}: expected kind<TAB>text, such as fr<TAB>Bonjour, but the kind is empty")
        check_text(text, f"{path}: {place}")
        kinds.setdefault(kind, []).append(text)
    if not kinds:
        raise BadData(f"{path}: has no texts")
    return kinds


def perturb(
    classifier: Classifier,
    texts: Sequence[TextOrPair],
    labels: Labels,
    answered: Labels,
    judged: Callable[[Served], Labels],
    name: str,
    threads: int,
    truncation: str | None = None,
    seed: int = SEED,
) -> Robustness:
    """Measure how a perturbation changes the answers.

    Args:
        classifier: the classifier.
        texts: at most PERTURBED_TEXTS_MAX of them are drawn.
        labels: the correct labels, [texts].
        answered: the classifier's answers to the unchanged texts, [texts].
        judged: the answers of what is served.
        name: one of ``PERTURBATIONS``.
        threads: threads of the session.
        truncation: how to read texts that are too long; None: the bundle's default.
        seed: of the draw and the perturbation.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret
    rows = sorted(rng.sample(range(len(texts)), min(len(texts), PERTURBED_TEXTS_MAX)))
    changed = [_changed(texts[row], PERTURBATIONS[name], rng) for row in rows]
    after = judged(serve(classifier, changed, name, threads, truncation))
    before, right = answered[rows], labels[rows]
    return Robustness(
        rows=len(rows),
        changed=int((before != after).sum()),
        accuracy_before=round(float((before == right).mean()), 5),
        accuracy_after=round(float((after == right).mean()), 5),
    )


def _changed(text: TextOrPair, change: Callable[[str, random.Random], str], rng: random.Random) -> TextOrPair:
    return change(text, rng) if isinstance(text, str) else (change(text[0], rng), change(text[1], rng))
