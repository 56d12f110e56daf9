"""The names of a classifier's labels: as an argument, and in a checkpoint's config.json. Needs no torch."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from sentiment.model.bundle import Mixed
from sentiment.model.shown import CHARACTERS_MAX, Shown
from sentiment_models.errors import BadCheckpoint, ModelsError
from sentiment_models.export.manifest import CONFIG_FILE, read_object
from sentiment_models.export.provenance import Json

# How transformers names labels without a name.
UNNAMED = re.compile(r"LABEL_\d+")
# The output beside the labels that says that a text praises and blames: its name in checkpoints and in files of labelled texts.
MIXED = "mixed"
# What the outputs of sentiment classifiers mostly mean, by their number.
EXAMPLES = {2: "negative,positive", 3: "negative,neutral,positive", 5: '"1 star,2 stars,3 stars,4 stars,5 stars"'}
_SHOWN: TypeAdapter[str] = TypeAdapter(Shown)
# Folders that a message about a wrong folder names.
MEANT_MAX = 3


def parse_names(value: str) -> tuple[str, ...]:
    """Parse names separated by commas; a name with a comma stands in double quotes."""
    try:
        rows = list(csv.reader([value], skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise ModelsError(f"labels must be names separated by commas, got {value!r} ({error})") from error
    names = tuple(name.strip() for row in rows for name in row)
    check_names(names)
    return names


def as_argument(names: Sequence[str]) -> str:
    """Return names as ``parse_names`` takes them."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def check_names(names: Sequence[str]) -> None:
    """Check that names can be those of a classifier's labels.

    Raises:
        ModelsError: there are fewer than two, one is empty, two are equal, or a manifest cannot hold one.
    """
    got = as_argument(names)
    if len(names) < 2:
        raise ModelsError(f"labels must be at least two names separated by commas, got {got}")
    if not all(name.strip() for name in names):
        raise ModelsError(f"labels must have a name each, got {got}; delete the comma that is too many")
    if len(set(names)) < len(names):
        raise ModelsError(f"labels must differ, got {max(names, key=names.count)} twice in {got}")
    for name in names:
        try:
            _SHOWN.validate_python(name)
        except ValidationError as error:
            raise ModelsError(
                f"labels must be of 1 to {CHARACTERS_MAX} printable characters, without a space at an end, got {name!r}"
            ) from error


def label_names(path: Path) -> list[str]:
    """Read the labels of a checkpoint in the order of their indices, without loading its weights.

    Raises:
        BadCheckpoint: there is no checkpoint, it does not name its labels, or it is not a classifier with one label a text.
    """
    return labels_of(read_config(path), path / CONFIG_FILE)


def label_outputs(config: Mapping[str, Json]) -> list[str]:
    """Return the names of a classifier's outputs by its config; LABEL_0 and so on, as transformers calls them, where it has none."""
    found = config.get("id2label")
    if isinstance(found, dict) and found:
        names = {str(key): "" if name is None else str(name) for key, name in found.items()}
        return [names.get(str(index), "") for index in range(len(names))]
    count = config.get("num_labels")
    return [f"LABEL_{index}" for index in range(count if isinstance(count, int) else 2)]


def chosen_labels(config: Mapping[str, Json], path: Path, given: Sequence[str]) -> list[str]:
    """Return the labels to serve, in the order of the outputs: those that are given, or else the names in a config.

    Raises:
        BadCheckpoint: others are given than the model has outputs, or none, and the outputs have no names.
    """
    known = label_outputs(config)
    if given:
        if len(given) != len(known):
            raise BadCheckpoint(f"{path}: the model has {len(known)} outputs ({as_argument(known)}), --labels has {len(given)} names")
        return list(given)
    if any(map(UNNAMED.fullmatch, known)):
        raise BadCheckpoint(
            f"{path}: does not say what the model's {len(known)} outputs mean ({as_argument(known)}); name them in this order with "
            f"--labels, such as --labels {EXAMPLES.get(len(known), ','.join(f'NAME{index}' for index in range(len(known))))} "
            f"(--labels {as_argument(known)} serves them under these names)"
        )
    return labels_of(config, path)


