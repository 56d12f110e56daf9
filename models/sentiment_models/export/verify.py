"""The checks of a graph before it goes into a bundle: parity with torch, and answers that do not depend on batch mates."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentiment.batch_limits import EXACT
from sentiment.model.session import ExplainSession
from sentiment.model.tensors import Feeds, pad
from sentiment.model.tokenizer import Row, Tokenizer
from sentiment_models.errors import ParityFailed
from sentiment_models.evaluation.metrics import Logits, stated
from sentiment_models.export.inference import Graph

Reference = Callable[[Feeds], Logits]
"""Computes the logits of the same feeds in torch."""


@dataclass(frozen=True, slots=True)
class Explained:
    """The outputs of an explain graph.

    ``logits``: [rows, labels]. ``attentions`` and ``attention_gradients``: per layer, attention and the gradient of the chosen logits by
    it, [rows, heads, tokens, tokens]. ``hidden``: what each layer reads, and what the last one gives, [rows, tokens, width]. ``dots``: the
    gradient by the word embeddings times the embeddings of the text and of the baseline, [rows, tokens, 2].
    """

    logits: Logits
    attentions: list[NDArray[np.float32]]
    attention_gradients: list[NDArray[np.float32]]
    hidden: list[NDArray[np.float32]]
    dots: NDArray[np.float32]


ExplainReference = Callable[[Feeds, NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]], Explained]
"""Computes the same in torch from feeds, labels, alphas and baseline ids."""

# fp32 differs from torch only by the order of sums.
FP32_LOGIT_ERROR_MAX = 1e-4
# The same holds at every point of the explain graph's forward pass: of logits as they are, of attention and states relative to their size.
EXPLAIN_FORWARD_ERROR_MAX = 1e-4
# A gradient is steep at one point in a hundred and magnifies that order tenfold, so a single point proves nothing. Nine of ten errors of
# the default bundle and of a fine-tune are at most 1.6e-5 of the size of the output, and the largest of 800 is 7e-5. A constant that is
# 1 % wrong in a node of the graph gives errors of 1e-3 and more at most points.
EXPLAIN_USUAL_ERROR_MAX = 1e-4
EXPLAIN_ERROR_MAX = 1e-2
# Of the logits of golden texts, where a bundle is served.
EXPLAIN_TOLERANCE = 1e-4
# An output that is smaller is rounding itself.
EXPLAIN_SIZE_MIN = 1e-6
# int8 rounds. On MiniLM-L6 the mean error of probabilities is 0.005 to 0.007; three times that is an error of the graph. A text between two
# labels flips by rounding alone, and one of them counts at most this much: 0.48 of one text in 29 was the whole error of a fine-tune.
INT8_PROBABILITY_ERROR_MEAN_MAX = 0.02
INT8_PROBABILITY_ERROR_COUNTED_MAX = 0.1
# A text whose label has more than this probability in torch is not between two labels.
SURE = 0.9
MIXED_ROWS = (1, 3, 8)
SHUFFLED_ROWS = (4, 16)
# Attention weights in a batch of the explain graph: 128 MiB. Intermediate results take many times that, in torch too: with four times as
# many MPNet-base took 9.5 GB. A row of 512 tokens has more, and is compared alone.
EXPLAIN_NUMBERS_MAX = 2**25
# Squared tokens in a batch: with 12 heads 0.4 GB of attention scores in each copy of them. More than 16 rows of 512 tokens have.
SQUARES_MAX = 2**23
# Of a longer row no more are compared: one of 8,192 tokens takes ten GiB.
COMPARED_TOKENS_MAX = 2048
# The commands name the memory of a longer row before they run it: scores, masked scores and weights of one layer.
ATTENTION_GIB_TOLD = 1.0
LONG_ROWS = (
    "a text may have {tokens:,} tokens. A server runs one of that length when it starts, in about {gib:.0f} GiB; with --max-tokens 1024 it "
    "needs {less:.1f} and cuts longer texts, or reads them in windows"
)
# Of an explain graph fewer: it gives all attention weights, with their gradients. Of ModernBERT-base half a GiB each.
EXPLAINED_TOKENS_MAX = 712
# A shuffled batch is padded by up to this many tokens beyond its longest row.
EXTRA_TOKENS_MAX = 32


@dataclass(frozen=True, slots=True)
class Parity:
    """The difference between a graph and torch on the same weights.

    The error of a text's probabilities is half the sum of their absolute differences, so 1 for another label with certainty, or that of
    an output beside the labels, if it is larger.
    ``probability_error_counted``: the mean in which no text counts more than INT8_PROBABILITY_ERROR_COUNTED_MAX. ``sure_labels_changed``:
    of texts whose label has a probability over SURE in torch.
    """

    rows: int
    logit_error_max: float
    probability_error_mean: float
    probability_error_counted: float
    labels_changed: int
    sure_labels_changed: int = 0


@dataclass(frozen=True, slots=True)
class Movement:
    """The change of answers when rows run in batches instead of alone."""

    rows: int
    probability_max: float
    labels_changed: int


def shortened(rows: Sequence[Row], tokens_max: int) -> list[Row]:
    """The rows; of a longer one its first tokens and its last, which some families' classifiers read."""
    return [row if row.tokens <= tokens_max else row.part(tokens_max - 1, 1) for row in rows]


