"""Average the weights of several fine-tuned copies of one model.

The average is often better calibrated than each copy and costs nothing more to serve (Wortsman et al. 2022, "Model soups").
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.checkpoint import base_tokenizer, load_classifier
from sentiment_models.export.inherited import inherited_of
from sentiment_models.export.labels import label_names
from sentiment_models.export.provenance import facts
from sentiment_models.reports.report import refuse_existing
from sentiment_models.training.bases import teacher_name, training_of
from sentiment_models.training.heads import last_layer
from sentiment_models.training.resume import replace_checkpoint


def average(checkpoints: Sequence[Path], out: Path, *, force: bool = False) -> None:
    """Write the mean of the checkpoints' weights to ``out``, and the last one's training record, with the names of the others.

    Args:
        checkpoints: folders of classifiers or bundles, at least two. One that is named twice counts twice. Those after the first may lack
            labels of it: of these labels' rows in the head only the others count.
        out: the folder to write.
        force: replace ``out`` if it exists.

    Raises:
        BadCheckpoint: there are fewer than two, one cannot be loaded, one has a label that the first lacks, or the names or shapes of
            their weights differ.
        ModelsError: ``out`` exists.
    """
    refuse_existing(out, force=force)
    if len(checkpoints) < 2:
        raise BadCheckpoint(f"average needs at least 2 checkpoints, got {len(checkpoints)}")
    models = [load_classifier(path)[0] for path in checkpoints]
    labels = [label_names(path) for path in checkpoints]
    for path, its in zip(checkpoints[1:], labels[1:], strict=True):
        if not set(its) <= set(labels[0]):
            raise BadCheckpoint(f"{path}: labels are {', '.join(its)}, but those of {checkpoints[0]} are {', '.join(labels[0])}")
    states = [_state(model, its, labels[0]) for model, its in zip(models, labels, strict=True)]
    for path, state in zip(checkpoints[1:], states[1:], strict=True):
        if {name: tensor.shape for name, tensor in state.items()} != {name: tensor.shape for name, tensor in states[0].items()}:
            raise BadCheckpoint(f"{path}: names or shapes of the weights differ from those of {checkpoints[0]}")
    mean = {
        name: torch.stack([state[name] for state in states]).nanmean(0) if tensor.is_floating_point() else tensor
        for name, tensor in states[0].items()
    }
    models[0].load_state_dict(mean)
    *others, last = checkpoints
    names = ["this stage" if path == last else teacher_name(path) for path in others]
    record = {**facts(training_of(str(last))), "averaged_with": names}
    replace_checkpoint(out, models[0], base_tokenizer(str(checkpoints[0])), inherited_of(last), record)


def _state(model: PreTrainedModel, own: Sequence[str], labels: Sequence[str]) -> dict[str, torch.Tensor]:
    """The weights by name. The head's rows are those of ``labels``, in this order: NaN for labels that are not among the model's own."""
    state = dict(model.state_dict())
    last = {id(parameter) for parameter in last_layer(model).parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) in last:
            rows = parameter.new_full((len(labels), *parameter.shape[1:]), torch.nan)
            rows[[labels.index(label) for label in own]] = parameter.detach()
            state[name] = rows
    return state
