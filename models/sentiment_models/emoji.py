"""Emoji as tokens of their own.

The vocabularies of most encoders know hardly any: an emoji becomes the unknown token, and with it every word that it touches, as
"great" in "great😍".
"""

import unicodedata
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel

# Miscellaneous symbols and dingbats; star and circle; coloured shapes; pictographs and faces; transport; supplements.
BLOCKS = (
    (0x2600, 0x27BF),
    (0x2B50, 0x2B55),
    (0x1F300, 0x1F64F),
    (0x1F680, 0x1F6FF),
    (0x1F7E0, 0x1F7EB),
    (0x1F900, 0x1F9FF),
    (0x1FA70, 0x1FAFF),
)


def characters() -> list[str]:
    """Return the symbols of those blocks, skin tones with them, in the order of their code points."""
    every = (chr(point) for first, last in BLOCKS for point in range(first, last + 1))
    return [one for one in every if unicodedata.category(one) in ("So", "Sk")]


@torch.no_grad()
def add_emoji(model: PreTrainedModel, tokenizer: Any) -> int:  # transformers has no one type for its tokenizers
    """Give each emoji that the tokenizer does not know a token; return how many.

    A token begins as the mean of what its Unicode name is made of, so that one that no training text has still means something.
    """
    unknown = tokenizer.unk_token_id
    ids = tokenizer(characters(), add_special_tokens=False, verbose=False)["input_ids"]
    added = [one for one, its in zip(characters(), ids, strict=True) if unknown is not None and unknown in its]
    if not added:
        return 0
    names = tokenizer([unicodedata.name(one).lower() for one in added], add_special_tokens=False, verbose=False)["input_ids"]
    # Not normalized: they are looked for before words are, so that what they touch stays whole.
    tokenizer.add_tokens([AddedToken(one, normalized=False) for one in added])
    rows = max(len(tokenizer), int(model.config.vocab_size))
    weights = model.resize_token_embeddings(rows, mean_resizing=False).weight
    for one, name in zip(tokenizer.convert_tokens_to_ids(added), names, strict=True):
        weights[one] = weights[torch.tensor(name)].mean(0)
    return len(added)
