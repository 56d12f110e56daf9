"""Average the weights of fine-tunes of one model: often better calibrated than each of them, at no cost when it is served.

Wortsman et al. 2022, "Model soups".
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from sentiment_models.errors import BadCheckpoint, ModelsError
from sentiment_models.export.checkpoint import base_tokenizer, label_names, load_classifier
from sentiment_models.training.bases import TRAINING_FILE
from sentiment_models.training.resume import replace_folder


def average(checkpoints: Sequence[Path], out: Path, *, force: bool = False) -> None:
    """Write the mean of the checkpoints' weights to ``out``, with training.json that holds theirs. ``force``: replace ``out``.

    Raises:
        BadCheckpoint: fewer than two, one cannot be loaded, or their labels, or their weights in name or shape, differ.
        ModelsError: ``out`` exists.
    """
    if out.exists() and not force:
        raise ModelsError(f"{out}: exists; --force replaces it")
    if len(checkpoints) < 2:
        raise BadCheckpoint(f"{len(checkpoints)} checkpoints to average; at least 2 are wanted")
    models = [load_classifier(path)[0] for path in checkpoints]
    labels = [", ".join(label_names(path)) for path in checkpoints]
    states = [model.state_dict() for model in models]
    for path, state, names in zip(checkpoints[1:], states[1:], labels[1:], strict=True):
        if names != labels[0]:
            raise BadCheckpoint(f"{path}: its labels are {names}; those of {checkpoints[0]} are {labels[0]}")
        if {name: tensor.shape for name, tensor in state.items()} != {name: tensor.shape for name, tensor in states[0].items()}:
            raise BadCheckpoint(f"{path}: its weights are not those of {checkpoints[0]} in name and shape")
    mean = {
        name: torch.stack([state[name] for state in states]).mean(0) if tensor.is_floating_point() else tensor
        for name, tensor in states[0].items()
    }
    models[0].load_state_dict(mean)
    records = [path / TRAINING_FILE for path in checkpoints]
    # The last one's training is told at the top, where a reader looks; the others stand in it as what was averaged with it.
    told = [json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {} for record in records]

    def fill(part: Path) -> None:
        models[0].save_pretrained(part)
        base_tokenizer(str(checkpoints[0])).save_pretrained(part)
        (part / TRAINING_FILE).write_text(json.dumps({**told[-1], "averaged_with": told[:-1]}, indent=1), encoding="utf-8")

    replace_folder(out, fill)
