"""Settings outside their limits are refused before the work, with value and limits."""

import math
from dataclasses import fields

import pytest

from sentiment_models.errors import ModelsError
from sentiment_models.study.recipes import Experiment, Pretraining
from sentiment_models.training.limits import LIMITS
from sentiment_models.training.recipe import Recipe

KINDS = {
    "train": lambda **given: Recipe("base", ("data.tsv",), **given),
    "pretrain": lambda **given: Pretraining(("data.txt",), **given),
    "scratch": lambda **given: Experiment("data.tsv", "test.tsv", **given),
}
NAMES = {kind: {field.name for field in fields(make())} for kind, make in KINDS.items()}
# Fields without numeric limits: files, words and flags.
FREE = {"base", "bases", "sources", "tails", "ends", "erased", "undecided", "tokenizer", "data", "test"} | {"labels", "grid", "emoji"}
FREE |= {"head_only", "freeze_embeddings", "new_head", "class_weights", "next_sentence", "reading", "dev"}
SHAPE = {"layers", "heads", "width", "reviews", "test_reviews"}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in sorted(names & LIMITS.keys())])
def test_the_limits_are_allowed_and_values_beyond_them_are_refused(kind: str, name: str) -> None:
    least, most = LIMITS[name]
    make = KINDS[kind]

    for allowed in {least, most} - {math.inf}:
        assert getattr(make(**{name: allowed}), name) == allowed
    for refused in {least - 1, most + 1, math.nan} - {math.inf}:
        with pytest.raises(ModelsError, match=rf"^{name} must be (at least {least:g}|from {least:g} to .*), got {refused}$"):
            make(**{name: refused})


def test_every_number_of_a_recipe_has_limits() -> None:
    assert set().union(*NAMES.values()) - FREE - SHAPE == LIMITS.keys()


@pytest.mark.parametrize("name", ["head_only", "new_head"])
def test_what_is_of_a_head_needs_a_base(name: str) -> None:
    with pytest.raises(ModelsError, match=f"{name} needs a base"):
        Recipe("", (), **{name: True})
