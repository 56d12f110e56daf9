"""One text's runs through the served graph and the explain graph: counted, and timed, so that the next ones can be foretold."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np
import numpy.typing as npt

from sentiment.explain.methods.erasure import Answers, Enough, Floats, Masks, Result, Steps, run
from sentiment.model.classifier import Classifier
from sentiment.model.execute import Execute, here
from sentiment.model.session import ExplainSession, Stop
from sentiment.model.tensors import Feeds, pad
from sentiment.model.tokenizer import Row
from sentiment.model.words import Encoded

# Tokens of a run that has several rows: a stop is heard, the time looked at and the core left to others after so many at the latest,
# or after one row.
RUN_TOKENS_MAX = 128
# Of the time left: runs take uneven time beside others, and something must be left for the way back.
MARGIN = 1.2
# A first run may take so much longer than usual.
SLOW_MAX = 2.0
# More than can be asked for.
_ROWS_ANY = 2**31

SERVED, EXPLAINED = "served", "explained"

Clock = Callable[[], float]
Left = Callable[[], float]
Arrays = dict[str, npt.NDArray[np.float32]]


class Pace:
    """Seconds that a row takes through one graph: the median of the latest three runs, so that one that had to wait decides nothing."""

    def __init__(self, usual_s: float = float("inf")) -> None:
        """``usual_s``: what a row like these took before; a first run that takes more than twice as long is taken for one that waited."""
        self.rows = 0
        self.row_s = 0.0
        self._usual_s = usual_s
        self._latest: deque[float] = deque(maxlen=3)

    def tell(self, rows: int, seconds: float) -> None:
        """Take the time of a run."""
        self._latest.append(seconds / rows)
        found_s = median(self._latest)
        self.row_s = found_s if len(self._latest) == self._latest.maxlen else min(found_s, SLOW_MAX * self._usual_s)
        self.rows += rows

    def seconds(self, rows: int) -> float:
        """What so many rows will take; 0 before the first run."""
        return rows * self.row_s

    def rows_in(self, seconds: float) -> int:
        """How many rows have time, with a margin."""
        if self.row_s == 0 or seconds == float("inf"):
            return _ROWS_ANY
        return max(0, min(_ROWS_ANY, int(seconds / (self.row_s * MARGIN))))


class Runs:
    """Runs one text.

    ``left_s`` gives the seconds that are left; ``stop`` ends a run that is under way, with an error; ``execute`` does the runs;
    ``usual`` is what a row of a text so long took before, in seconds, by SERVED and EXPLAINED.
    """

    def __init__(
        self,
        classifier: Classifier,
        session: ExplainSession | None,
        encoded: Encoded,
        left_s: Left,
        stop: Stop | None = None,
        clock: Clock = time.perf_counter,
        execute: Execute = here,
        usual: Mapping[str, float] | None = None,
    ) -> None:
        self._classifier, self._session = classifier, session
        self.encoded = encoded
        self.left_s, self._stop, self.clock, self._execute = left_s, stop, clock, execute
        self._row = Row(encoded.ids, encoded.type_ids, encoded.truncated)
        self.rows_max = max(1, RUN_TOKENS_MAX // self._row.tokens)
        known = usual or {}
        self.served_pace, self.explained_pace = (Pace(known.get(name, float("inf"))) for name in (SERVED, EXPLAINED))
        self.answers = Answers(self.rows_max)
        # True once a search was ended because time was up.
        self.short = False

    @property
    def count(self) -> int:
        """Words of the text."""
        return len(self.encoded.words)

    def whole(self) -> Floats:
        """The served logits of the whole text, [labels]."""
        mask = np.ones((1, self.count), np.bool_)
        logits = self.served(mask)
        self.answers.tell(mask, logits)
        first: Floats = logits[0]
        return first

    def fits(self, seconds: float) -> bool:
        """Whether there is time for work of so many seconds."""
        return seconds * MARGIN <= self.left_s()

    def drive(self, steps: Steps[Result]) -> Result | None:
        """Run an explanation's masks while there is time; None when it had nothing to say by then, and ``short`` if time was up."""

        def value(masks: Masks) -> Floats:
            if not self.fits(self.served_pace.seconds(len(masks))):
                self.short = True
                raise Enough
            return self.served(masks)

        self.short = False
        try:
            return run(steps, value)
        except Enough:
            return None

    def served(self, masks: Masks) -> Floats:
        """The served graph's logits with some words erased, [rows, labels]."""
        feeds = self._feeds(len(masks), self._classifier.session.inputs)
        erased = np.ones((len(masks), self._row.tokens), np.int64)
        for index, word in enumerate(self.encoded.words):
            erased[:, word.first : word.last] = masks[:, index, None]
        feeds["attention_mask"] = erased
        logits: list[npt.NDArray[np.float32]] = []
        begun = self.clock()
        self._execute(lambda: logits.append(self._classifier.session.run(feeds, self._stop)))
        self.served_pace.tell(len(masks), self.clock() - begun)
        return logits[0].astype(np.float64)

    def explained(
        self,
        outputs: Sequence[str],
        label: int,
        alpha: npt.NDArray[np.float32],
        baseline: npt.NDArray[np.int64] | None = None,
        gate: npt.NDArray[np.float32] | None = None,
        uniform: npt.NDArray[np.float32] | None = None,
    ) -> Arrays:
        """The explain graph's ``outputs`` for one row for each ``alpha``; arguments as of ``ExplainSession.run``, ``baseline`` [tokens]."""
        assert self._session is not None
        rows = len(alpha)
        ids = None if baseline is None else np.repeat(baseline[None], rows, axis=0)
        feeds = self._feeds(rows, self._session.inputs)
        begun = self.clock()
        found = self._session.run(feeds, outputs, np.full(rows, label), alpha, ids, gate, uniform, self._stop, self._execute)
        self.explained_pace.tell(rows, self.clock() - begun)
        return found

    def _feeds(self, rows: int, inputs: Sequence[str]) -> Feeds:
        left = self._classifier.manifest.padding_side == "left"
        return pad([self._row] * rows, inputs, self._classifier.tokenizer.pad_id, left)
