"""How many bytes an explanation can take at most in the messages of the proto, so that a budget is kept by what is asked for. Pure.

Bounds of fields, not sizes: an explanation mostly takes a half or less of them.
"""

from collections.abc import Sequence
from dataclasses import replace

from sentiment.errors import InvalidInput
from sentiment.explain.encoding import Encoding, encoded_bytes
from sentiment.explain.methods.heads import PATTERNS
from sentiment.explain.parts import ROLLOUTS, Aggregation, Asked, AttentionAsked
from sentiment.model.words import Encoded

# Tag and length of a message within another, of a stream's own, and the frame of gRPC: of each at most so many bytes.
FRAME = 24
# A tag and the widest int32 (negative: 10 bytes), a tag and a float, a tag and the length of bytes.
INT, FLOAT, LENGTH = 12, 6, 6
SPAN = LENGTH + 6 * 7
TOKEN = LENGTH + LENGTH + SPAN + 3 * 3 + INT
WORD = LENGTH + SPAN + 3 + 2 * INT
NAME = LENGTH + 32
# SHA-256 in hex, the bundle's name and its version.
MODEL = 64 + 64 + INT + 4 * LENGTH
NOTE_BYTES_MAX = 256
# Messages of a neuron view hold at least this unless the view is smaller.
NEURON_BYTES_MIN = 30_000


def check_bytes(asked: Asked, encoded: Encoded, labels: Sequence[str], layers: int, heads: int, width: int) -> None:
    """Refuse what can take more than ``asked.bytes_max``. Arguments as of ``bytes_most``.

    Raises:
        InvalidInput: names the most that it can take, and something cheaper that fits, if there is that.
    """
    budget = asked.bytes_max
    if budget is None:
        return
    most = bytes_most(asked, encoded, labels, layers, heads, width)
    if most <= budget:
        return
    for change, cheaper in _cheaper(asked):
        less = bytes_most(cheaper, encoded, labels, layers, heads, width)
        if less <= budget:
            raise InvalidInput("options.bytes_max", f"is {budget}; what is asked can take up to {most}, {change} up to {less}")
    raise InvalidInput("options.bytes_max", f"is {budget}; what is asked can take up to {most}")


def bytes_most(asked: Asked, encoded: Encoded, labels: Sequence[str], layers: int, heads: int, width: int) -> int:
    """The most bytes that all messages of an explanation take together, frames included.

    Args:
        asked: with the ``methods`` that are run.
        encoded: the text.
        labels: of the model.
        layers: of the explain graph; 0 without one, as the next two.
        heads: of a layer.
        width: numbers of a head's query.
    """
    tokens, words = len(encoded.tokens), len(encoded.words)
    label = LENGTH + max(len(name.encode()) for name in labels)
    methods = asked.methods if asked.attributions else asked.methods[: asked.counterfactuals]
    pieces = sum(len(token.piece.encode()) for token in encoded.tokens)
    prediction = 2 * label + 2 * FLOAT + len(labels) * (label + FLOAT + LENGTH)
    total = FRAME + prediction + MODEL + pieces + tokens * TOKEN + words * WORD + 2 * (SPAN + 9) + 4 * FLOAT + 4 * LENGTH
    each = FRAME + NAME + 6 * LENGTH + words * (LENGTH + SPAN + 2 * FLOAT + 3) + 4 * tokens * (4 if asked.by_embedding else 1)
    each += 6 * FLOAT + 2 * INT
    if asked.evidence:
        each += FRAME + 2 * NAME + 10 * FLOAT + 5 * INT
    total += len(methods) * each
    sets = [words, words] if asked.counterfactuals else []
    total += sum(FRAME + label + LENGTH + 5 * count + FLOAT + 7 * INT for count in (*sets, *map(len, asked.without)))
    if asked.heads:
        total += _heads_bytes(layers * heads)
    if asked.neuron is not None:
        total += _neuron_bytes(tokens, width)
    if asked.attention is not None:
        total += _attention_bytes(asked.attention, encoded, layers, heads)
    # One of a default that there was no time for.
    notes = 4 + 4 * len(methods) + 2 * asked.counterfactuals + bool(asked.without)
    return total + FRAME + notes * (LENGTH + NOTE_BYTES_MAX) + 3 * INT + 2 * (LENGTH + 2 * INT)


def _heads_bytes(count: int) -> int:
    numbers = LENGTH + 4 * count
    patterns = len(PATTERNS) * (LENGTH + NAME + 3 + FLOAT + 2 * numbers)
    return FRAME + 2 * INT + 2 * numbers + FLOAT + 6 + count * (LENGTH + max(map(len, PATTERNS))) + patterns


def _neuron_bytes(tokens: int, width: int) -> int:
    keys = tokens * 4 * (2 * width + 6)
    messages = -(-keys // NEURON_BYTES_MIN)
    return keys + messages * (FRAME + 5 * INT + 2 * FLOAT + 9 * LENGTH + 4 * width)


def _attention_bytes(asked: AttentionAsked, encoded: Encoded, layers: int, heads: int) -> int:
    tokens = len(encoded.tokens)
    layer_count, head_count = len(asked.layers) or layers, len(asked.heads) or heads
    if asked.aggregation in ROLLOUTS:
        return encoded_bytes(tokens, tokens, asked.encoding)
    if asked.aggregation == Aggregation.CLS_ROWS:
        return layer_count * encoded_bytes(head_count, tokens, asked.encoding)
    if asked.aggregation == Aggregation.HEAD_MEAN:
        return layer_count * encoded_bytes(tokens, tokens, asked.encoding)
    side = tokens
    if asked.aggregation == Aggregation.WORDS:
        side = len(encoded.words) + sum(token.word < 0 for token in encoded.tokens)
    return layer_count * head_count * encoded_bytes(side, side, asked.encoding)


def _cheaper(asked: Asked) -> list[tuple[str, Asked]]:
    """What else could be asked for, in words, the richest first."""
    if asked.attention is None:
        return []
    small, mean, rows = Encoding.U8, Aggregation.HEAD_MEAN, Aggregation.CLS_ROWS
    attention = asked.attention
    changes = {
        "with encoding u8": replace(attention, encoding=small),
        "with aggregation head_mean": replace(attention, aggregation=mean),
        "with encoding u8 and aggregation head_mean": replace(attention, encoding=small, aggregation=mean),
        "with encoding u8 and aggregation cls_rows": replace(attention, encoding=small, aggregation=rows),
        "without attention": None,
    }
    return [(name, replace(asked, attention=change)) for name, change in changes.items()]
