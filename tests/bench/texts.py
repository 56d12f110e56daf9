"""Texts to measure with: sentences written here, cut to the token lengths of SST-2 dev (short) and IMDB test (long)."""

import random

import tokenizers

# Tokens at the 0, 5, 10, 20 .. 90, 95, 99 and 100 % quantiles, counted with BERT's uncased WordPiece tokenizer.
QUANTILES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
SHORT = (4, 10, 12, 16, 19, 21, 24, 27, 30, 34, 40, 44, 51, 55)
LONG = (29, 81, 109, 152, 169, 191, 216, 248, 296, 390, 536, 716, 1034, 1284)

SUBJECTS = ("the film", "this story", "the lead actor", "her performance", "the script", "every scene", "the director", "the second half")
VERBS = ("delivers", "wastes", "carries", "ruins", "celebrates", "forgets", "rescues", "drowns in", "finds", "misses")
OBJECTS = (
    "a quiet kind of joy that stays with you",
    "two hours of my life I will never get back",
    "its own clumsy jokes and borrowed ideas",
    "moments of real tenderness between strangers",
    "the patience of anyone who paid for a ticket",
    "an honest look at growing old in a small town",
    "more noise than the thin plot can bear",
    "the best soundtrack of the year",
)
JOINTS = (", and", ", but", "; still,", ". Then", ". Worse,", ". Better still,", ", while", " because")


def lengths(quantiles: tuple[int, ...], count: int, rng: random.Random) -> list[int]:
    """Draw token counts from a histogram given by its quantiles, evenly spread so that few draws have its mean."""
    drawn = []
    for index in range(count):
        share = (index + rng.random()) / count
        upper = next(number for number, edge in enumerate(QUANTILES) if edge >= share)
        low, high = QUANTILES[max(0, upper - 1)], QUANTILES[upper]
        part = (share - low) / (high - low) if high > low else 0.0
        drawn.append(round(quantiles[max(0, upper - 1)] * (1 - part) + quantiles[upper] * part))
    rng.shuffle(drawn)
    return drawn


def make_texts(quantiles: tuple[int, ...], count: int, tokenizer: tokenizers.Tokenizer, seed: int = 1) -> list[str]:
    """Write ``count`` texts with these lengths; the same seed writes the same texts."""
    rng = random.Random(seed)
    texts = []
    for tokens in lengths(quantiles, count, rng):
        words = ""
        while len(tokenizer.encode(words).ids) < tokens:
            clause = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}"
            words = f"{words}{rng.choice(JOINTS)} {clause}" if words else clause.capitalize()
        offsets = tokenizer.encode(words).offsets
        # The last of the ids is [SEP]; the text ends where the wanted last piece ends.
        texts.append(words[: offsets[max(1, tokens - 2)][1]])
    return texts
