"""Explains answers of one classifier, in the calling thread: runs the explain graph for gradients and the served graph for everything else.

What is said of an answer rests on the graph that gave it: words are erased by the attention mask of the served graph, int8 as it may be.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sentiment.errors import InvalidInput, Unsupported
from sentiment.explain.counterfactuals import Counterfactual, flip, keep
from sentiment.explain.erasure import Answers, Enough, Floats, Masks, Result, Steps, occlusion, run, shapley
from sentiment.explain.evidence import Evidence, evidence
from sentiment.explain.gradients import Path, gradient_times_input, integrated_gradients, special_total, unknown_total, word_values
from sentiment.model.classifier import Classifier
from sentiment.model.scores import Scored
from sentiment.model.session import ExplainSession, Stop
from sentiment.model.tensors import Feeds, pad
from sentiment.model.tokenizer import Row
from sentiment.model.words import Encoded

GRADIENT_METHODS = ("integrated_gradients", "gradient_x_input")
ERASURE_METHODS = ("occlusion", "shapley")
STEPS_DEFAULT = {"integrated_gradients": 16, "shapley": 20}
STEPS_MAX = 256
# A row's attention, its gradient and what lies between of 512 tokens are some 300 MB in MiniLM: one row of them at a time.
EXPLAIN_TOKENS_MAX = 512
SERVED_TOKENS_MAX = 2048

TimeLeft = Callable[[], bool]
"""Whether there is time for another batch; asked between batches."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What shall be explained, and how.

    ``label``: None for the answer; ``methods``: none for the default one; ``steps``: 0 for the method's own; ``seed``: of what is drawn.
    """

    text: str
    text_pair: str | None = None
    label: str | None = None
    methods: tuple[str, ...] = ()
    evidence: bool = True
    counterfactuals: bool = False
    steps: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """The answer that is explained. ``agrees``: the explain graph gives it too; without one, true."""

    encoded: Encoded
    scored: Scored
    label: int
    agrees: bool


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """How much each word moved the explained label's logit, signed; nothing is normalised.

    ``words`` [n]; ``tokens`` [tokens] and ``by_embedding`` [tokens, 3] where the method tells, else None; ``standard_errors`` [n], 0 where
    exact; ``residual``: their sum less what it should be, nan where nothing says; ``steps``: of the path, or orders that were drawn.
    """

    method: str
    words: Floats
    tokens: Floats | None
    by_embedding: Floats | None
    standard_errors: Floats
    residual: float
    special_total: float
    unknown_total: float
    steps: int


@dataclass(frozen=True, slots=True)
class Counterfactuals:
    """The fewest words whose removal changes the answer, and the fewest that alone keep it."""

    flip: Counterfactual
    keep: Counterfactual


Part = Header | Attribution | Evidence | Counterfactuals


class Explainer:
    """Explains one classifier's answers. One explanation at a time and thread; threads do not disturb each other."""

    def __init__(self, classifier: Classifier, session: ExplainSession | None) -> None:
        """``session``: of the bundle's explain graph; without one there is erasure alone."""
        self.classifier = classifier
        self.session = session

    @property
    def methods(self) -> tuple[str, ...]:
        """What can be asked for, the default first."""
        return ERASURE_METHODS if self.session is None else GRADIENT_METHODS + ERASURE_METHODS

    def explain(self, asked: Asked, time_left: TimeLeft = lambda: True, stop: Stop | None = None) -> Iterator[Part]:
        """Explain one text: the header first, then of each method its attribution and its evidence.

        Ends early, with what there is, when ``time_left`` says so. ``stop`` ends the run that is under way.

        Raises:
            InvalidInput: a method, label or number of steps that there is not.
            Unsupported: the bundle cannot do it.
        """
        work = _Work(self, asked, time_left, stop)
        yield work.header()
        yield from work.parts()


