"""Upper bound on the size of an explanation in protobuf messages, used to refuse a request that can exceed its byte budget. Pure.

The bound adds up the maximum of each field. Most explanations take half of it or less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sentiment.errors import InvalidInput
from sentiment.explain import reason
from sentiment.explain.encoding import Encoding, encoded_bytes
from sentiment.explain.methods.geometry import NEAREST
from sentiment.explain.methods.heads import PATTERNS
from sentiment.explain.parts import ROLLOUTS, Aggregation, AttentionRequest, ExplanationRequest
from sentiment.model.words import Encoded

# Upper bound in bytes: the tag and length of an embedded message, those of the stream's message, and the gRPC frame.
FRAME = 24
# A tag and the widest int32 (10 bytes if negative); the widest that is not negative; a float; the length of a bytes field.
INT, COUNT, FLOAT, LENGTH = 12, 6, 6, 6
SPAN = LENGTH + 6 * 7
TOKEN = LENGTH + LENGTH + SPAN + 3 * 3 + INT
WORD = LENGTH + SPAN + 3 + 3 * COUNT
NAME = LENGTH + 32
# SHA-256 in hex, bundle name and bundle version.
MODEL = 64 + 64 + INT + 4 * LENGTH
NOTE_BYTES_MAX = 256
# Of 256 orders, which are the most that may be asked for: the first estimate, and those of 4, 8, 16, 32 and 64 pairs.
ESTIMATES_MAX = 6
# Each message of a neuron view holds at least this, unless the whole view is smaller.
NEURON_BYTES_MIN = 30_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the explain graph; without one, as by default.

    ``layers``; ``heads`` of each; ``width``: length of a head's query vector; ``golden``: the words of the golden texts.
    """

    layers: int = 0
    heads: int = 0
    width: int = 0
    golden: Sequence[str] = ()


def check_bytes(request: ExplanationRequest, encoded: Encoded, labels: Sequence[str], sizes: Sizes) -> None:
    """Refuse a request whose explanation can take more than ``request.bytes_max``. Arguments as for ``bytes_most``.

    Raises:
        InvalidInput: with the upper bound, and a cheaper request that fits, if there is one.
    """
    budget = request.bytes_max
    if budget is None:
        return
    most = bytes_most(request, encoded, labels, sizes)
    if most <= budget:
        return
    for change, cheaper in _cheaper(request):
        less = bytes_most(cheaper, encoded, labels, sizes)
        if less <= budget:
            raise InvalidInput("options.bytes_max", f"is {budget}; this explanation can take up to {most}, {change} up to {less}")
    raise InvalidInput("options.bytes_max", f"is {budget}; this explanation can take up to {most}")


def bytes_most(request: ExplanationRequest, encoded: Encoded, labels: Sequence[str], sizes: Sizes) -> int:
    """Upper bound in bytes on all messages of an explanation together, frames included.

    Args:
        request: its ``methods`` are those that will run.
        encoded: the tokenized text.
        labels: the model's labels.
        sizes: of the explain graph.
    """
    tokens, words = len(encoded.tokens), len(encoded.words)
    label = LENGTH + max(len(name.encode()) for name in labels)
    methods = request.methods if request.attributions else request.methods[: request.counterfactuals]
    pieces = sum(len(token.piece.encode()) for token in encoded.tokens)
    prediction = 3 * label + 2 * FLOAT + INT + len(labels) * (label + FLOAT + LENGTH)
    # The prediction comes twice, if that of adaptive effort differs.
    total = FRAME + 2 * prediction + LENGTH + MODEL + pieces + tokens * TOKEN + words * WORD + 4 * FLOAT + 4 * LENGTH
    # What was not read, before and behind what was; and the mention of a target.
    total += (3 if request.target is not None else 2) * (SPAN + 9)
    each = FRAME + NAME + 6 * LENGTH + words * (LENGTH + SPAN + 2 * FLOAT + 3) + 4 * tokens * (4 if request.by_embedding else 1)
    each += 7 * FLOAT + 2 * INT
    # Sentences are fewer than words.
    by_sentence = words * (LENGTH + SPAN + 2 * FLOAT + 5)
    attributions = (*methods, *methods[:1] * ESTIMATES_MAX) if request.estimates else methods
    total += sum(each + (by_sentence if method == "two_step_shapley" else 0) for method in attributions)
    if request.evidence:
        total += len(methods) * (FRAME + 2 * NAME + 10 * FLOAT + 5 * INT)
    if methods and request.evidence:
        total += FRAME + NAME + LENGTH + reason.BYTES_MAX + reason.LABELS_MAX * label
        total += FRAME + NAME + label + 7 * FLOAT + 4 * INT + 2 * (LENGTH + words * COUNT)
    sets = [words, words] if request.counterfactuals else []
    total += sum(FRAME + label + LENGTH + 5 * count + FLOAT + 7 * INT for count in (*sets, *map(len, request.without)))
    if request.heads:
        total += _heads_bytes(sizes.layers * sizes.heads)
    if request.neuron is not None:
        total += _neuron_bytes(tokens, sizes.width)
    if request.geometry:
        total += (sizes.layers + 1) * _geometry_bytes(words, sizes.golden)
    if request.attention is not None:
        total += _attention_bytes(request.attention, encoded, sizes.layers, sizes.heads)
    # One note says that there was no time for the default method, one that there was none for the geometry.
    notes = 5 + request.geometry + 4 * len(methods) + 2 * request.counterfactuals + bool(request.without)
    return total + FRAME + notes * (LENGTH + NOTE_BYTES_MAX) + 3 * INT + 2 * (LENGTH + 2 * INT)