def without_mixed(names: Sequence[str], where: Path) -> list[str]:
    """Return the labels of a checkpoint whose last one, MIXED, is an output beside them.

    Raises:
        BadCheckpoint: the last one is another, or fewer than two are left.
    """
    *labels, last = names
    if last != MIXED or len(labels) < 2:
        raise BadCheckpoint(f"{where}: --beside {MIXED} needs it as the last of three labels or more, got {as_argument(names)}")
    return labels


def outputs_of(labels: Sequence[str], mixed: Mixed | None) -> tuple[str, ...]:
    """The names of a bundle's logits, in their order, by these parts of its manifest."""
    return (*labels, *((MIXED,) if mixed else ()))


def named_labels(base: str) -> tuple[str, ...] | None:
    """The labels that the config.json of a folder names; None if it names none, or ``base`` is not such a folder."""
    try:
        return tuple(label_names(Path(base))) if base else None
    except BadCheckpoint:
        return None


def check_folder(path: Path) -> None:
    """Check that a folder holds a model's config.json.

    Raises:
        BadCheckpoint: it does not. Names the folders in it that do, such as the versions of a bundle.
    """
    if (path / CONFIG_FILE).is_file():
        return
    if (path / CONFIG_FILE).exists():
        raise BadCheckpoint(f"{path / CONFIG_FILE}: not a regular file")
    if not path.is_dir():
        raise BadCheckpoint(f"{path}: no such folder")
    inner = sorted((file.parent for file in path.glob(f"*/{CONFIG_FILE}")), key=lambda one: (len(one.name), one.name))
    meant = f"; did you mean {' or '.join(map(str, inner[-MEANT_MAX:]))}?" if inner else ""
    raise BadCheckpoint(f"{path}: no checkpoint or bundle in this folder: it has no {CONFIG_FILE}{meant}")


def read_config(path: Path) -> dict[str, Json]:
    """Read the config.json of a classifier with one label a text.

    Raises:
        BadCheckpoint: there is none, it is damaged, or it is of another kind of model.
    """
    check_folder(path)
    try:
        config = read_object(path / CONFIG_FILE)
    except ModelsError as error:
        raise BadCheckpoint(str(error)) from error
    check_task(config, str(path / CONFIG_FILE))
    return config


def check_task(config: Mapping[str, object], where: str) -> None:
    """Check that a config is of a classifier whose labels exclude each other.

    Raises:
        BadCheckpoint: it is not. Its logits would be turned into probabilities that mean nothing.
    """
    problem, labels = config.get("problem_type"), config.get("id2label")
    if labels is not None and not isinstance(labels, Mapping):
        raise BadCheckpoint(f'{where}: id2label must be an object such as {{"0": "negative", "1": "positive"}}, got {labels!r:.40}')
    advice = "the service answers one label of several; train --new-head makes such a classifier of its encoder"
    if problem == "multi_label_classification":
        raise BadCheckpoint(f"{where}: problem_type is multi_label_classification, in which a text may have several labels; {advice}")
    if problem == "regression" or (isinstance(labels, Mapping) and len(labels) == 1):
        found = "problem_type is regression" if problem == "regression" else f"id2label has one label ({labels}), so this is a regression"
        raise BadCheckpoint(f"{where}: {found}, which answers a number; {advice}")


def labels_of(config: Mapping[str, Json], path: Path) -> list[str]:
    """Return the names in a config, in the order of their indices.

    Raises:
        BadCheckpoint: it does not name two or more, or one cannot be served. Names the file, which is ``path``.
    """
    found = config.get("id2label")
    labels = label_outputs(config) if found else []
    if len(labels) < 2 or not all(labels) or any(map(UNNAMED.fullmatch, labels)):
        raise BadCheckpoint(
            f"{path}: id2label must name two or more labels in the order of the model's logits, "
            f'such as {{"0": "negative", "1": "positive"}}, got {found}'
        )
    try:
        check_names(labels)
    except ModelsError as error:
        raise BadCheckpoint(f"{path}: id2label: {error}") from error
    return labels
