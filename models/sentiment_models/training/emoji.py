"""Add emoji as tokens.

The vocabularies of most encoders have hardly any. An emoji then becomes the unknown token, and with WordPiece so does a word that it
touches, such as "great" in "great😍".
"""

import unicodedata
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel

# A fixed list, because Python's Unicode tables differ between versions: a recipe must make the same vocabulary everywhere.
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
    """Give each of ``EMOJI`` a token unless the tokenizer can read them all; return the number of new tokens.

    The embedding of a new token starts as the mean over the tokens of its Unicode name, so that it has a meaning even if no training text
    holds it. Emoji that the tokenizer's normalizer deletes get no token; those that it knows keep their ids.
    """

    def read(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    kept = [(one, ids) for one, ids in zip(EMOJI, read(list(EMOJI)), strict=True) if ids]
    if all(one in tokenizer.decode(ids) for one, ids in kept):
        return 0
    before = len(tokenizer)
    names = read([unicodedata.name(one, "emoji").lower() for one, _ in kept])
    # Not normalized: emoji are then split off before words are, so that a word that one touches stays whole.
    tokenizer.add_tokens([AddedToken(one, normalized=False) for one, _ in kept])
    rows = max(len(tokenizer), int(model.config.vocab_size))
    weights = model.resize_token_embeddings(rows, mean_resizing=False).weight
    for one, name in zip(tokenizer.convert_tokens_to_ids([one for one, _ in kept]), names, strict=True):
        if one >= before:
            weights[one] = weights[torch.tensor(name)].mean(0)
    return len(tokenizer) - before
