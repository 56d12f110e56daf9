"""Runs of one text through the served graph and the explain graph. Counts and times them to predict how long the next runs take."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import compress
from statistics import median

import numpy as np
import numpy.typing as npt

from sentiment.explain.engine.golden_words import hidden_states
from sentiment.explain.methods.erasure import Answers, Enough, Floats, Masks, Result, Steps, run
from sentiment.explain.methods.target import Target
from sentiment.model.classifier import Classifier
from sentiment.model.execute import Execute, here, result_of
from sentiment.model.session import ExplainSession, Stop
from sentiment.model.tensors import Feeds, pad
from sentiment.model.tokenizer import Row
from sentiment.model.words import Encoded

# Maximum tokens of a run with several rows. Between runs the engine checks for a stop and for the time left, and yields the core.
RUN_TOKENS_MAX = 128
# Safety factor on predicted times: runs take longer beside other load, and the answer must still be sent.
MARGIN = 1.2
# A first run counts as at most this many times the usual time.
SLOW_MAX = 2.0
# More rows than any request needs.
_ROWS_ANY = 2**31

# The outputs of an explain graph that depend on its label.
GRADIENTS = ("embedding_dots", "attention_gradient.")

SERVED, EXPLAINED = "served", "explained"
# Seconds of a token before any run has told: about those of the default model on a core without VNNI.
TOKEN_S = {SERVED: 1e-4, EXPLAINED: 5e-4}

Clock = Callable[[], float]
SecondsLeft = Callable[[], float]
Turn = Callable[[], None]
"""Called before each run. It returns when the run may begin: other explanations may run meanwhile."""
Arrays = dict[str, npt.NDArray[np.float32]]


class Pace:
    """Seconds per row of one graph: the median of the latest three runs, so that one delayed run does not matter."""

    def __init__(self, usual_s: float = float("inf")) -> None:
        """``usual_s``: seconds per row of earlier, similar texts. The first runs count as at most SLOW_MAX times that."""
        self.rows = 0
        self.row_s = 0.0
        self._usual_s = usual_s
        self._latest: deque[float] = deque(maxlen=3)

    def record(self, rows: int, seconds: float) -> None:
        """Add the time of a run."""
        self._latest.append(seconds / rows)
        found_s = median(self._latest)
        self.row_s = found_s if len(self._latest) == self._latest.maxlen else min(found_s, SLOW_MAX * self._usual_s)
        self.rows += rows

    @property
    def confirmed(self) -> bool:
        """Whether three runs or earlier texts tell the time. One or two runs may have been delayed."""
        return self._usual_s < float("inf") or len(self._latest) == self._latest.maxlen

    def seconds(self, rows: int) -> float:
        """Predicted seconds for ``rows`` rows; 0 before the first run."""
        return rows * self.row_s

    def rows_in(self, seconds: float) -> int:
        """How many rows fit into the time, with MARGIN."""
        if self.row_s == 0 or seconds == float("inf"):
            return _ROWS_ANY
        return max(0, min(_ROWS_ANY, int(seconds / (self.row_s * MARGIN))))


class UsualPaces:
    """Seconds per row of each graph for texts of each length: half of the latest observation and half of those before.

    Texts whose numbers of tokens are the same rounded up to a power of two are of one length. For several threads.
    """

    def __init__(self) -> None:
        # Seconds per token, by graph and length.
        self._token_s: dict[tuple[str, int], float] = {}

    def of(self, graph: str, tokens: int) -> float:
        """Seconds of a row with this many tokens; infinite if no row of this length has run."""
        return tokens * self._token_s.get((graph, tokens.bit_length()), float("inf"))

    def expected_s(self, graph: str, tokens: int) -> float:
        """As ``of``; falls back to the nearest length that has run."""
        known = [length for name, length in list(self._token_s) if name == graph]
        nearest = min(known, key=lambda length: abs(length - tokens.bit_length()), default=None)
        return tokens * (TOKEN_S[graph] if nearest is None else self._token_s[graph, nearest])

    def tell(self, graph: str, tokens: int, row_s: float) -> None:
        """Add what rows of a text take."""
        place = graph, tokens.bit_length()
        self._token_s[place] = (self._token_s.get(place, row_s / tokens) + row_s / tokens) / 2


def differentiated(target: Target, outputs: Sequence[str], run_for: Callable[[int, Sequence[str]], Arrays]) -> Arrays:
    """The explain graph's ``outputs`` for the explained logit. ``run_for`` gives outputs for the logit of one label, whatever it is.

    A gradient is linear: that of a difference is the difference of two.
    """
    found = run_for(target.label, outputs)
    gradients = [name for name in outputs if name.startswith(GRADIENTS)]
    if target.against is not None and gradients:
        other = run_for(target.against, gradients)
        for name in gradients:
            found[name] = found[name] - other.pop(name)
    return found


def at_once() -> None:
    """Nobody else runs."""


class GraphRuns:
    """Runs one text.

    ``left_s`` returns the seconds that are left. ``stop`` ends the current run with an error. ``execute`` runs the graphs, each time after
    ``turn``. ``usual``: the paces of earlier texts, to which those of this one are reported.
    """

    def __init__(
        self,
        classifier: Classifier,
        session: ExplainSession | None,
        encoded: Encoded,
        left_s: SecondsLeft,
        stop: Stop | None = None,
        clock: Clock = time.perf_counter,
        execute: Execute = here,
        turn: Turn = at_once,
        usual: UsualPaces | None = None,
    ) -> None:
        self._classifier, self._session = classifier, session
        # What is explained is a label. The graphs may give one more logit, which is not a label.
        self._labels = len(classifier.manifest.labels)
        self.encoded = encoded
        self.left_s, self._stop, self.clock, self._execute, self._turn = left_s, stop, clock, execute, turn
        self.row = Row(encoded.ids, encoded.type_ids, encoded.truncated)
        self.rows_max = max(1, RUN_TOKENS_MAX // self.row.tokens)
        self._usual = usual or UsualPaces()
        self.served_pace, self.explained_pace = (Pace(self._usual.of(graph, self.row.tokens)) for graph in (SERVED, EXPLAINED))
        self._other_pace = Pace()
        self.answers = Answers(self.rows_max)
        # Rows that the served graph has run.
        self.served_rows = 0
        # Whether the latest ``drive`` ended because there was no time left.
        self.short = False

    @property
    def count(self) -> int:
        """Number of words of the text."""
        return len(self.encoded.words)

    @property
    def layers(self) -> int:
        """Of the explain graph; 0 without one."""
        return 0 if self._session is None else self._session.layers

    def whole(self) -> Floats:
        """The served logits of the whole text: of the labels, and of ``mixed`` if the model has it."""
        mask = np.ones((1, self.count), np.bool_)
        logits = self._paced(mask)
        self.answers.tell(mask, logits[:, : self._labels])
        first: Floats = logits[0]
        return first

    def part(self, row: Row) -> list[float]:
        """All logits of the served graph, of a part of the text."""
        logits, _ = self._run([row])
        found: list[float] = logits[0].tolist()
        return found

    def fits(self, seconds: float) -> bool:
        """Whether work of ``seconds`` fits into the time left."""
        return seconds * MARGIN <= self.left_s()

    def confirm_pace(self, rows: float) -> None:
        """Measure the time of a served row again if ``rows`` rows do not fit into the time left and only one or two runs say so.

        One delayed run would otherwise leave out what there is time for.
        """
        pace = self.served_pace
        while not pace.confirmed and not self.fits(rows * pace.row_s) and self.fits(pace.row_s):
            self.whole()

    def drive(self, steps: Steps[Result]) -> Result | None:
        """Run an explanation's masks as long as there is time. None if it has no result by then; ``short`` is set if time ran out."""

        def value(masks: Masks) -> Floats:
            self._check_time(self.served_pace.seconds(len(masks)), 0.0)
            return self.served(masks)

        return self._driven(steps, value)

    def drive_otherwise(self, steps: Steps[Result]) -> Result | None:
        """As ``drive``, but take the mean of the logits of two other ways to erase words: [MASK] stands for them, or they are deleted."""
        other = self._classifier.tokenizer.mask_id

        def value(masks: Masks) -> Floats:
            self._check_time(2 * self.served_pace.seconds(len(masks)), 0.0)
            kept = self._erased(masks).astype(np.bool_)
            ids = np.where(kept, np.array(self.row.ids), other).tolist()
            replaced, _ = self._run([Row(row, self.row.type_ids, self.row.truncated) for row in ids])
            deleted, _ = self._run([self._shortened(tokens) for tokens in kept])
            return ((replaced + deleted) / 2)[:, : self._labels]

        return self._driven(steps, value)

    def drive_shortened(self, steps: Steps[Result], sentences: Sequence[range], kept_s: float) -> Result | None:
        """As ``drive``, but delete each sentence without a kept word, and leave ``kept_s``. ``sentences``: the words of each."""

        def value(masks: Masks) -> Floats:
            logits = np.empty((len(masks), self._labels))
            left = self._left(masks, sentences)
            for tokens in np.unique(left, axis=0):
                (same,) = np.nonzero((left == tokens).all(axis=1))
                rows_max = max(1, RUN_TOKENS_MAX // int(tokens.sum()))
                for rows in (same[start : start + rows_max] for start in range(0, len(same), rows_max)):
                    self._check_time(self.shortened_seconds(len(rows) * int(tokens.sum())), kept_s)
                    found, _ = self._served(self._erased(masks[rows])[:, tokens], tokens)
                    logits[rows] = found[:, : self._labels]
            return logits

        return self._driven(steps, value)

    def explained_s(self, rows: int) -> float:
        """Predicted seconds for rows of the explain graph: by earlier texts before the first; 0 if none has run."""
        usual_s = self._usual.of(EXPLAINED, self.row.tokens)
        return self.explained_pace.seconds(rows) or (rows * usual_s if usual_s < float("inf") else 0.0)

    def shortened_seconds(self, tokens: float) -> float:
        """Predicted seconds for rows with this many tokens in total. Short rows take less for each token than the whole text."""
        return self.served_pace.seconds(1) * tokens / self.row.tokens

    def _driven(self, steps: Steps[Result], value: Callable[[Masks], Floats]) -> Result | None:
        self.short = False
        try:
            return run(steps, value)
        except Enough:
            return None

    def _check_time(self, seconds: float, kept_s: float) -> None:
        if not self.fits(seconds + kept_s):
            self.short = True
            raise Enough

    def served(self, masks: Masks) -> Floats:
        """The served graph's logits with some words erased, [rows, labels]."""
        return self._paced(masks)[:, : self._labels]

    def _paced(self, masks: Masks) -> Floats:
        logits, seconds = self._served(self._erased(masks), np.ones(self.row.tokens, np.bool_))
        self.served_pace.record(len(masks), seconds)
        self._usual.tell(SERVED, self.row.tokens, self.served_pace.row_s)
        return logits

    def _erased(self, masks: Masks) -> npt.NDArray[np.int64]:
        """The attention mask [rows, tokens] of word masks."""
        erased = np.ones((len(masks), self.row.tokens), np.int64)
        for index, word in enumerate(self.encoded.words):
            erased[:, word.first : word.last] = masks[:, index, None]
        return erased

    def _left(self, masks: Masks, sentences: Sequence[range]) -> Masks:
        """The tokens of sentences with a kept word, and special tokens, [rows, tokens]."""
        left = np.ones((len(masks), self.row.tokens), np.bool_)
        for sentence in sentences:
            some = masks[:, sentence.start : sentence.stop].any(axis=1, keepdims=True)
            for word in self.encoded.words[sentence.start : sentence.stop]:
                left[:, word.first : word.last] = some
        return left

    def _served(self, attention: npt.NDArray[np.int64], tokens: npt.NDArray[np.bool_]) -> tuple[Floats, float]:
        """All logits of the served graph, of rows of some ``tokens`` [all tokens] of the text, and the seconds of their run."""
        return self._run([self._shortened(tokens)] * len(attention), attention)

    def _shortened(self, tokens: npt.NDArray[np.bool_]) -> Row:
        """The row of some ``tokens`` [all tokens] of the text."""
        ids, types = self.row.ids, self.row.type_ids
        return Row(list(compress(ids, tokens)), None if types is None else list(compress(types, tokens)), self.row.truncated)

    def _run(self, rows: Sequence[Row], attention: npt.NDArray[np.int64] | None = None) -> tuple[Floats, float]:
        """All logits of rows, and the seconds of their run. ``attention``: their mask; None: all of their tokens."""
        feeds = self._feeds(rows, self._classifier.session.inputs)
        if attention is not None:
            feeds["attention_mask"] = attention
        self._turn()
        begun = self.clock()
        logits = result_of(self._execute, lambda: self._classifier.session.run(feeds, self._stop))
        self.served_rows += len(rows)
        return logits.astype(np.float64), self.clock() - begun

    def explained(
        self,
        outputs: Sequence[str],
        target: Target,
        alpha: npt.NDArray[np.float32],
        baseline: npt.NDArray[np.int64] | None = None,
        gate: npt.NDArray[np.float32] | None = None,
        uniform: npt.NDArray[np.float32] | None = None,
    ) -> Arrays:
        """The explain graph's ``outputs``, one row per ``alpha``; gradients are those of the explained logit, in ``target.gradients`` runs.

        Other arguments as in ``ExplainSession.run``; ``baseline`` is [tokens].
        """
        assert self._session is not None
        session, rows = self._session, len(alpha)
        ids = None if baseline is None else np.repeat(baseline[None], rows, axis=0)
        feeds = self._feeds([self.row] * rows, session.inputs)

        # Once, so that no maps of the first run wait for a turn.
        self._turn()

        def run_for(label: int, names: Sequence[str]) -> Arrays:
            begun = self.clock()
            found = session.run(feeds, names, np.full(rows, label), alpha, ids, gate, uniform, self._stop, self._execute)
            self.explained_pace.record(rows, self.clock() - begun)
            self._usual.tell(EXPLAINED, self.row.tokens, self.explained_pace.row_s)
            if "logits" in found:
                found["logits"] = found["logits"][:, : self._labels]
            return found

        return differentiated(target, outputs, run_for)

    def hidden(self, other: Encoded) -> Sequence[npt.NDArray[np.float32]] | None:
        """The hidden states [tokens, width] of another text, of the embeddings and each layer; None if there is no time left."""
        assert self._session is not None
        if not self.fits(self._other_pace.seconds(1)):
            return None
        names = hidden_states(self._session.layers)
        feeds = self._feeds([Row(other.ids, other.type_ids, other.truncated)], self._session.inputs)
        self._turn()
        begun = self.clock()
        found = self._session.run(feeds, names, np.zeros(1, np.int64), stop=self._stop, execute=self._execute)
        self._other_pace.record(1, self.clock() - begun)
        return [found[name][0] for name in names]

    @property
    def explained_rows(self) -> int:
        """Rows that the explain graph has run, those of other texts included."""
        return self.explained_pace.rows + self._other_pace.rows

    def _feeds(self, rows: Sequence[Row], inputs: Sequence[str]) -> Feeds:
        left = self._classifier.manifest.padding_side == "left"
        return pad(rows, inputs, self._classifier.tokenizer.pad_id, left)