def parity(graph: Graph, reference: Reference, rows: Sequence[Row], labels: int) -> Parity:
    """Compare a graph with torch on the same feeds: batches of 1, 3 and 8 rows of mixed length, most of them padded, fewer of long rows.

    ``labels``: how many of the logits are of labels, the first ones.
    """
    found: list[Logits] = []
    wanted: list[Logits] = []
    for batch in _mixed(rows, SQUARES_MAX):
        found.append(graph.logits(batch))
        wanted.append(reference(graph.feeds(batch)))
    ours, theirs = np.concatenate(found), np.concatenate(wanted)
    right = stated(theirs, labels)
    apart = np.abs(stated(ours, labels) - right)
    errors = np.maximum(apart[:, :labels].sum(axis=1) / 2, apart[:, labels:].max(axis=1, initial=0))
    changed = ours[:, :labels].argmax(1) != theirs[:, :labels].argmax(1)
    return Parity(
        rows=len(rows),
        logit_error_max=float(np.abs(ours - theirs).max()),
        probability_error_mean=float(errors.mean()),
        probability_error_counted=float(np.minimum(errors, INT8_PROBABILITY_ERROR_COUNTED_MAX).mean()),
        labels_changed=int(changed.sum()),
        sure_labels_changed=int((changed & (right[:, :labels].max(1) > SURE)).sum()),
    )


def check_parity(precision: str, measured: Parity) -> None:
    """Check that a graph computes what torch computes.

    Raises:
        ParityFailed: it does not. Names the measured error and the limit of this precision.
    """
    # Written so that NaN fails.
    if precision == "fp32" and not measured.logit_error_max <= FP32_LOGIT_ERROR_MAX:
        raise ParityFailed(
            f"logits of the fp32 graph differ from torch by {measured.logit_error_max:.2e}; the limit is {FP32_LOGIT_ERROR_MAX:.0e}"
        )
    if not measured.probability_error_counted <= INT8_PROBABILITY_ERROR_MEAN_MAX:
        raise ParityFailed(
            f"probabilities of the {precision} graph differ from torch by {measured.probability_error_counted:.4f} on average, counting at "
            f"most {INT8_PROBABILITY_ERROR_COUNTED_MAX} of a text; the limit is {INT8_PROBABILITY_ERROR_MEAN_MAX}"
        )
    if measured.sure_labels_changed:
        raise ParityFailed(
            f"the {precision} graph gives {measured.sure_labels_changed} of {measured.rows} texts another label than torch, which gives "
            f"its own more than {SURE}"
        )


