"""Average the weights of fine-tunes of one model: often better calibrated than each of them, at no cost when it is served.

Wortsman et al. 2022, "Model soups".
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sentiment_models.bases import TRAINING_FILE
from sentiment_models.errors import BadCheckpoint


def average(checkpoints: Sequence[Path], out: Path) -> None:
    """Write the mean of the checkpoints' weights to ``out``, with training.json that holds theirs.

    Raises:
        BadCheckpoint: fewer than two, one cannot be loaded, or their weights differ in name or shape.
    """
    if len(checkpoints) < 2:
        raise BadCheckpoint(f"{len(checkpoints)} checkpoints to average; at least 2 are wanted")
    try:
        models = [AutoModelForSequenceClassification.from_pretrained(path) for path in checkpoints]
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"cannot be loaded as a classifier: {error}") from error
    states = [model.state_dict() for model in models]
    for path, state in zip(checkpoints[1:], states[1:], strict=True):
        if {name: tensor.shape for name, tensor in state.items()} != {name: tensor.shape for name, tensor in states[0].items()}:
            raise BadCheckpoint(f"{path}: its weights are not those of {checkpoints[0]} in name and shape")
    mean = {
        name: torch.stack([state[name] for state in states]).mean(0) if tensor.is_floating_point() else tensor
        for name, tensor in states[0].items()
    }
    models[0].load_state_dict(mean)
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    models[0].save_pretrained(part)
    AutoTokenizer.from_pretrained(checkpoints[0]).save_pretrained(part)  # type: ignore[no-untyped-call]  # untyped there
    records = [path / TRAINING_FILE for path in checkpoints]
    # The last one's training is told at the top, where a reader looks; the others stand in it as what was averaged with it.
    told = [json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {} for record in records]
    (part / TRAINING_FILE).write_text(json.dumps({**told[-1], "averaged_with": told[:-1]}, indent=1), encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    part.rename(out)
