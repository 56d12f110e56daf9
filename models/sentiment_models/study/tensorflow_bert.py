"""Import a checkpoint of the original TensorFlow BERT (Devlin et al. 2019, github.com/google-research/bert) as a base for ``train``.

transformers' ``load_tf_weights_in_bert`` converts. It skips what it does not know, or puts it where it does not belong, and leaves random
what the checkpoint lacks. So names and shapes are checked first. Only this module knows TensorFlow, and imports it when it is used.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import BertConfig, BertForPreTraining, BertTokenizerFast
from transformers.models.bert.modeling_bert import load_tf_weights_in_bert

from sentiment_models.errors import BadCheckpoint, ModelsError
from sentiment_models.export.manifest import read_object
from sentiment_models.export.provenance import Json
from sentiment_models.reports.report import refuse_existing
from sentiment_models.training.resume import replace_checkpoint

CONFIG, VOCABULARY, PREFIX = "bert_config.json", "vocab.txt", "bert_model.ckpt"
NUMBERS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
HEADS, POOLER = "cls/", "bert/pooler/"
# Of training, not of the model: the converter skips these too.
OPTIMIZER = re.compile(r"global_step|.*/adam_[mv]")


@dataclass(frozen=True, slots=True)
class Imported:
    """What was imported: whether texts are lower-cased, and whether the checkpoint had the pooler and the heads of pre-training."""

    lower_case: bool
    pooler: bool
    heads: bool


def import_tf(folder: Path, out: Path, *, lower_case: bool | None = None, force: bool = False) -> Imported:
    """Write ``folder``'s model and tokenizer to ``out`` as transformers stores them: config.json, model.safetensors, tokenizer.json.

    The heads of pre-training are kept if the checkpoint has all of them; ``train`` ignores them and ``pretrain`` goes on with them.

    Args:
        folder: has bert_config.json, vocab.txt and bert_model.ckpt.index and .data-*.
        out: the folder to write.
        lower_case: whether the tokenizer lower-cases. None: as bert_config.json's ``do_lower_case`` says, else unless the vocabulary has
            pieces with capitals.
        force: replace ``out`` if it exists.

    Raises:
        BadCheckpoint: a file is missing or damaged, or configuration, vocabulary and weights do not fit each other.
        ModelsError: ``out`` exists, or TensorFlow is not installed.
    """
    refuse_existing(out, force=force)
    for name in (CONFIG, VOCABULARY, f"{PREFIX}.index"):
        if not (folder / name).is_file():
            raise BadCheckpoint(f"{folder / name}: no such file; expected {CONFIG}, {VOCABULARY}, {PREFIX}.index and {PREFIX}.data-*")
    given = _config(folder / CONFIG)
    cased = _has_capitals(folder / VOCABULARY, int(given["vocab_size"]))
    lower = next((bool(one) for one in (lower_case, given.pop("do_lower_case", None)) if one is not None), not cased)
    config = BertConfig(**given, architectures=None)  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    model = BertForPreTraining(config)  # type: ignore[no-untyped-call]  # so too
    pooler, heads = _check(folder / PREFIX, model)
    load_tf_weights_in_bert(model, config, str(folder / PREFIX))  # type: ignore[no-untyped-call]  # so too
    saved: Any = model if heads else model.bert  # transformers has no one type for its models
    if not pooler:
        model.bert.pooler = None
    tokenizer = BertTokenizerFast(  # type: ignore[no-untyped-call]  # so too
        str(folder / VOCABULARY), do_lower_case=lower, model_max_length=config.max_position_embeddings
    )
    replace_checkpoint(out, saved.float(), tokenizer)
    return Imported(lower, pooler, heads)


def _config(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = read_object(path)
    except ModelsError as error:
        raise BadCheckpoint(str(error)) from error
    for name in NUMBERS:
        value: Json = found.get(name)
        if type(value) is not int or value < 1:
            raise BadCheckpoint(f"{path}: {name} must be a whole number from 1, got {value}")
    if found["hidden_size"] % found["num_attention_heads"]:
        raise BadCheckpoint(
            f"{path}: hidden_size must be a multiple of num_attention_heads, got {found['hidden_size']} and {found['num_attention_heads']}"
        )
    return found


def _has_capitals(path: Path, rows: int) -> bool:
    """Check the vocabulary; tell whether a piece other than a special token has a capital letter."""
    try:
        pieces = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{path}: cannot be read: {error}") from error
    if len(pieces) > rows:
        raise BadCheckpoint(f"{path}: has {len(pieces)} pieces, but vocab_size of {CONFIG} is {rows}")
    if missing := [name for name in SPECIAL if name not in pieces]:
        raise BadCheckpoint(f"{path}: lacks {', '.join(missing)}; it must have {', '.join(SPECIAL)}")
    return any(re.search("[A-Z]", piece) for piece in pieces if not re.fullmatch(r"\[.*\]", piece))


def _check(prefix: Path, model: BertForPreTraining) -> tuple[bool, bool]:
    """Check that the checkpoint has the model's weights; tell whether it has the pooler and all heads of pre-training."""
    try:
        import tensorflow as tf  # noqa: PLC0415 - only this command needs it
    except ImportError as error:
        raise ModelsError(
            f"import-tf reads checkpoints with TensorFlow: module {error.name or 'tensorflow'} is missing: "
            "run pip install 'sentiment-service[models,tensorflow]'"
        ) from error
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items() if not OPTIMIZER.fullmatch(name)}
        finite = {name: bool(np.isfinite(reader.get_tensor(name)).all()) for name in sorted(shapes)}
    except Exception as error:  # TensorFlow raises its own errors, ValueError and RuntimeError for a damaged file
        raise BadCheckpoint(f"{prefix}: cannot be read: {str(error).splitlines()[0]}; copy .index and all .data-* files again") from error
    wanted = _variables(model)
    pooler, heads = (all(one in shapes for one in wanted if one.startswith(part)) for part in (POOLER, HEADS))
    optional = [part for part, whole in ((POOLER, pooler), (HEADS, heads)) if not whole]
    if missing := [one for one in wanted if one not in shapes and not one.startswith(tuple(optional))]:
        raise BadCheckpoint(f"{prefix}: lacks {_some(missing)}, which {CONFIG} implies")
    if unknown := sorted(one for one in shapes if one not in wanted):
        raise BadCheckpoint(
            f"{prefix}: has {_some(unknown)}, which BERT of {CONFIG} does not have; save the variables of pre-training only"
        )
    for one, shape in sorted(shapes.items()):
        if shape != wanted[one]:
            raise BadCheckpoint(f"{prefix}: {one} has shape {list(shape)}, but by {CONFIG} it must have {list(wanted[one])}")
    if wrong := [one for one in finite if not finite[one]]:
        raise BadCheckpoint(f"{prefix}: {_some(wrong)} has values that are not finite")
    return pooler, heads


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _variables(model: BertForPreTraining) -> dict[str, tuple[int, ...]]:
    """Name and shape in TensorFlow of each weight; what is tied is there once."""
    found: dict[str, tuple[int, ...]] = {}
    for name, tensor in model.named_parameters():
        path, kind = re.sub(r"\.layer\.(\d+)", r".layer_\1", name).replace(".", "/").rsplit("/", 1)
        shape = tuple(tensor.shape)
        if path.endswith("LayerNorm"):
            path += "/gamma" if kind == "weight" else "/beta"
        elif path == "cls/seq_relationship":
            path += "/output_weights" if kind == "weight" else "/output_bias"
        elif path == "cls/predictions":
            path += "/output_bias"
        elif not path.endswith("_embeddings"):
            path += "/kernel" if kind == "weight" else "/bias"
            shape = shape[::-1]
        found[path] = shape
    return found
