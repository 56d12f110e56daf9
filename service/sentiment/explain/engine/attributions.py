"""Attributions of one text and the evidence for each, cut down to the time there is; what is cut is noted."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from sentiment.explain.engine.request_check import GRADIENT_METHODS
from sentiment.explain.engine.runs import Runs
from sentiment.explain.methods.erasure import EXACT_WORDS_MAX, Floats, ShapleyValues, occlusion, shapley, without
from sentiment.explain.methods.evidence import RANDOM_SETS_MAX, Evidence, evidence
from sentiment.explain.methods.gradients import (
    Path,
    TokenValues,
    gradient_times_input,
    integrated_gradients,
    special_total,
    unknown_total,
    word_values,
)
from sentiment.explain.parts import Asked, Attribution

STEPS_DEFAULT = {"integrated_gradients": 16, "shapley": 20}
# Fewer steps of integrated gradients leave a residual that says nothing.
STEPS_MIN = 4
# Of what the values should sum to; where more is missing the steps are doubled, unless their number was asked for.
RESIDUAL_MAX = 0.05
STEPS_REFINED_MAX = 64
# As many as rank words nearly as 16 do: Kendall's tau with occlusion is 0.38 with either on 40 sentences of SST-2, 0.31 with 4.
AGREEMENT_STEPS = 8
# The ranking's own masks, and the random sets.
EVIDENCE_ROWS = 4 + RANDOM_SETS_MAX


class Attributions:
    """Attributes one text's explained logit, by one method after the other."""

    def __init__(
        self,
        asked: Asked,
        runs: Runs,
        label: int,
        temperature: float,
        pad_id: int,
        at_text: tuple[Floats, float] | None,
        notes: list[str],
        remarks: list[str],
    ) -> None:
        """Prepare.

        Args:
            asked: what shall be explained.
            runs: of the text; the whole text has its served answer.
            label: the explained one.
            temperature: of the calibration.
            pad_id: of the baseline.
            at_text: embedding_dots [tokens, 4] and the explained logit by the explain graph, None without one.
            notes: gets a sentence for each thing that is left out or shortened.
            remarks: gets one for each thing that is doubtful.
        """
        self._asked, self._runs, self._label, self._temperature = asked, runs, label, temperature
        self._at_text, self._notes, self._remarks = at_text, notes, remarks
        tokens = runs.encoded.tokens
        ids = [token_id if token.special else pad_id for token, token_id in zip(tokens, runs.encoded.ids, strict=True)]
        self._baseline = np.array(ids, np.int64)
        self._integrated_words: Floats | None = None
        self.first: Attribution | None = None

    def parts(self, methods: Sequence[str], most: int) -> Iterator[Attribution | Evidence]:
        """Of each method its attribution and then its evidence, until ``most`` were given. ``first`` is the first that there is."""
        for method in methods:
            found = self._attribution(method)
            if found is None:
                continue
            self.first = self.first or found
            most -= 1
            yield found
            if self._asked.evidence:
                told = self._evidence(found)
                if told is not None:
                    yield told
            if not most:
                return

    def _attribution(self, method: str) -> Attribution | None:
        steps = self._asked.steps or STEPS_DEFAULT.get(method, 1)
        if method == "gradient_x_input":
            return self._by_gradient(method, self._gradient_times_input(), 1, 1)
        if method == "integrated_gradients":
            return self._integrated(steps)
        return self._occlusion() if method == "occlusion" else self._shapley(steps)

    def _gradient_times_input(self) -> TokenValues:
        assert self._at_text is not None
        return gradient_times_input(self._at_text[0])

    def _integrated(self, asked: int) -> Attribution | None:
        method, pace, left_s = "integrated_gradients", self._runs.explained_pace, self._runs.left_s()
        least = min(STEPS_MIN, asked)
        # Beside the steps one row for the baseline's logit. Without time for its evidence, too, it is given alone.
        fit = [min(asked, pace.rows_in(left_s - kept_s) - 1) for kept_s in (self._evidence_s(), 0.0)]
        steps = next((count for count in fit if count >= least), 0)
        wanted = self._wanted(f"{asked + 1} rows", pace.seconds(asked + 1), left_s)
        values = self._along_path(Path.of(steps)) if steps else None
        if values is None and steps > least:
            # The runs took longer than foretold.
            steps = least
            values = self._along_path(Path.of(steps))
        if values is None:
            self._notes.append(f"{method} was left out: {wanted}")
            return None
        if not self._asked.steps and steps == asked:
            steps, asked, values = self._refined(steps, values)
        if values.relative_residual > RESIDUAL_MAX:
            share = f"{values.residual:+.3f}, {values.relative_residual:.0%} of what its values should sum to"
            self._remarks.append(f"the residual of {method} is {share}, with {steps} steps: more may tell otherwise")
        self._integrated_words = word_values(values.values, self._runs.encoded.tokens, self._runs.count)
        if steps < asked:
            self._notes.append(f"{method} took {steps} of {asked} steps: {wanted}")
        return self._by_gradient(method, values, steps, asked)

    def _refined(self, steps: int, values: TokenValues) -> tuple[int, int, TokenValues]:
        """Twice the steps while the residual is too large and there is time beside the evidence; steps, steps wanted, values."""
        while values.relative_residual > RESIDUAL_MAX and steps < STEPS_REFINED_MAX:
            if self._runs.explained_pace.rows_in(self._runs.left_s() - self._evidence_s()) <= 2 * steps:
                break
            better = self._along_path(Path.of(2 * steps))
            if better is None:
                break
            steps, values = 2 * steps, better
        return steps, steps, values

    def _along_path(self, path: Path) -> TokenValues | None:
        """None when time was up on the way."""
        assert self._at_text is not None
        alpha = np.append(path.alpha, np.float32(0))
        dots: list[Floats] = []
        baseline = 0.0
        for start in range(0, len(alpha), self._runs.rows_max):
            part = alpha[start : start + self._runs.rows_max]
            if self._runs.explained_pace.seconds(len(part)) > self._runs.left_s():
                return None
            found = self._runs.explained(["embedding_dots", "logits"], self._label, part, self._baseline)
            dots.append(found["embedding_dots"].astype(np.float64))
            baseline = float(found["logits"][-1, self._label])
        return integrated_gradients(np.concatenate(dots)[:-1], path, self._at_text[1] - baseline)

    def _by_gradient(self, method: str, found: TokenValues, steps: int, asked: int) -> Attribution:
        tokens, values = self._runs.encoded.tokens, found.values
        return Attribution(
            method,
            word_values(values, tokens, self._runs.count),
            values,
            found.by_embedding if self._asked.by_embedding else None,
            np.zeros(self._runs.count),
            found.residual,
            special_total(values, tokens),
            unknown_total(values, tokens),
            steps,
            asked,
        )

    def _occlusion(self) -> Attribution | None:
        values = self._occluded("occlusion was left out", 0.0)
        if values is None:
            return None
        return self._by_erasure("occlusion", values, np.zeros(len(values)), math.nan, len(values), len(values))

    def _occluded(self, left_out: str, kept_s: float) -> Floats | None:
        """Each word's occlusion; None, with a note, if there is no time for it beside ``kept_s``."""
        runs, n = self._runs, self._runs.count
        left_s = runs.left_s()
        masks = without(n, [(word,) for word in range(n)])
        # Rows that another method has asked for are free.
        fits = runs.answers.affordable(masks, runs.served_pace.rows_in(left_s - kept_s)) == n
        values = runs.drive(occlusion(n, self._label, runs.answers)) if fits else None
        if values is None:
            self._notes.append(f"{left_out}: {self._wanted(f'{n} rows', runs.served_pace.seconds(n), left_s)}")
        return values

    def _wanted(self, rows: str, seconds: float, left_s: float) -> str:
        """Why there was no time, for a note."""
        kept_s = self._evidence_s()
        beside = f", the evidence about {kept_s:.2f} s" if kept_s else ""
        return f"{rows} take about {seconds:.2f} s{beside}, and {max(0.0, left_s):.2f} s were left"

    def _shapley(self, asked: int) -> Attribution | None:
        runs, n = self._runs, self._runs.count
        exact = n <= EXACT_WORDS_MAX
        rows = 2**n if exact else 2 * (n - 1)
        left_s, pace = runs.left_s(), runs.served_pace
        pairs_asked = (asked + 1) // 2
        pairs = max(pace.rows_in(left_s - self._evidence_s()) // rows, min(1, pace.rows_in(left_s) // rows))
        found: ShapleyValues | None = None
        if pairs > 0:
            rng = np.random.default_rng(self._asked.seed)
            found = runs.drive(shapley(n, self._label, 2 * min(pairs, pairs_asked), rng, runs.answers))
        wanted = self._wanted(f"{rows} rows{'' if exact else ' for a pair of orders'}", pace.seconds(rows), left_s)
        if found is None:
            self._notes.append(f"shapley was left out: {wanted}")
            return None
        if exact:
            # Of all orders, so that none was drawn.
            asked = 0
        if found.permutations < asked:
            self._notes.append(f"shapley drew {found.permutations} of {asked} orders: {wanted}")
        residual = self._shapley_residual(found)
        return self._by_erasure("shapley", found.values, found.standard_errors, residual, found.permutations, asked)

    def _shapley_residual(self, found: ShapleyValues) -> float:
        """The values' sum less the explained logit of the text and of no word, which Shapley values have asked for."""
        ends = np.stack([np.ones(self._runs.count, np.bool_), np.zeros(self._runs.count, np.bool_)])
        logits = self._runs.answers.known(ends)[:, self._label]
        return float(found.values.sum() - (logits[0] - logits[1]))

    def _by_erasure(self, method: str, values: Floats, errors: Floats, residual: float, steps: int, asked: int) -> Attribution:
        # Special tokens are never erased.
        unknown = sum(values[word] for word in {token.word for token in self._runs.encoded.tokens if token.unknown and not token.special})
        return Attribution(method, values, None, None, errors, residual, 0.0, float(unknown), steps, asked)

    def _evidence_s(self) -> float:
        """What is kept of the time for an attribution's evidence; its agreement comes after that."""
        return self._runs.served_pace.seconds(EVIDENCE_ROWS) if self._asked.evidence else 0.0

    def _unrelated(self, method: str) -> Floats | None:
        """Word values [n] of erasure for a method of gradients, and the other way round; None without a graph, and, with a note, without
        time.
        """
        if method in GRADIENT_METHODS:
            return self._occluded(f"the agreement of {method} with occlusion was left out", self._evidence_s())
        if self._at_text is None:
            return None
        if self._integrated_words is None:
            runs = self._runs
            left_s, pace = runs.left_s(), runs.explained_pace
            path = Path.of(AGREEMENT_STEPS)
            values = self._along_path(path) if pace.rows_in(left_s - self._evidence_s()) > AGREEMENT_STEPS else None
            if values is None:
                rows = AGREEMENT_STEPS + 1
                wanted = self._wanted(f"{rows} rows", pace.seconds(rows), left_s)
                self._notes.append(f"the agreement of {method} with integrated_gradients was left out: {wanted}")
                return None
            self._integrated_words = word_values(values.values, runs.encoded.tokens, runs.count)
        return self._integrated_words

    def _evidence(self, found: Attribution) -> Evidence | None:
        """With the agreement of an unrelated method: of erasure for gradients, and of gradients for erasure where there are any."""
        runs, method = self._runs, found.method
        other = self._unrelated(method)
        left_s = max(0.0, runs.left_s())
        told = runs.drive(
            evidence(
                runs.count,
                found.words,
                self._label,
                self._temperature,
                runs.answers,
                method=method,
                seed=self._asked.seed,
                other=other,
            )
        )
        seconds = runs.served_pace.seconds(EVIDENCE_ROWS)
        wanted = f"{EVIDENCE_ROWS} rows take about {seconds:.2f} s, and {left_s:.2f} s were left"
        if told is None:
            self._notes.append(f"the evidence of {method} was left out: {wanted}")
        elif runs.short:
            sets = min(RANDOM_SETS_MAX, math.comb(runs.count, told.words) - 1)
            self._notes.append(f"the evidence of {method} compares with {told.random_sets} of {sets} other word sets: {wanted}")
        return told
