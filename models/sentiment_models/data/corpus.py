"""The texts of a run: read from files, split into training and development set, and varied in each epoch.

Knows nothing of torch or of models.
"""

import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sentiment.model.cores import cores_granted
from sentiment_models.data.carving import Split, carve, copies, repeat, without_overlap
from sentiment_models.data.erased import erase, unmarked
from sentiment_models.data.labelled import Example, Source, TextOrPair, UnknownLabel, read_examples, read_undecided
from sentiment_models.data.perturb import detokenize, recase, typos
from sentiment_models.data.sentences import last_sentences
from sentiment_models.errors import BadData
from sentiment_models.export.manifest import sha256
from sentiment_models.export.provenance import Json, distinct_names
from sentiment_models.training.recipe import Recipe

# About two sentences, the length of the texts that users type.
TAIL_WORDS_MAX = 40
# The first and the last words of a long text, for a model that is to tell from these what it would tell from the whole: about 32 and 96
# tokens.
HEAD_WORDS, ENDS_WORDS = 24, 72
# Texts that one process varies; more are spread over all cores, because a GPU would wait for them.
VARIED_AT_A_TIME = 10_000
# Files that nothing is learned from.
APART = ("dev", "test")
# Lines that a message names.
NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Corpus:
    """Training and development examples, a record of each training file and of each that is kept apart, and the SHA-256 of all by name.

    ``dev_of_base``: how many development texts are in files that the base was trained on.
    """

    split: Split
    files: list[dict[str, Json]]
    apart: list[dict[str, Json]]
    hashes: dict[str, str]
    dev_of_base: int


def read_corpus(recipe: Recipe, of_base: Set[str] = frozenset()) -> Corpus:
    """Read all files of a recipe. ``of_base``: the SHA-256 of the files that the base was trained on.

    Copies, copies with other labels, and training texts that are in a file that is kept apart are counted on standard error, by line.

    Raises:
        BadData: a file cannot be used.
    """
    kinds = {"whole": recipe.sources, **{kind: getattr(recipe, kind) for kind in (*PARTS, "undecided", *APART)}}
    sources = [(kind, Source.parse(spec)) for kind, specs in kinds.items() for spec in specs]
    examples = [_read(kind, source.path, recipe) for kind, source in sources]
    shown = {kind: [(rows, one.times) for rows, (its, one) in zip(examples, sources, strict=True) if its == kind] for kind in kinds}
    dev, test = ([example for rows, _ in shown[kind] for example in rows if example.judged] for kind in APART)
    _name_copies([example for rows, _ in shown["whole"] for example in rows])
    wholes = [(_left_in(rows, (*dev, *test), [kind for kind in APART if shown[kind]]), times) for rows, times in shown["whole"]]
    if recipe.dev:
        split = Split([example for rows, times in wholes for example in repeat(rows, times, recipe.seed)], _left_in(dev, test, APART[1:]))
    else:
        split = carve(wholes, recipe.dev_fraction, recipe.seed)
    for kind, part in PARTS.items():
        for rows, times in shown[kind]:
            # Texts of the development set are left out here, too.
            shown_here = repeat(without_overlap(rows, (*split.dev, *test)), times, recipe.seed)
            split.train.extend(part(example, recipe, place) for place, example in enumerate(shown_here))
    _check_classes(split.train, recipe.labels, [source.path for _, source in sources])
    for rows, times in shown["undecided"]:
        # Training only: these texts have no correct label to measure.
        split.train.extend(repeat(rows, times, recipe.seed))
    hashes = [sha256(source.path) for _, source in sources]
    names = distinct_names([source.path for _, source in sources])
    files: list[dict[str, Json]] = []
    apart: list[dict[str, Json]] = []
    for name, rows, (kind, source), digest in zip(names, examples, sources, hashes, strict=True):
        if kind in APART:
            apart.append({"file": name, "rows": len(rows), "use": kind, "sha256": digest})
        else:
            uses = {one: kind == one for one in (*PARTS, "undecided")}
            # The models whose probabilities the file holds.
            teachers = sorted({row.teacher for row in rows} - {""})
            files.append({"file": name, "rows": len(rows), "times": source.times, **uses, "teachers": teachers, "sha256": digest})
    known = [example for rows, digest in zip(examples, hashes, strict=True) if digest in of_base for example in rows]
    dev_of_base = len(split.dev) - len(without_overlap(split.dev, known)) if known else 0
    return Corpus(split, files, apart, dict(zip(names, hashes, strict=True)), dev_of_base)


def _name_copies(examples: Sequence[Example]) -> None:
    groups = copies(example for example in examples if example.judged)
    differing = [group for group in groups if len({example.label for example in group}) > 1]
    if groups:
        more = sum(len(group) - 1 for group in groups)
        _name(f"copies but for case, spacing or punctuation, none of them on the other side of the split: {more:,}", groups)
    if differing:
        _name(f"copies with another label, to be corrected or deleted: {len(differing):,}", differing)


def _left_in(examples: Sequence[Example], others: Sequence[Example], options: Sequence[str]) -> list[Example]:
    """The examples that share no sentence with ``others``, which these options name."""
    left = without_overlap(examples, others) if others else list(examples)
    known = set(map(id, left))
    out = [[example] for example in examples if id(example) not in known]
    if out:
        files = " or ".join(f"--{option}" for option in options)
        _name(f"left out as copies, parts or wholes of texts of {files}: {len(out):,}", out)
    return left


