"""The classification head that a run starts with: the base's, in the order of the run's labels, or a fresh one on its encoder."""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence

import torch
from transformers import PretrainedConfig, PreTrainedModel

from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.checkpoint import from_pretrained
from sentiment_models.export.labels import UNNAMED, as_argument, check_task

# transformers advises to train a model whose head is fresh.
logging.getLogger("transformers.modeling_utils").addFilter(lambda record: "newly initialized" not in record.getMessage())


def load_with_head(
    base: str, config: PretrainedConfig, labels: Sequence[str], new_head: bool, dither: int | None, say: Callable[[str], object]
) -> tuple[PreTrainedModel, bool]:
    """Load a classifier for ``labels``, and say whether its head is fresh and has to be fitted first.

    The base's head is kept if its labels have the same names, whatever their order and case: the rows of its last layer are put into the
    order of ``labels``. A base without a head, such as an encoder, gets a fresh one, whose labels begin equally likely.

    Args:
        base: a folder, or a name known to transformers.
        config: the base's own.
        labels: the run's.
        new_head: make a fresh head though the base has one, and keep the encoder. Labels that both have, in whatever case, begin as they
            are in the base.
        dither: seed of the weights that a bundle has in int8, see ``dithered``; None: as they are, for an encoder that is not trained.
        say: called with a line about what may not be expected.

    Raises:
        BadCheckpoint: the base has a head for other labels, or for several labels of a text.
        Exception: whatever transformers raises for a damaged checkpoint.
    """
    own = [str(name) for _, name in sorted((config.id2label or {}).items())]
    wanted = copy.deepcopy(config)
    names = dict(enumerate(labels))
    wanted.update({"id2label": names, "label2id": {name: place for place, name in names.items()}, "problem_type": None})
    # A fresh head has the same weights whether the base's was loaded before or not.
    with torch.random.fork_rng(devices=[]):
        model, report = from_pretrained(base, config, dither=dither, output_loading_info=True)
    encoder = f"{model.base_model_prefix}."
    if new_head or any(not name.startswith(encoder) for name in report["missing_keys"]):
        state = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(encoder)}
        fresh: PreTrainedModel = type(model).from_pretrained(None, config=wanted, state_dict=state)
        shared = _shared(own, labels) if new_head else {}
        if shared:
            say(f"{base}: the labels {as_argument([labels[place] for place in shared])} begin as they are there")
        _begin(fresh, model, shared)
        return fresh, True
    check_task({"problem_type": config.problem_type, "id2label": config.id2label}, base)
    kept: PreTrainedModel = model
    order = _order(base, own, labels, say)
    kept.config = wanted
    for parameter in last_layer(kept).parameters():
        parameter.data = parameter.data[order]
    return kept, False


def _shared(own: Sequence[str], labels: Sequence[str]) -> dict[int, int]:
    """The places of ``labels`` that the base has, in whatever case, with their places there. None unless it has several of them."""
    before, after = ([name.casefold() for name in names] for names in (own, labels))
    found = {place: before.index(name) for place, name in enumerate(after) if before.count(name) == after.count(name) == 1}
    return found if len(found) > 1 else {}


def _begin(fresh: PreTrainedModel, base: PreTrainedModel, shared: Mapping[int, int]) -> None:
    """Let the labels that the base has answer as in the base, and the others as if nothing spoke for them, before the head is fitted."""
    with torch.no_grad():
        for parameter, before in zip(last_layer(fresh).parameters(), last_layer(base).parameters(), strict=True):
            parameter.zero_()
            for place, its in shared.items():
                parameter[place] = before[its]


def _order(base: str, own: Sequence[str], labels: Sequence[str], say: Callable[[str], object]) -> list[int]:
    """The place of each of ``labels`` among the base's own."""
    before, after = ([name.casefold() for name in names] for names in (own, labels))
    if len(own) == len(labels) and all(map(UNNAMED.fullmatch, own)):
        say(f"{base}: does not name its labels; they are taken to be {as_argument(labels)}, in this order")
        return list(range(len(own)))
    if sorted(before) != sorted(after) or len(set(before)) < len(before):
        raise BadCheckpoint(
            f"{base}: has a head for the labels {as_argument(own)}, and the run is for {as_argument(labels)}; train these labels with "
            f"--labels {as_argument(own)}, or add --new-head, which keeps the encoder and learns a fresh head"
        )
    if before != after:
        say(f"{base}: its labels {as_argument(own)} are put in the order {as_argument(labels)}")
    return [before.index(name) for name in after]


def last_layer(model: PreTrainedModel) -> torch.nn.Linear:
    """The layer that gives the logits: in every family the last linear one."""
    last = [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]
    assert last.out_features == model.config.num_labels
    return last
