"""Attributions of one text, with evidence, reduced to what fits into the time. Each reduction adds a note."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby

import numpy as np

from sentiment.explain.engine.maps import carried, carrying
from sentiment.explain.engine.runs import GraphRuns
from sentiment.explain.methods.deciding import DecidingWords, compare, search
from sentiment.explain.methods.erasure import EXACT_WORDS_MAX, Answers, Floats, first_estimate, occlusion, shapley, without
from sentiment.explain.methods.evidence import RANDOM_SETS_MAX, Evidence, Verdict, evidence
from sentiment.explain.methods.gradients import (
    Path,
    TokenValues,
    gradient_times_input,
    integrated_gradients,
    special_total,
    unknown_total,
    word_values,
)
from sentiment.explain.methods.registry import REGISTRY
from sentiment.explain.methods.sentences import sentence_words
from sentiment.explain.methods.target import Target
from sentiment.explain.methods.two_step import (
    SentenceValues,
    parted,
    rows_run,
    sentence_shapley,
    sentences_alone,
    shared,
    tokens_alone,
    tokens_run,
    words_alone,
)
from sentiment.explain.parts import Attribution, ExplanationRequest, Reason, SentenceValue
from sentiment.explain.wording import EVIDENCE_WORDS_MIN

# With fewer steps the residual of integrated gradients says nothing.
STEPS_MIN = 4
# Relative to the sum that the values should have. Above it the steps are doubled, unless the request sets their number.
RESIDUAL_MAX = 0.05
STEPS_REFINED_MAX = 64
# 8 steps rank words nearly as 16 do: Kendall's tau with occlusion is 0.38 for both on 40 sentences of SST-2, and 0.31 for 4 steps.
AGREEMENT_STEPS = 8
# An estimate of fewer is no better than the first one, which takes as many rows as one pair.
ESTIMATE_PAIRS_MIN = 4
# The ranking's own masks, and the random sets.
EVIDENCE_ROWS = 4 + RANDOM_SETS_MAX
# Words are searched in texts of a few sentences. In longer ones there are more sets, each row takes more, and sentences say it better.
DECIDING_TOKENS_MAX = 64


class Attributions:
    """Attributes the explained logit of one text to its words, one method after the other."""

    def __init__(
        self,
        request: ExplanationRequest,
        runs: GraphRuns,
        target: Target,
        temperature: float,
        pad_id: int,
        at_text: Callable[[], tuple[Floats, float] | None],
        say: Callable[[Attribution, Evidence, DecidingWords | None], Reason],
        notes: list[str],
        remarks: list[str],
    ) -> None:
        """Prepare the attributions.

        Args:
            request: what to explain.
            runs: runs of the text; the whole text has already been run through the served graph.
            target: what is explained.
            temperature: of the calibration.
            pad_id: token id of the baseline.
            at_text: gives embedding_dots [tokens, 4] and the explained logit of the explain graph; None without one.
            say: says the first attribution with its evidence and the deciding words in a sentence.
            notes: receives a sentence for each part that is left out or shortened.
            remarks: receives a sentence for each doubtful result.
        """
        self._request, self._runs, self._target, self._temperature = request, runs, target, temperature
        self._at_text, self._say, self._notes, self._remarks = at_text, say, notes, remarks
        tokens = runs.encoded.tokens
        ids = [token_id if token.special else pad_id for token, token_id in zip(tokens, runs.encoded.ids, strict=True)]
        self._baseline = np.array(ids, np.int64)
        self._integrated_words: Floats | None = None
        self.first: Attribution | None = None

    def parts(self, methods: Sequence[str], most: int) -> Iterator[Attribution | Evidence | DecidingWords | Reason]:
        """The attribution and the evidence of each method, up to ``most`` attributions.

        Before the first attribution come its estimates, and after its evidence the deciding words and the reason. Sets ``first`` to it.
        """
        for method in methods:
            found = None
            for found in self._attribution(method):
                if found.left_s is not None and self.first is None:
                    yield found
            if found is None:
                continue
            self.first = self.first or found
            most -= 1
            yield found
            result = self._evidence(found) if self._request.evidence else None
            if result is not None:
                yield result
                if found is self.first:
                    deciding = self._deciding(found, result)
                    if deciding is not None:
                        yield deciding
                    yield self._say(found, result, deciding)
            if not most:
                return

    def _attribution(self, method: str) -> Iterator[Attribution]:
        """The attribution by a method, after its estimates, which have ``left_s``. Nothing, with a note, without time for it."""
        steps = self._request.steps or REGISTRY[method].steps
        if method == "shapley":
            yield from self._shapley(steps)
        elif method == "two_step_shapley":
            yield from self._two_step_shapley(steps)
        elif method == "gradient_x_input":
            yield self._by_gradient(method, self._gradient_times_input(), 1, 1)
        else:
            assert method in ("integrated_gradients", "occlusion"), f"{method} is in the registry and nothing computes it"
            found = self._occlusion() if method == "occlusion" else self._integrated(steps)
            if found is not None:
                yield found

    def _gradient_times_input(self) -> TokenValues:
        at_text = self._at_text()
        assert at_text is not None
        return gradient_times_input(at_text[0])

    def _integrated(self, steps_wanted: int) -> Attribution | None:
        method, left_s = "integrated_gradients", self._runs.left_s()
        least = min(STEPS_MIN, steps_wanted)
        # One more row gives the baseline's logit. If there is no time for evidence as well, the attribution comes without it.
        fit = [min(steps_wanted, self._gradients_in(left_s - kept_s) - 1) for kept_s in (self._evidence_s(), 0.0)]
        steps = next((count for count in fit if count >= least), 0)
        reason = self._gradients_reason(steps_wanted + 1, left_s)
        values = self._along_path(Path.of(steps)) if steps else None
        if values is None and steps > least:
            # The runs took longer than predicted.
            steps = least
            values = self._along_path(Path.of(steps))
        if values is None:
            self._notes.append(f"{method} was left out: {reason}")
            return None
        if not self._request.steps and steps == steps_wanted:
            steps, steps_wanted, values = self._refined(steps, values)
        if values.relative_residual > RESIDUAL_MAX:
            share = f"{values.residual:+.3f}, {values.relative_residual:.0%} of the sum that the values should have"
            self._remarks.append(f"the residual of {method} is {share}, with {steps} steps: more steps may change the values")
        self._integrated_words = word_values(values.values, self._runs.encoded.tokens, self._runs.count)
        if steps < steps_wanted:
            self._notes.append(f"{method} took {steps} of {steps_wanted} steps: {reason}")
        return self._by_gradient(method, values, steps, steps_wanted)

    def _refined(self, steps: int, values: TokenValues) -> tuple[int, int, TokenValues]:
        """Double the steps until the residual is small enough or the time is needed for evidence. Returns steps, steps wanted, values."""
        while values.relative_residual > RESIDUAL_MAX and steps < STEPS_REFINED_MAX:
            if self._gradients_in(self._runs.left_s() - self._evidence_s()) <= 2 * steps:
                break
            better = self._along_path(Path.of(2 * steps))
            if better is None:
                break
            steps, values = 2 * steps, better
        return steps, steps, values

    def _along_path(self, path: Path) -> TokenValues | None:
        """Integrated gradients along a path; None if time ran out."""
        at_text = self._at_text()
        assert at_text is not None
        alpha = np.append(path.alpha, np.float32(0))
        dots: list[Floats] = []
        baseline = 0.0
        for start in range(0, len(alpha), self._runs.rows_max):
            part = alpha[start : start + self._runs.rows_max]
            if self._gradients_s(len(part)) > self._runs.left_s():
                return None
            found = self._runs.explained(["embedding_dots", "logits"], self._target, part, self._baseline)
            dots.append(found["embedding_dots"].astype(np.float64))
            baseline = float(self._target.logit(found["logits"][-1]))
        return integrated_gradients(np.concatenate(dots)[:-1], path, at_text[1] - baseline)

    def _by_gradient(self, method: str, found: TokenValues, steps: int, steps_wanted: int) -> Attribution:
        tokens, values = self._runs.encoded.tokens, found.values
        return Attribution(
            method,
            word_values(values, tokens, self._runs.count),
            values,
            found.by_embedding if self._request.by_embedding else None,
            np.zeros(self._runs.count),
            found.residual,
            special_total(values, tokens),
            unknown_total(values, tokens),
            steps,
            steps_wanted,
        )

    def _occlusion(self) -> Attribution | None:
        values = self._occluded("occlusion was left out", 0.0)
        if values is None:
            return None
        return self._by_erasure("occlusion", values, np.zeros(len(values)), math.nan, len(values), len(values))

    def _occluded(self, left_out: str, kept_s: float) -> Floats | None:
        """Occlusion values; None, with a note that starts with ``left_out``, if they do not fit into the time less ``kept_s``."""
        runs, n = self._runs, self._runs.count
        runs.confirm_pace(n)
        left_s = runs.left_s()
        masks = without(n, [(word,) for word in range(n)])
        # Rows that another method has already run cost nothing.
        fits = runs.answers.affordable(masks, runs.served_pace.rows_in(left_s - kept_s)) == n
        values = runs.drive(occlusion(n, self._target, runs.answers)) if fits else None
        if values is None:
            self._notes.append(f"{left_out}: {self._time_reason(f'{n} rows', runs.served_pace.seconds(n), left_s)}")
        return values

    def _gradients_in(self, seconds: float) -> int:
        """How many gradients of the explained logit fit into the time."""
        return self._runs.explained_pace.rows_in(seconds) // self._target.gradients

    def _gradients_s(self, count: int) -> float:
        return self._runs.explained_s(count * self._target.gradients)

    def _gradients_reason(self, count: int, left_s: float) -> str:
        return self._time_reason(f"{count * self._target.gradients} rows", self._gradients_s(count), left_s)

    def _time_reason(self, rows: str, seconds: float, left_s: float) -> str:
        """The reason in a note: the time needed and the time left."""
        kept_s = self._evidence_s()
        also = f", the evidence about {kept_s:.2f} s" if kept_s else ""
        return f"{rows} take about {seconds:.2f} s{also}, and {max(0.0, left_s):.2f} s were left"

    def _shapley(self, steps_wanted: int) -> Iterator[Attribution]:
        runs, n = self._runs, self._runs.count
        exact = n <= EXACT_WORDS_MAX
        rows = 2**n if exact else 2 * (n - 1)
        runs.confirm_pace(rows)
        left_s, pace = runs.left_s(), runs.served_pace
        # Exact values cover all orders; none is sampled.
        pairs_wanted = 1 if exact else (steps_wanted + 1) // 2
        fit = pace.rows_in(left_s - self._evidence_s()) // rows
        pairs = min(pairs_wanted, max(fit, min(1, pace.rows_in(left_s) // rows)))
        asked = 0 if exact else steps_wanted
        found: Attribution | None = None

        def of(values: Floats, errors: Floats, orders: int) -> Attribution:
            return self._by_erasure("shapley", values, errors, self._shapley_residual(values, runs.answers), orders, asked)

        def after_s(count: int) -> float:
            return pace.seconds(rows * (pairs - count)) + self._evidence_s()

        # It takes the time of a pair.
        if self._request.estimates and self.first is None and fit > pairs and not exact:
            first = runs.drive(first_estimate(n, self._target, runs.answers))
            if first is not None:
                found = of(first, np.full(n, np.inf), 0)
                yield replace(found, left_s=after_s(0))
        for count in self._better(pairs):
            # Sets of the same orders have run already, and run no more.
            rng = np.random.default_rng(self._request.seed)
            better = runs.drive(shapley(n, self._target, 2 * count, rng, runs.answers.ask))
            if better is None:
                break
            found = of(better.values, better.standard_errors, better.permutations)
            if runs.short:
                break
            if count < pairs:
                yield replace(found, left_s=after_s(count))
        # Runs that take longer than those before them end early with less left than there was.
        left_s = runs.left_s() if runs.short else left_s
        reason = self._time_reason(f"{rows} rows{'' if exact else ' for a pair of orders'}", pace.seconds(rows), left_s)
        if found is None:
            self._notes.append(f"shapley was left out: {reason}")
            return
        if found.steps < found.steps_asked:
            self._notes.append(f"shapley sampled {found.steps} of {steps_wanted} orders: {reason}")
        yield found

    def _better(self, pairs: int) -> list[int]:
        """The numbers of pairs of orders after which there are values: those of estimates, each about half of the next, and the last."""
        counts = [pairs] if pairs else []
        while self._request.estimates and counts and counts[0] >= 2 * ESTIMATE_PAIRS_MIN:
            counts.insert(0, counts[0] // 2)
        return counts

    def _two_step_shapley(self, steps_wanted: int) -> Iterator[Attribution]:
        runs, method, n = self._runs, "two_step_shapley", self._runs.count
        every = sentence_words(runs.encoded, self._request.texts)
        sentences = [*chain(*(parted([*same]) for _, same in groupby(every, lambda words: runs.encoded.words[words[0]].pair)))]
        lengths = self._lengths(sentences)
        runs.confirm_pace(tokens_alone(lengths) / runs.row.tokens)
        # What the words of a sentence do takes a gradient, or as many rows as the sentences alone for each of their words.
        left_s, kept_s = runs.left_s(), self._evidence_s() + self._gradients_s(1)
        answers, whole = Answers(), np.ones((1, n), np.bool_)
        answers.tell(whole, runs.answers.known(whole))
        asked = rows_run(len(sentences), steps_wanted)
        wanted = asked or 2 ** len(sentences)

        def of(values: SentenceValues, weights: Floats) -> Attribution:
            words, own = shared(sentences, values.values, weights)
            errors = np.repeat(values.standard_errors, [*map(len, sentences)])
            sizes = np.repeat(np.abs(values.values), [*map(len, sentences)])
            parts = np.divide(np.abs(words), sizes, out=np.zeros(n), where=sizes > 0)
            each = errors * parts if np.isfinite(errors).all() else np.full(n, np.inf)
            found = self._by_erasure(method, words, each, self._shapley_residual(words, answers), values.rows, asked)
            rows = zip(sentences, values.values.tolist(), values.standard_errors.tolist(), own, strict=True)
            return replace(found, sentences=tuple(SentenceValue(*row) for row in rows))

        alike, found = np.ones(n), runs.drive_shortened(sentences_alone(sentences, self._target, answers), sentences, 0.0)
        if found is None:
            reason = self._time_reason("the sentences alone", runs.shortened_seconds(tokens_alone(lengths)), left_s)
            self._notes.append(f"{method} was left out: {reason}")
            return
        if self._request.estimates:
            yield replace(of(found, alike), left_s=runs.shortened_seconds(tokens_run(lengths, steps_wanted)) + kept_s)
        rng = np.random.default_rng(self._request.seed)
        better = runs.drive_shortened(sentence_shapley(sentences, self._target, steps_wanted, rng, answers), sentences, kept_s)
        found = better or found
        if found.rows < asked or better is None:
            reason = self._time_reason(f"{wanted} rows", runs.shortened_seconds(tokens_run(lengths, asked)), left_s)
            self._notes.append(f"{method} ran {found.rows} of {wanted} rows: {reason}")
        elif self._request.estimates:
            yield replace(of(found, alike), left_s=kept_s)
        weights = self._weights(sentences, rng, answers)
        if weights is None:
            self._notes.append(f"{method} did not value words: they share their sentence's value; no time was left for more")
        yield of(found, alike if weights is None else weights)

    def _weights(self, sentences: Sequence[range], rng: np.random.Generator, answers: Answers) -> Floats | None:
        """In what proportion the words [n] of a sentence share its value; None if there is no time to find out."""
        runs = self._runs
        if runs.layers:
            if self._gradients_s(1) > runs.left_s() - self._evidence_s():
                return None
            arrays = runs.explained(["logits", *carrying(runs.layers)], self._target, np.ones(1, np.float32))
            if int(arrays["logits"][0].argmax()) != int(answers.known(np.ones((1, runs.count), np.bool_))[0].argmax()):
                self._remarks.append("the explanation graph gives another answer to this text; words share their sentences' values by it")
            return word_values(carried(arrays, runs.layers), runs.encoded.tokens, runs.count)
        return runs.drive_shortened(words_alone(sentences, self._target, rng, answers), sentences, self._evidence_s())

    def _lengths(self, sentences: Sequence[range]) -> list[tuple[int, int]]:
        """The words of each sentence, and the tokens of a row that has it alone."""
        encoded = self._runs.encoded
        special = sum(token.special for token in encoded.tokens)
        tokens = [encoded.words[words[-1]].last - encoded.words[words[0]].first for words in sentences]
        return [(len(words), special + count) for words, count in zip(sentences, tokens, strict=True)]

    def _shapley_residual(self, values: Floats, answers: Answers) -> float:
        """Sum of the values minus the difference of the explained logit between the text and the empty text, both already run."""
        ends = np.stack([np.ones(self._runs.count, np.bool_), np.zeros(self._runs.count, np.bool_)])
        logits = self._target.logit(answers.known(ends))
        return float(values.sum() - (logits[0] - logits[1]))

    def _deciding(self, found: Attribution, result: Evidence) -> DecidingWords | None:
        """The words that decide the answer, of a text that is short enough for the search and long enough for the test."""
        runs = self._runs
        if runs.count < EVIDENCE_WORDS_MIN or runs.row.tokens > DECIDING_TOKENS_MAX or result.verdict is Verdict.FLAT:
            return None
        left_s = max(0.0, runs.left_s())
        words = runs.drive(search(runs.count, found.words, self._target, runs.answers))
        deciding = None
        if words is not None:
            test = compare(runs.count, words, self._target, self._temperature, runs.answers, Answers(runs.rows_max), self._request.seed)
            deciding = runs.drive_otherwise(test)
        if runs.short:
            what = "were left out" if deciding is None else f"were compared with {deciding.random_sets} of {RANDOM_SETS_MAX} sets"
            self._notes.append(f"the deciding words {what}: {left_s:.2f} s were left")
        return deciding

    def _by_erasure(self, method: str, values: Floats, errors: Floats, residual: float, steps: int, steps_wanted: int) -> Attribution:
        # Special tokens are never erased.
        unknown = sum(values[word] for word in {token.word for token in self._runs.encoded.tokens if token.unknown and not token.special})
        return Attribution(method, values, None, None, errors, residual, 0.0, float(unknown), steps, steps_wanted)

    def _evidence_s(self) -> float:
        """Time reserved for an attribution's evidence, without its agreement."""
        return self._runs.served_pace.seconds(EVIDENCE_ROWS) if self._request.evidence else 0.0

    def _unrelated(self, method: str) -> Floats | None:
        """Word values [n] of the unrelated method, to compute the agreement.

        None if the method has none, without an explain graph, or, with a note, without time.
        """
        if not REGISTRY[method].unrelated:
            return None
        left_out = f"the agreement of {method} with {REGISTRY[method].unrelated} was left out"
        if REGISTRY[method].unrelated == "occlusion":
            return self._occluded(left_out, self._evidence_s())
        if not self._runs.layers:
            return None
        if self._integrated_words is None:
            runs = self._runs
            left_s, path = runs.left_s(), Path.of(AGREEMENT_STEPS)
            values = self._along_path(path) if self._gradients_in(left_s - self._evidence_s()) > AGREEMENT_STEPS else None
            if values is None:
                reason = self._gradients_reason(AGREEMENT_STEPS + 1, left_s)
                self._notes.append(f"{left_out}: {reason}")
                return None
            self._integrated_words = word_values(values.values, runs.encoded.tokens, runs.count)
        return self._integrated_words

    def _evidence(self, found: Attribution) -> Evidence | None:
        """Evidence, with the agreement of an unrelated method: erasure for gradients, and gradients for erasure if available."""
        runs, method = self._runs, found.method
        other = self._unrelated(method)
        left_s = max(0.0, runs.left_s())
        result = runs.drive(
            evidence(
                runs.count,
                found.words,
                self._target,
                self._temperature,
                runs.answers,
                method=method,
                seed=self._request.seed,
                other=other,
            )
        )
        seconds = runs.served_pace.seconds(EVIDENCE_ROWS)
        reason = f"{EVIDENCE_ROWS} rows take about {seconds:.2f} s, and {left_s:.2f} s were left"
        if result is None:
            self._notes.append(f"the evidence of {method} was left out: {reason}")
        elif runs.short:
            sets = min(RANDOM_SETS_MAX, math.comb(runs.count, result.words) - 1)
            self._notes.append(f"the evidence of {method} compares with {result.random_sets} of {sets} other word sets: {reason}")
        return result