def _name(found: str, groups: Sequence[Iterable[Example]]) -> None:
    """Say what was found, and in which lines: never a text."""
    named = "; ".join(" and ".join(example.where for example in group) for group in groups[:NAMED_MAX])
    sys.stderr.write(f"{found} ({named}{'; ...' if len(groups) > NAMED_MAX else ''})\n")


def _tail(example: Example, *_: object) -> Example:
    return replace(example, text=last_sentences(example.text, TAIL_WORDS_MAX))


def _ends(example: Example, *_: object) -> Example:
    words = example.text.split()
    return replace(example, text=" ".join((*words[:HEAD_WORDS], *words[-ENDS_WORDS:])))


def _erased(example: Example, recipe: Recipe, place: int) -> Example:
    """The text without some of its words, and with the answer to the whole: the more is erased, the less certain.

    ``place``: among the texts of its file, so that a text that is shown several times lacks other words each time.
    """
    text, left = erase(example.text, random.Random(f"{recipe.seed}/erased/{place}/{example.text}"))  # noqa: S311 - a variant
    labels = len(recipe.labels)
    target = target_of(example, labels, recipe.teacher_weight)
    return replace(example, text=text, target=tuple(left * share + (1 - left) / labels for share in target), judged=False)


# What is shown of a text beside itself, by the recipe's field.
PARTS: dict[str, Callable[[Example, Recipe, int], Example]] = {"tails": _tail, "ends": _ends, "erased": _erased}


def _read(kind: str, path: Path, recipe: Recipe) -> list[Example]:
    return [_unmarked(example) for example in _read_marked(kind, path, recipe)]


def _unmarked(example: Example) -> Example:
    text, pair = unmarked(example.text), example.text_pair and unmarked(example.text_pair)
    return example if (text, pair) == (example.text, example.text_pair) else replace(example, text=text, text_pair=pair)


def _read_marked(kind: str, path: Path, recipe: Recipe) -> list[Example]:
    if kind == "undecided":
        return list(read_undecided(path, recipe.labels, recipe.reading))
    try:
        rows = list(read_examples(path, recipe.labels, reading=recipe.reading))
        return [row for row in rows if len(row.text.split()) > HEAD_WORDS + ENDS_WORDS] if kind == "ends" else rows
    except UnknownLabel as error:
        raise UnknownLabel(f"{error}; name the labels of the data with --labels, or add --new-head if the base has others") from error


def _check_classes(train: Sequence[Example], labels: Sequence[str], paths: Sequence[Path]) -> None:
    """Refuse texts of a single class: the classifier would always answer it and look perfect on the development set.

    Labels without a text are written to standard error: the classifier learns not to answer them.
    """
    found = {example.label for example in train}
    missing = [name for place, name in enumerate(labels) if place not in found]
    if len(found) == 1:
        files = ", ".join(str(path) for path in paths)
        raise BadData(
            f"{files}: all {len(train)} training texts have the label {labels[found.pop()]}; add texts with the other labels of "
            f"{', '.join(labels)}"
        )
    if missing:
        sys.stderr.write(f"no training text has the label {' or '.join(missing)}: the model learns not to answer it\n")


def target_of(example: Example, labels: int, teacher_weight: float) -> list[float]:
    """Return the target probability of each label: the label from people, mixed with the teacher's probabilities if there are any."""
    hard = [float(index == example.label) for index in range(labels)]
    if example.target is None:
        return hard
    if not example.judged:
        return list(example.target)
    return [teacher_weight * soft + (1 - teacher_weight) * one for soft, one in zip(example.target, hard, strict=True)]


def vary(examples: Sequence[Example], recipe: Recipe, epoch: int) -> list[TextOrPair]:
    """Return the texts of an epoch, each detokenized, recased and misspelt with the recipe's chances.

    The changes of a text depend only on the recipe's seed, the epoch and the text's place.
    """
    if not (recipe.detokenize or recipe.recase or recipe.typos):
        return [example.whole for example in examples]
    places = range(0, len(examples), VARIED_AT_A_TIME)
    chunks = [(place, [example.whole for example in examples[place : place + VARIED_AT_A_TIME]]) for place in places]
    work = partial(_vary_some, recipe, epoch)
    if len(chunks) == 1:
        return work(chunks[0])
    # Under torchrun every process of this machine varies all texts.
    cores = max(1, cores_granted() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    # Not forked, because torch has threads by now.
    with ProcessPoolExecutor(min(cores, len(chunks)), multiprocessing.get_context("spawn")) as processes:
        return [text for some in processes.map(work, chunks) for text in some]


def _vary_some(recipe: Recipe, epoch: int, chunk: tuple[int, Sequence[TextOrPair]]) -> list[TextOrPair]:
    """Vary neighbouring texts; the place of the first one is given."""
    first, texts = chunk
    varied: list[TextOrPair] = []
    for place, text in enumerate(texts, first):
        rng = random.Random(f"{recipe.seed}/{epoch}/{place}")  # noqa: S311 - a variant
        varied.append(
            _varied(text, recipe, rng) if isinstance(text, str) else (_varied(text[0], recipe, rng), _varied(text[1], recipe, rng))
        )
    return varied


def _varied(text: str, recipe: Recipe, rng: random.Random) -> str:
    detokenizes, recases, misspells = (rng.random() < chance for chance in (recipe.detokenize, recipe.recase, recipe.typos))
    text = detokenize(text) if detokenizes else text
    text = recase(text, rng) if recases else text
    return typos(text, rng) if misspells else text
