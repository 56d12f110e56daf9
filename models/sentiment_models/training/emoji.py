"""Emoji as tokens of their own.

The vocabularies of most encoders know hardly any: an emoji becomes the unknown token, and in those of words and their pieces every word
that it touches with it, as "great" in "great😍".
"""

import unicodedata
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel

# Fixed here and not asked of Python, whose versions know other characters: a recipe makes the same vocabulary everywhere.
BLOCKS = (
    (0x20E3, 0x20E3),  # keycap
    (0x231A, 0x231B),  # clocks
    (0x23E9, 0x23F3),
    (0x25AA, 0x25AB),  # squares and triangles
    (0x25B6, 0x25B6),
    (0x25C0, 0x25C0),
    (0x25FB, 0x25FE),
    (0x2600, 0x27BF),  # miscellaneous symbols, dingbats
    (0x2B05, 0x2B07),  # arrows, squares, star, circle
    (0x2B1B, 0x2B1C),
    (0x2B50, 0x2B50),
    (0x2B55, 0x2B55),
    (0xFE0F, 0xFE0F),  # "as an emoji"
    (0x1F004, 0x1F004),  # tile and card of games
    (0x1F0CF, 0x1F0CF),
    (0x1F170, 0x1F19A),  # letters and words in squares
    (0x1F1E6, 0x1F1FF),  # letters of flags
    (0x1F201, 0x1F251),
    (0x1F300, 0x1F64F),  # pictographs, skin tones, faces
    (0x1F680, 0x1F6FF),  # transport
    (0x1F7E0, 0x1F7F0),  # coloured shapes
    (0x1F900, 0x1F9FF),  # supplements
    (0x1FA70, 0x1FAFF),
)
EMOJI = tuple(chr(point) for first, last in BLOCKS for point in range(first, last + 1))


@torch.no_grad()
def add_emoji(model: PreTrainedModel, tokenizer: Any) -> int:  # transformers has no one type for its tokenizers
    """Give each of ``EMOJI`` a token if the tokenizer cannot read them all; return how many are new.

    A token begins as the mean of what its Unicode name is made of, so that one that no training text has still means something. What the
    tokenizer drops stays dropped, what it knows alone keeps its id.
    """

    def read(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    kept = [(one, ids) for one, ids in zip(EMOJI, read(list(EMOJI)), strict=True) if ids]
    if all(one in tokenizer.decode(ids) for one, ids in kept):
        return 0
    before = len(tokenizer)
    names = read([unicodedata.name(one, "emoji").lower() for one, _ in kept])
    # Not normalized: they are looked for before words are, so that what they touch stays whole.
    tokenizer.add_tokens([AddedToken(one, normalized=False) for one, _ in kept])
    rows = max(len(tokenizer), int(model.config.vocab_size))
    weights = model.resize_token_embeddings(rows, mean_resizing=False).weight
    for one, name in zip(tokenizer.convert_tokens_to_ids([one for one, _ in kept]), names, strict=True):
        if one >= before:
            weights[one] = weights[torch.tensor(name)].mean(0)
    return len(tokenizer) - before
