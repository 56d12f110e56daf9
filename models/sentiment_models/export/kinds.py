"""What a folder holds that is given as a checkpoint: found by its files, before torch is imported and anything takes long.

Models that are not classifiers of one label a text are refused by what they are, each with the way on.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.labels import as_argument, chosen_labels, label_outputs, read_config
from sentiment_models.export.manifest import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE, read_object
from sentiment_models.export.positions import TOKENIZER_CONFIG
from sentiment_models.export.provenance import Json, facts, items
from sentiment_models.export.weights import stored_tensors
from sentiment_models.training.bases import BIN_FILE, CARD, WEIGHTS, check_library

CLASSIFIER = "ForSequenceClassification"
"""How transformers names the classes of classifiers, at their end."""
SETFIT_FILES = ("config_setfit.json", "model_head.pkl")
SENTENCE_TRANSFORMERS_FILE = "modules.json"
FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)\n---", re.DOTALL)
# One line of YAML, or the first of a list.
LICENCE = re.compile(r"""^(license(?:_name)?):[ \t]*(?:\n[ \t]*-[ \t]*)?["']?([\w.+ -]+)""", re.MULTILINE)
# How a file begins that git cloned without Git LFS.
LFS_POINTER = b"version https://git-lfs"
TOKENIZERS = (TOKENIZER_FILE, "vocab.txt", "vocab.json", "*.model")
"""Files of tokenizers; one is enough, with merges.txt beside vocab.json."""
# How safetensors names the types, and how people do.
# The number of layers, as families call it, and more than any has: a damaged config would take all memory.
LAYERS, LAYERS_MAX = ("num_hidden_layers", "n_layers", "n_layer"), 512
DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "I8": "int8"}