def movement(graph: Graph, rows: Sequence[Row], labels: int, seed: int = 1, temperature: float = 1.0) -> Movement:
    """Run each row alone, then all rows shuffled into batches of 4 and of 16, padded by up to 32 tokens more than needed.

    ``labels``: as for ``parity``. ``temperature``: of the probabilities.
    """
    rng = random.Random(seed)  # noqa: S311 - it shuffles rows
    alone = stated(np.concatenate([graph.logits([row]) for row in rows]), labels, temperature)
    moved, changed = 0.0, 0
    for size in SHUFFLED_ROWS:
        order = rng.sample(range(len(rows)), len(rows))
        for group in _groups([rows[index].tokens for index in order], order, size):
            length = max(rows[index].tokens for index in group) + rng.randint(0, EXTRA_TOKENS_MAX)
            logits = graph.logits([rows[index] for index in group], min(length, graph.tokenizer.max_tokens))
            together = stated(logits, labels, temperature)
            # Unlike Python's max, numpy's keeps NaN.
            moved = float(np.max([moved, np.abs(together - alone[group]).max()]))
            changed += int((together[:, :labels].argmax(1) != alone[group][:, :labels].argmax(1)).sum())
    return Movement(len(rows), moved, changed)


def _groups(tokens: Sequence[int], order: Sequence[int], size: int) -> Iterator[list[int]]:
    """Divide ``order`` into groups of ``size``, or of fewer where the squared tokens of a batch would be over SQUARES_MAX."""
    group: list[int] = []
    longest = 0
    for count, index in zip(tokens, order, strict=True):
        if len(group) == size or (group and (len(group) + 1) * (max(longest, count) + EXTRA_TOKENS_MAX) ** 2 > SQUARES_MAX):
            yield group
            group, longest = [], 0
        group.append(index)
        longest = max(longest, count)
    if group:
        yield group


def check_movement(precision: str, measured: Movement) -> None:
    """Check that a graph's answers do not depend on batch mates.

    Raises:
        ParityFailed: they do. Names the measured change and the limit.
    """
    if not measured.probability_max <= EXACT:
        raise ParityFailed(
            f"batch mates change a probability of the {precision} graph by {measured.probability_max:.1e}; the limit is {EXACT:.0e}"
        )


def long_rows(tokens: int, heads: int) -> Iterator[str]:
    """Yield the memory that a row of as many tokens takes in a model with these attention heads, if it is much."""
    gib, less = (3 * 4 * heads * length**2 / 2**30 for length in (tokens, 1024))
    if gib > ATTENTION_GIB_TOLD:
        yield LONG_ROWS.format(tokens=tokens, gib=gib, less=less)


@dataclass(frozen=True, slots=True)
class ExplainParity:
    """The errors of an explain graph at ``points``.

    ``forward``: the largest of logits, attention and hidden states. Of gradients, relative to the size of what torch gives: ``usual``, of
    nine in ten points, and ``largest``.
    """

    points: int
    forward: float
    usual: float
    largest: float


def explain_parity(
    session: ExplainSession, tokenizer: Tokenizer, reference: ExplainReference, rows: Sequence[Row], seed: int = 1
) -> ExplainParity:
    """Compare an explain graph with torch, in batches of up to 8 rows of at most EXPLAINED_TOKENS_MAX tokens.

    Each row is at a point of its own: a random label and alpha, and a baseline of mostly [PAD]. The error of a point is the largest of any
    output, but for logits relative to the output's largest absolute value in this row.
    """
    rng = np.random.default_rng(seed)
    errors = [
        _explain_errors(session, tokenizer, reference, batch, rng)
        for batch in _mixed(shortened(rows, EXPLAINED_TOKENS_MAX), EXPLAIN_NUMBERS_MAX / (session.layers * session.heads))
    ]
    forward, gradients = np.concatenate(errors, axis=1)
    # Unlike Python's max, numpy's keeps NaN.
    return ExplainParity(
        len(gradients), float(np.max(forward)), float(np.quantile(gradients, 0.9, method="higher")), float(np.max(gradients))
    )


