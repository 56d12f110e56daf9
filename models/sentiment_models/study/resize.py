"""Make a BERT classifier deeper, shallower or wider, as a base for ``train``.

Layers are repeated or skipped where they stand. A wider model has copies of units, heads and inner units, and whatever reads a unit
reads its copies in parts that add up to its weight (Chen et al. 2016, "Net2Net"). The parts are drawn at random, so that training
drives the copies apart. Twice the width answers as the base does; other widths nearly so, since layer norms see some units more often.
"""

import copy
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, PretrainedConfig

from sentiment_models.errors import BadCheckpoint, ModelsError
from sentiment_models.export.checkpoint import base_tokenizer, load_classifier
from sentiment_models.export.inherited import inherited_of
from sentiment_models.reports.report import refuse_existing
from sentiment_models.training.bases import name_of, training_of
from sentiment_models.training.resume import replace_checkpoint

LAYER = "bert.encoder.layer."


def resize(base: Path, out: Path, *, layers: int | None = None, width: int | None = None, seed: int = 0, force: bool = False) -> None:
    """Write a model of another size that starts from the weights of ``base``.

    Args:
        base: the folder of a BERT classifier: a checkpoint or a bundle.
        out: the folder to write. Its training.json names the base, and holds its record.
        layers: the encoder's layers; None: as many as in the base.
        width: dimensions of a token, at least those of the base and a multiple of a head's; None: those of the base. Heads keep their
            size, and the inner width grows in proportion.
        seed: of the parts in which copies are read.
        force: replace ``out`` if it exists.

    Raises:
        BadCheckpoint: the base cannot be loaded, or is not a BERT.
        ModelsError: ``out`` exists, or the width is impossible.
    """
    refuse_existing(out, force=force)
    model = load_classifier(base)[0]
    config = _resized(base, model.config, layers, width)
    other = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]  # untyped there
    # A layer's source is the one at the same part of the depth.
    depth = model.config.num_hidden_layers
    before, randomness = model.state_dict(), torch.Generator().manual_seed(seed)
    after = {}
    for name, tensor in other.state_dict().items():
        source = name
        if name.startswith(LAYER):
            number, _, rest = name.removeprefix(LAYER).partition(".")
            source = f"{LAYER}{int(number) * depth // config.num_hidden_layers}.{rest}"
        reads_units = tensor.ndim == 2 and "embeddings" not in name
        after[name] = _widened(before[source], tensor.shape, reads_units, randomness)
    other.load_state_dict(after)
    resized = {"base": name_of(str(base)), "layers": config.num_hidden_layers, "width": config.hidden_size, "seed": seed}
    record = {"resized": resized, "base_training": training_of(str(base))}
    replace_checkpoint(out, other, base_tokenizer(str(base)), inherited_of(base), record)


def _resized(base: Path, config: PretrainedConfig, layers: int | None, width: int | None) -> PretrainedConfig:
    if config.model_type != "bert":
        raise BadCheckpoint(f"{base}: resize knows the layers of bert alone, this model is {config.model_type}")
    before, head = config.hidden_size, config.hidden_size // config.num_attention_heads
    after = width or before
    if after < before or after % head:
        raise ModelsError(f"width must be at least {before} and a multiple of {head}, the size of a head, got {after}")
    resized = copy.deepcopy(config)
    resized.update(
        {
            "num_hidden_layers": layers or config.num_hidden_layers,
            "hidden_size": after,
            "num_attention_heads": after // head,
            "intermediate_size": config.intermediate_size * after // before,
        }
    )
    return resized


def _widened(tensor: torch.Tensor, shape: torch.Size, reads_units: bool, randomness: torch.Generator) -> torch.Tensor:
    """Copy what is missing along each dimension. ``reads_units``: the second dimension reads units, and copies share their weight."""
    for dimension, (size, wanted) in enumerate(zip(tensor.shape, shape, strict=True)):
        if size == wanted:
            continue
        sources = torch.arange(wanted) % size
        tensor = tensor.index_select(dimension, sources)
        if reads_units and dimension == 1:
            parts = 0.5 + torch.rand(wanted, generator=randomness)
            tensor = tensor * (parts / torch.zeros(size).index_add(0, sources, parts)[sources])
    return tensor