@dataclass(frozen=True, slots=True)
class Parts:
    """The folders of a checkpoint's parts, mostly one: of weights and configuration, of the tokenizer, and of the model's card.

    ``base``: the name, for records, of the model that it was trained from; "" if nothing but a training record may say it.
    """

    model: Path
    tokenizer: Path
    card: Path
    base: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint of a classifier. ``labels``: its outputs' names, in their order; ``licence``: by its card, "" if that says none;
    ``lines``: what it is, in words.
    """

    labels: tuple[str, ...]
    licence: str
    lines: tuple[str, ...]


def recognise(parts: Parts, given: Sequence[str]) -> Found:
    """Find out what a checkpoint is. ``given``: names for its outputs; empty: those of its config.json.

    Raises:
        BadCheckpoint: it holds no classifier of one label a text, lacks a part, or its outputs have no names and none are given.
    """
    folder = parts.model
    _check_kind(folder)
    config = read_config(folder)
    _check_head(config, folder)
    labels = chosen_labels(config, folder / CONFIG_FILE, given)
    weights = _weights(folder)
    known = label_outputs(config)
    renamed = f" ({as_argument(known)} in {CONFIG_FILE})" if known != labels else ""
    licence = licence_of(parts.card)
    return Found(
        tuple(labels),
        licence,
        (
            f"{config.get('model_type')}{_sizes(config)}; weights in {_dtype(weights, config)}: {_shown(weights)}",
            f"labels: {as_argument(labels)}{renamed}",
            f"tokenizer: {_tokenizer(parts.tokenizer)}",
            *_cut(parts.tokenizer),
            licence_line(licence),
        ),
    )


def tokenizer_files(folder: Path) -> list[str]:
    """The names of the files in a folder that hold a tokenizer."""
    return sorted(path.name for kind in TOKENIZERS for path in folder.glob(kind))


def encoder_of(folder: Path) -> Path:
    """The folder of the encoder in one that sentence-transformers saved."""
    try:
        first = facts(json.loads((folder / SENTENCE_TRANSFORMERS_FILE).read_bytes())[0])
    except (OSError, ValueError, LookupError, TypeError):
        return folder
    return folder / str(first.get("path", ""))


def licence_of(folder: Path) -> str:
    """The licence that the front matter of the model's card in a folder names; "" if it names none or cannot be read."""
    try:
        front = FRONT_MATTER.match((folder / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    found = dict(LICENCE.findall(front[1])) if front else {}
    return str(found.get("license_name") or found.get("license") or "").strip()


def licence_line(licence: str) -> str:
    """What the user should know of a licence by ``licence_of``."""
    return f"licence: {licence} ({CARD})" if licence else f"licence: not known, as no {CARD} names it; --note TEXT can say it"


def _check_kind(folder: Path) -> None:
    here = {path.name for path in folder.iterdir()}
    train = f"sentiment-models train --base {encoder_of(folder)} --labels NAME,NAME --data FILE --output OUT"
    if head := here.intersection(SETFIT_FILES):
        raise BadCheckpoint(
            f"{folder}: a SetFit model (it has {', '.join(sorted(head))}): sentence embeddings with a head of scikit-learn, which is not "
            f"served; train a classifier of its encoder on the same labelled texts: {train}"
        )
    config = read_object(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else {}
    if SENTENCE_TRANSFORMERS_FILE in here and not _classes(config):
        raise BadCheckpoint(
            f"{folder}: a model of sentence-transformers (it has {SENTENCE_TRANSFORMERS_FILE}): it gives embeddings and no labels; train a "
            f"classifier of its encoder on labelled texts: {train}"
        )
    if CONFIG_FILE not in here and "bert_config.json" in here:
        raise BadCheckpoint(f"{folder}: a checkpoint of the original BERT in TensorFlow; convert it with sentiment-models import-tf")


def _classes(config: Mapping[str, Json]) -> list[str]:
    """The classes that a config names, if one of them is a classifier's."""
    names = [str(name) for name in items(config.get("architectures"))]
    return names if any(name.endswith(CLASSIFIER) for name in names) else []


def _check_head(config: Mapping[str, Json], folder: Path) -> None:
    for key in LAYERS:
        if key in config and not (type(found := config[key]) is int and 0 < found <= LAYERS_MAX):
            raise BadCheckpoint(f"{folder / CONFIG_FILE}: {key} must be a whole number from 1 to {LAYERS_MAX}, got {found}")
    if not config.get("model_type"):
        raise BadCheckpoint(f"{folder / CONFIG_FILE}: model_type must name the model's family, got {config.get('model_type')}")
    names = ", ".join(map(str, items(config.get("architectures"))))
    if names and not _classes(config):
        raise BadCheckpoint(
            f"{folder / CONFIG_FILE}: architectures is {names}, which is not a classifier of texts (...{CLASSIFIER}); train one from it on "
            f"labelled texts: sentiment-models train --base {folder} --labels NAME,NAME --data FILE --output OUT"
        )


def _weights(folder: Path) -> list[Path]:
    """The files of the weights that transformers reads."""
    here = {path.name for path in folder.iterdir() if path.is_file()}
    first = next((folder / name for name in WEIGHTS if name in here), None)
    if first is None:
        check_library(here, str(folder))
        raise BadCheckpoint(f"{folder}: has no weights: neither {WEIGHTS_FILE} nor {BIN_FILE}")
    files = [first] if first.suffix != ".json" else _parts(first)
    for file in files:
        if not file.is_file():
            raise BadCheckpoint(f"{file}: no such file, though {first.name} names it; copy the checkpoint again")
        with file.open("rb") as stream:
            if stream.read(len(LFS_POINTER)) == LFS_POINTER:
                raise BadCheckpoint(f"{file}: a pointer of Git LFS instead of the weights; run git lfs pull in {folder}")
    return files


def _parts(index: Path) -> list[Path]:
    names = sorted({str(name) for name in facts(read_object(index).get("weight_map")).values()})
    if not names:
        raise BadCheckpoint(f"{index}: weight_map names no file of weights; copy the checkpoint again")
    if outside := [name for name in names if Path(name).name != name]:
        raise BadCheckpoint(f"{index}: weight_map names {outside[0]}, which is not a file of this folder")
    return [index.parent / name for name in names]


def _dtype(weights: Sequence[Path], config: Mapping[str, Json]) -> str:
    """The type of most numbers: by the files, or of .bin files by the config."""
    if weights[0].suffix != ".safetensors":
        return str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    lengths = Counter[str]()
    for file in weights:
        for tensor in stored_tensors(file).values():
            lengths[tensor.dtype] += tensor.length
    most = max(lengths, key=lengths.__getitem__, default="F32")
    return DTYPES.get(most, most)


def _shown(weights: Sequence[Path]) -> str:
    size = f"{sum(file.stat().st_size for file in weights) / 1e6:,.1f} MB"
    return f"{weights[0].name} ({size})" if len(weights) == 1 else f"{weights[0].name} and {len(weights) - 1} more ({size})"


def _sizes(config: Mapping[str, Json]) -> str:
    layers, width = (next((str(config[key]) for key in keys if key in config), "") for keys in (LAYERS, ("hidden_size", "dim", "d_model")))
    return f" of {layers} layers, {width} wide" if layers and width else ""


def _cut(folder: Path) -> Iterator[str]:
    file = folder / TOKENIZER_CONFIG
    if file.is_file() and read_object(file).get("truncation_side") == "left":
        yield f"truncation_side of {file.name} is left, and a bundle reads the first tokens of a long text; ask for head_tail or windows"


def _tokenizer(folder: Path) -> str:
    names = tokenizer_files(folder)
    if not names:
        raise BadCheckpoint(
            f"{folder}: has no tokenizer (none of {', '.join(TOKENIZERS)}); give the folder of the model that it was trained from with "
            "--tokenizer, or copy that model's tokenizer files here"
        )
    if TOKENIZER_FILE not in names:
        return f"converted from {', '.join(names)}"
    model = facts(read_object(folder / TOKENIZER_FILE).get("model"))
    size = len(facts(model.get("vocab")) or items(model.get("vocab")))
    return f"{TOKENIZER_FILE}, {model.get('type') or 'of an unnamed kind'}, {size:,} tokens"