def _explain_errors(
    session: ExplainSession, tokenizer: Tokenizer, reference: ExplainReference, batch: Sequence[Row], rng: np.random.Generator
) -> NDArray[np.floating]:
    """Return the errors of what is computed forwards, and those of gradients, [2, rows]."""
    attentions, slopes = ([f"{kind}.{layer}" for layer in range(session.layers)] for kind in ("attention", "attention_gradient"))
    states = [f"hidden.{index}" for index in range(session.layers + 1)] if session.hidden else []
    feeds = pad(batch, session.inputs, tokenizer.pad_id, left=False)
    baseline = np.where(rng.random(feeds["input_ids"].shape) < 0.1, feeds["input_ids"], tokenizer.pad_id)
    label, alpha = rng.integers(0, session.logits, len(batch)), rng.random(len(batch), np.float32)
    found = session.run(feeds, ["logits", "embedding_dots", *attentions, *slopes, *states], label, alpha, baseline)
    wanted = reference(feeds, label, alpha, baseline)
    read = feeds["attention_mask"].astype(bool)

    def relative(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> list[np.floating]:
        # Rows of padding are ignored: nothing reads their attention.
        pairs = [(ours[row][read[row]], theirs[row][read[row]]) for row in range(len(batch))]
        return [np.abs(one - other).max() / np.maximum(EXPLAIN_SIZE_MIN, np.abs(other).max()) for one, other in pairs]

    def by_layer(names: Sequence[str], theirs: Sequence[NDArray[np.float32]]) -> list[list[np.floating]]:
        return [relative(found[name].swapaxes(1, 2), one.swapaxes(1, 2)) for name, one in zip(names, theirs, strict=True)]

    forward = [list(np.abs(found["logits"] - wanted.logits).max(axis=1)), *by_layer(attentions, wanted.attentions)]
    forward += [relative(found[name], one) for name, one in zip(states, wanted.hidden, strict=session.hidden)]
    gradients = [relative(found["embedding_dots"][..., :2], wanted.dots), *by_layer(slopes, wanted.attention_gradients)]
    return np.stack([np.max(forward, axis=0), np.max(gradients, axis=0)])


def check_explain_parity(measured: ExplainParity) -> None:
    """Check that an explain graph computes what torch computes: gradients nearly so at nine of ten points, and roughly at each.

    Raises:
        ParityFailed: it does not. Names the measured error and the limit.
    """
    for error, limit, where in (
        (measured.forward, EXPLAIN_FORWARD_ERROR_MAX, "in logits, attention or hidden states at one point"),
        (measured.usual, EXPLAIN_USUAL_ERROR_MAX, "at one point in ten"),
        (measured.largest, EXPLAIN_ERROR_MAX, "at one point"),
    ):
        if not error <= limit:  # also true for NaN
            raise ParityFailed(
                f"the explain graph differs from torch by {error:.2e} of the size of the output {where} of {measured.points}; "
                f"the limit is {limit:.0e}"
            )


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    """Choose ``count`` rows spread evenly over the lengths, the longest included."""
    ordered = sorted(rows, key=lambda row: row.tokens)
    if len(ordered) <= count:
        return ordered
    return [ordered[round(index * (len(ordered) - 1) / (count - 1))] for index in range(count)]


def _mixed(rows: Sequence[Row], squares_max: float = math.inf) -> Iterator[Sequence[Row]]:
    """Yield batches of 1, 3 and 8 rows in turn, fewer where rows x tokens x tokens would be over ``squares_max``."""
    start = number = 0
    while start < len(rows):
        batch = rows[start : start + MIXED_ROWS[number % len(MIXED_ROWS)]]
        while len(batch) > 1 and len(batch) * max(row.tokens for row in batch) ** 2 > squares_max:
            batch = batch[:-1]
        yield batch
        start, number = start + len(batch), number + 1