def _heads_bytes(count: int) -> int:
    numbers = LENGTH + 4 * count
    patterns = len(PATTERNS) * (LENGTH + NAME + 3 + FLOAT + 2 * numbers)
    return FRAME + 2 * INT + 2 * numbers + FLOAT + 6 + count * (LENGTH + max(map(len, PATTERNS))) + patterns


def _neuron_bytes(tokens: int, width: int) -> int:
    keys = tokens * 4 * (2 * width + 6)
    messages = -(-keys // NEURON_BYTES_MIN)
    return keys + messages * (FRAME + 5 * INT + 2 * FLOAT + 9 * LENGTH + 4 * width)


def _geometry_bytes(words: int, golden: Sequence[str]) -> int:
    known = sum(LENGTH + len(word.encode()) + 2 * 4 for word in golden)
    # An index takes at most two bytes: see WORDS_MAX of the golden words.
    return FRAME + 2 * INT + 7 * LENGTH + 2 * 4 + known + words * (2 * 4 + NEAREST * (2 + 4))


def _attention_bytes(request: AttentionRequest, encoded: Encoded, layers: int, heads: int) -> int:
    tokens = len(encoded.tokens)
    layer_count, head_count = len(request.layers) or layers, len(request.heads) or heads
    if request.aggregation in ROLLOUTS:
        return encoded_bytes(tokens, tokens, request.encoding)
    if request.aggregation == Aggregation.CLS_ROWS:
        return layer_count * encoded_bytes(head_count, tokens, request.encoding)
    if request.aggregation == Aggregation.HEAD_MEAN:
        return layer_count * encoded_bytes(tokens, tokens, request.encoding)
    side = tokens
    if request.aggregation == Aggregation.WORDS:
        side = len(encoded.words) + sum(token.word < 0 for token in encoded.tokens)
    return layer_count * head_count * encoded_bytes(side, side, request.encoding)


def _cheaper(request: ExplanationRequest) -> list[tuple[str, ExplanationRequest]]:
    """Cheaper requests with their descriptions, the most detailed first."""
    plain = replace(request, geometry=False)
    fewer = [("without geometry", plain)] if request.geometry else []
    if request.attention is None:
        return fewer
    small, mean, rows = Encoding.U8, Aggregation.HEAD_MEAN, Aggregation.CLS_ROWS
    attention = request.attention
    changes = {
        "with encoding u8": replace(attention, encoding=small),
        "with aggregation head_mean": replace(attention, aggregation=mean),
        "with encoding u8 and aggregation head_mean": replace(attention, encoding=small, aggregation=mean),
        "with encoding u8 and aggregation cls_rows": replace(attention, encoding=small, aggregation=rows),
        "without attention": None,
    }
    fewer += [(name, replace(request, attention=change)) for name, change in changes.items()]
    return [*fewer, ("without attention and geometry", replace(plain, attention=None))] if request.geometry else fewer
