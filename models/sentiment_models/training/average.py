"""Average the weights of several fine-tuned copies of one model.

The average is often better calibrated than each copy and costs nothing more to serve (Wortsman et al. 2022, "Model soups").
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from sentiment_models.errors import BadCheckpoint, ModelsError
from sentiment_models.export.checkpoint import base_tokenizer, load_classifier
from sentiment_models.export.inherited import hand_on, inherited_of
from sentiment_models.export.labels import label_names
from sentiment_models.training.bases import TRAINING_FILE, teacher_name, training_of
from sentiment_models.training.resume import replace_folder


def average(checkpoints: Sequence[Path], out: Path, *, force: bool = False) -> None:
    """Write the mean of the checkpoints' weights to ``out``, and the last one's training record, with the names of the others.

    Args:
        checkpoints: folders of classifiers or bundles, at least two. One that is named twice counts twice.
        out: the folder to write.
        force: replace ``out`` if it exists.

    Raises:
        BadCheckpoint: there are fewer than two, one cannot be loaded, or their labels or the names or shapes of their weights differ.
        ModelsError: ``out`` exists.
    """
    if out.exists() and not force:
        raise ModelsError(f"{out}: exists; use --overwrite to replace it")
    if len(checkpoints) < 2:
        raise BadCheckpoint(f"average needs at least 2 checkpoints, got {len(checkpoints)}")
    models = [load_classifier(path)[0] for path in checkpoints]
    labels = [label_names(path) for path in checkpoints]
    states = [model.state_dict() for model in models]
    for path, state, its in zip(checkpoints[1:], states[1:], labels[1:], strict=True):
        if its != labels[0]:
            raise BadCheckpoint(f"{path}: labels are {', '.join(its)}, but those of {checkpoints[0]} are {', '.join(labels[0])}")
        if {name: tensor.shape for name, tensor in state.items()} != {name: tensor.shape for name, tensor in states[0].items()}:
            raise BadCheckpoint(f"{path}: names or shapes of the weights differ from those of {checkpoints[0]}")
    mean = {
        name: torch.stack([state[name] for state in states]).mean(0) if tensor.is_floating_point() else tensor
        for name, tensor in states[0].items()
    }
    models[0].load_state_dict(mean)
    *others, last = checkpoints
    record = training_of(str(last))
    record = record if isinstance(record, dict) else {}
    names = ["this stage" if path == last else teacher_name(path) for path in others]

    def fill(part: Path) -> None:
        models[0].save_pretrained(part)
        base_tokenizer(str(checkpoints[0])).save_pretrained(part)
        hand_on(inherited_of(last), part)
        (part / TRAINING_FILE).write_text(json.dumps({**record, "averaged_with": names}, indent=1), encoding="utf-8")

    replace_folder(out, fill)