class _Work:
    """One explanation under way."""

    def __init__(self, explainer: Explainer, asked: Asked, time_left: TimeLeft, stop: Stop | None) -> None:
        self.classifier, self.session = explainer.classifier, explainer.session
        self.methods = asked.methods or explainer.methods[:1]
        self._check(asked, explainer)
        self.asked, self.time_left, self.stop = asked, time_left, stop
        self.encoded = self.classifier.tokenizer.encode_explained(asked.text, asked.text_pair)
        self.row = Row(self.encoded.ids, self.encoded.type_ids, self.encoded.truncated)
        self.answers = Answers(max(1, SERVED_TOKENS_MAX // self.row.tokens))
        self.count = len(self.encoded.words)
        self.temperature = self.classifier.manifest.calibration.temperature
        whole = np.ones((1, self.count), np.bool_)
        logits = self._served(whole)
        self.answers.tell(whole, logits)
        self.scored = self.classifier.score(logits[0].tolist())
        labels = self.classifier.manifest.labels
        self.label = labels.index(asked.label if asked.label is not None else self.scored.label)

    def _check(self, asked: Asked, explainer: Explainer) -> None:
        labels = self.classifier.manifest.labels
        if asked.label is not None and asked.label not in labels:
            raise InvalidInput("label", f"is {asked.label[:64]!r}; the model's labels are {', '.join(labels)}")
        for number, method in enumerate(self.methods):
            if method not in GRADIENT_METHODS + ERASURE_METHODS:
                raise InvalidInput(f"options.methods[{number}]", f"is {method[:64]!r}; known are {', '.join(explainer.methods)}")
            if method not in explainer.methods:
                raise Unsupported(f"{method} needs an explain graph, which bundle {self.classifier.bundle.id} has not")
        if not 0 <= asked.steps <= STEPS_MAX:
            raise InvalidInput("options.attribution.steps", f"is {asked.steps}; the limits are 0, for the default, and {STEPS_MAX}")
        if asked.text_pair is not None and not self.classifier.manifest.pairs:
            raise Unsupported(f"model {self.classifier.bundle.id} reads one text; a pair was given")

    def header(self) -> Header:
        """What is explained."""
        agrees = True
        if self.session is not None:
            logits = self.session.run(self._feeds([self.row]), ["logits"], np.array([self.label]), stop=self.stop)["logits"]
            agrees = self.classifier.manifest.labels[int(logits[0].argmax())] == self.scored.label
        return Header(self.encoded, self.scored, self.label, agrees)

    def parts(self) -> Iterator[Part]:
        """Everything after the header."""
        first: Attribution | None = None
        for method in self.methods:
            found = self._attribution(method)
            if found is None:
                return
            yield found
            first = first or found
            if self.asked.evidence and (told := self._evidence(found)) is not None:
                yield told
        if self.asked.counterfactuals and first is not None:
            searches = [self._drive(search(self.count, first.words, self.label, self.temperature, self.answers)) for search in (flip, keep)]
            if searches[0] is not None and searches[1] is not None:
                yield Counterfactuals(searches[0], searches[1])

    def _attribution(self, method: str) -> Attribution | None:
        """None when time was up before there was one."""
        steps = self.asked.steps or STEPS_DEFAULT.get(method, 1)
        if method in GRADIENT_METHODS:
            return self._by_gradient(method, steps if method == "integrated_gradients" else 1)
        if method == "occlusion":
            values = self._drive(occlusion(self.count, self.label, self.answers))
            return None if values is None else self._by_erasure(method, values, np.zeros(self.count), float("nan"), self.count)
        found = self._drive(shapley(self.count, self.label, steps, np.random.default_rng(self.asked.seed), self.answers))
        if found is None:
            return None
        ends = self._served_known()
        return self._by_erasure(method, found.values, found.standard_errors, float(found.values.sum() - ends), found.permutations)

    def _by_erasure(self, method: str, values: Floats, errors: Floats, residual: float, steps: int) -> Attribution:
        # Special tokens are never erased.
        unknown = sum(values[word] for word in {token.word for token in self.encoded.tokens if token.unknown})
        return Attribution(method, values, None, None, errors, residual, 0.0, float(unknown), steps)

    def _served_known(self) -> float:
        """The explained logit of the text less that of no word, which Shapley values have asked for."""
        ends = np.stack([np.ones(self.count, np.bool_), np.zeros(self.count, np.bool_)])
        logits = self.answers.known(ends)
        return float(logits[0, self.label] - logits[1, self.label])

    def _by_gradient(self, method: str, steps: int) -> Attribution | None:
        assert self.session is not None
        tokens, pad_id = self.encoded.tokens, self.classifier.tokenizer.pad_id
        if method == "gradient_x_input":
            found = gradient_times_input(self._explained(np.ones(1, np.float32), None, ["embedding_dots"])["embedding_dots"][0])
        else:
            path = Path.of(steps)
            baseline = np.array([pad_id if not token.special else id_ for token, id_ in zip(tokens, self.encoded.ids, strict=True)])
            dots = self._dots(path.alpha, baseline)
            if dots is None:
                return None
            ends = self._explained(np.array([0, 1], np.float32), baseline, ["logits"])["logits"][:, self.label]
            found = integrated_gradients(dots, path, float(ends[1] - ends[0]))
        values = found.values
        return Attribution(
            method,
            word_values(values, tokens, self.count),
            values,
            found.by_embedding,
            np.zeros(self.count),
            found.residual,
            special_total(values, tokens),
            unknown_total(values, tokens),
            steps,
        )

    def _dots(self, alpha: np.ndarray, baseline: np.ndarray) -> np.ndarray | None:
        """embedding_dots at each place of a path, a few at a time; None when time was up."""
        found: list[np.ndarray] = []
        size = max(1, EXPLAIN_TOKENS_MAX // self.row.tokens)
        for start in range(0, len(alpha), size):
            if found and not self.time_left():
                return None
            found.append(self._explained(alpha[start : start + size], baseline, ["embedding_dots"])["embedding_dots"])
        return np.concatenate(found)

    def _explained(self, alpha: np.ndarray, baseline: np.ndarray | None, outputs: Sequence[str]) -> dict[str, np.ndarray]:
        assert self.session is not None
        rows = len(alpha)
        feeds = self._feeds([self.row] * rows)
        ids = None if baseline is None else np.repeat(baseline[None], rows, axis=0)
        return self.session.run(feeds, outputs, np.full(rows, self.label), alpha, ids, stop=self.stop)

    def _evidence(self, found: Attribution) -> Evidence | None:
        """With the agreement of an unrelated method: of erasure for gradients, and of gradients for erasure where there are any."""
        other = self._unrelated(found.method)
        return self._drive(
            evidence(
                self.count,
                found.words,
                self.label,
                self.temperature,
                self.answers,
                method=found.method,
                seed=self.asked.seed,
                other=other,
            )
        )

    def _unrelated(self, method: str) -> Floats | None:
        if method in GRADIENT_METHODS:
            return self._drive(occlusion(self.count, self.label, self.answers))
        found = self._by_gradient("gradient_x_input", 1) if self.session is not None else None
        return None if found is None else found.words

    def _drive(self, steps: Steps[Result]) -> Result | None:
        """Run an explanation's masks; None when time was up before it had anything to say."""

        def value(masks: Masks) -> Floats:
            if not self.time_left():
                raise Enough
            return self._served(masks)

        try:
            return run(steps, value)
        except Enough:
            return None

    def _served(self, masks: Masks) -> Floats:
        """The served graph's logits with some words erased."""
        feeds = self._feeds([self.row] * len(masks))
        erased = np.ones((len(masks), self.row.tokens), np.int64)
        for index, word in enumerate(self.encoded.words):
            erased[:, word.first : word.last] = masks[:, index, None]
        logits = self.classifier.session.run({**feeds, "attention_mask": erased}, self.stop)
        return logits.astype(np.float64)

    def _feeds(self, rows: Sequence[Row]) -> Feeds:
        inputs = self.classifier.session.inputs
        return pad(rows, inputs, self.classifier.tokenizer.pad_id, self.classifier.manifest.padding_side == "left")
