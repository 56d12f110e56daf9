"""A bundle under study: its served graph with words erased by an operator, and its explain graph.

A batch has rows of one text with different words erased.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers

from sentiment.errors import InvalidInput
from sentiment.explain.engine import Explainer
from sentiment.explain.engine.reading import read
from sentiment.explain.engine.runs import differentiated
from sentiment.explain.methods.erasure import Answers, Floats, Masks, Result, Steps, run
from sentiment.explain.methods.target import Target, target_of
from sentiment.explain.parts import Attribution, ExplanationRequest, Summary
from sentiment.model.session import ExplainSession
from sentiment.model.tensors import Feeds, pad
from sentiment.model.tokenizer import Row
from sentiment.model.words import Encoded
from sentiment_models.data.labelled import TextOrPair
from sentiment_models.errors import ModelsError
from sentiment_models.explanations.findings import OPERATORS
from sentiment_models.export.inference import load_served
from sentiment_models.export.manifest import TOKENIZER_FILE
from sentiment_models.export.provenance import Json

# Larger batches are no faster on a CPU; 4 rows of 512 tokens already take 200 MB of attention scores.
ROWS_MAX = 32
TOKENS_MAX = 2048
# The explain graph runs forward and backward; the backward part costs about two forward ones.
EXPLAIN_ROWS = 3

Arrays = dict[str, npt.NDArray[np.float32]]


class Erased:
    """One text's answers with one operator. For one thread.

    ``answers``: the cached answers, for generators of ``sentiment.explain``.
    """

    def __init__(self, subject: "Subject", encoded: Encoded, operator: str) -> None:
        """``operator``: one of OPERATORS that the tokenizer supports, or several joined by +, whose logits are averaged."""
        self._subject, self._encoded, self.operator = subject, encoded, operator
        self.answers = Answers(rows_of(len(encoded.ids)))

    def drive(self, steps: Steps[Result]) -> Result:
        """Run the masks that a generator over ``answers`` requests, and return its result."""
        return run(steps, self._run)

    def logits(self, masks: Masks) -> Floats:
        """Return the served logits [rows, labels] of masks [rows, n], True: the word is kept. Results are cached."""
        return self.drive(self.answers.ask(masks))

    def _run(self, masks: Masks) -> Floats:
        session, ways = self._subject.classifier.session, self.operator.split("+")
        logits: Floats = np.mean([session.run(self._subject.erase(self._encoded, masks, way)) for way in ways], axis=0, dtype=np.float64)
        return logits[:, : len(self._subject.labels)]


class Reading:
    """A text as the subject reads it, with its served answer. For one thread at a time.

    ``texts``: the text, or both of a pair. ``words``: the words as written. ``logits``: [labels]. ``label``: index of the answer.
    """

    def __init__(self, subject: "Subject", texts: tuple[str, ...], encoded: Encoded) -> None:
        """Classify the text, which runs one row."""
        self.subject, self.texts, self.encoded = subject, texts, encoded
        self.words = tuple(texts[word.pair][word.start : word.end] for word in encoded.words)
        self._erased: dict[str, Erased] = {}
        self.logits: Floats = self.answers(subject.operators[0]).logits(np.ones((1, len(self.words)), np.bool_))[0]
        self.label = int(self.logits.argmax())

    def target(self, label: int | None = None) -> Target:
        """Return what the service explains of this text by default: ``label``, or the answer; of three labels or more against another."""
        return target_of(self.logits, self.label if label is None else label, None)

    @property
    def count(self) -> int:
        """The number of words."""
        return len(self.words)

    @property
    def tokens(self) -> int:
        """The number of tokens, with special ones."""
        return len(self.encoded.ids)

    @property
    def row(self) -> Row:
        """The tokens that the graph reads."""
        return Row(self.encoded.ids, self.encoded.type_ids, self.encoded.truncated)

    def answers(self, operator: str) -> Erased:
        """Return the answers with an operator, as ``Erased`` takes it; every call returns the same object."""
        if operator not in self._erased:
            found = self._erased[operator] = Erased(self.subject, self.encoded, operator)
            if len(self._erased) > 1:
                # The whole text has the same answer with every operator.
                found.answers.tell(np.ones((1, self.count), np.bool_), self.logits[None])
        return self._erased[operator]

    def word_sums(self, tokens: npt.NDArray[np.floating]) -> Floats:
        """Sum values [tokens] over the tokens of each word, [n]."""
        return np.array([float(np.sum(tokens[word.first : word.last], dtype=np.float64)) for word in self.encoded.words])


class Subject:
    """A bundle under study. Threads may share it, each with its own readings.

    ``operators``: those with which methods are measured. ``session``: of the explain graph, None without one.
    """

    def __init__(self, bundle: Path, precision: str | None = None) -> None:
        """Load the graph that would be served, or the one of a precision, and the explain graph.

        Raises:
            ModelsError: the bundle's explain graph cannot be used.
            sentiment.errors.BadBundle: the bundle cannot be served on this machine.
        """
        self.classifier = load_served(bundle, precision)
        # The thread's CPU clock: other load on the machine does not affect the costs.
        self.explainer = Explainer(self.classifier, time.thread_time)
        graph = self.explainer.load()
        if graph is None and self.explainer.failure:
            raise ModelsError(f"{bundle}: the explain graph cannot be used: {self.explainer.failure}")
        self.session = None if graph is None else graph.session
        self.bundle = bundle
        self.labels = self.classifier.manifest.labels
        self.temperature = self.classifier.manifest.calibration.temperature
        vocabulary = tokenizers.Tokenizer.from_file(str(bundle / TOKENIZER_FILE))
        self.mask_id: int | None = next(
            (found for name in ("[MASK]", "<mask>") if (found := vocabulary.token_to_id(name)) is not None), None
        )
        self.operators = tuple(name for name in OPERATORS if name != "mask_token" or self.mask_id is not None)

    def read(self, text: TextOrPair) -> Reading:
        """Read and classify a text or pair as the service does. If the bundle refuses long texts, they are cut to their beginning.

        Raises:
            InvalidInput: the text has no words that the model reads.
        """
        texts = (text,) if isinstance(text, str) else text
        return Reading(self, texts, read(self.classifier, self._request(texts)))

    def reads(self, text: TextOrPair) -> bool:
        """Whether the text has words that the model reads. Runs no graph."""
        try:
            return bool(read(self.classifier, self._request((text,) if isinstance(text, str) else text)).words)
        except InvalidInput:
            return False

    def identity(self) -> dict[str, Json]:
        """Return what word scores and answers depend on, for a journal. The digest is left out: recording figures changes it."""
        manifest = self.classifier.manifest
        return {
            "files": {name: file.sha256 for name, file in manifest.files.items()},
            "graph": self.classifier.graph.file,
            "temperature": manifest.calibration.temperature,
            "truncation": manifest.default_truncation,
        }

    def attribute(self, reading: Reading, method: str, target: Target, steps: int = 0, seed: int = 0) -> tuple[Attribution, Summary]:
        """Explain a text by one method as the service does, without evidence; ``steps``: 0 for the method's default.

        Raises:
            sentiment.errors.Unsupported: the method needs an explain graph and there is none.
        """
        asked = replace(
            self._request(reading.texts),
            label=self.labels[target.label],
            against=None if target.against is None else self.labels[target.against],
            label_alone=target.against is None,
        )
        request = replace(asked, methods=(method,), steps=steps, seed=seed)
        _, *parts, summary = self.explainer.explain(request)
        (found,) = (part for part in parts if isinstance(part, Attribution))
        assert isinstance(summary, Summary)
        return found, summary

    def explained(
        self,
        reading: Reading,
        outputs: Sequence[str],
        target: Target,
        rows: int = 1,
        head_gate: npt.NDArray[np.float32] | None = None,
        head_uniform: npt.NDArray[np.float32] | None = None,
    ) -> Arrays:
        """Run the explain graph on ``rows`` copies of a text in one batch; gates [rows, layers, heads] as in ``ExplainSession.run``.

        Gradients are those of the explained logit.

        Raises:
            ModelsError: there is no explain graph.
        """
        session = self.explains()
        feeds = self._pad([reading.row] * rows, session.inputs)

        def run_for(label: int, names: Sequence[str]) -> Arrays:
            return session.run(feeds, names, np.full(rows, label), head_gate=head_gate, head_uniform=head_uniform)

        return differentiated(target, outputs, run_for)

    def attention(self, reading: Reading, target: Target) -> Arrays:
        """Run the explain graph for the attention of a text.

        Returns:
            ``attention`` [layers, heads, tokens, tokens]; ``gradients`` of the explained logit by it, of the same shape; ``value_norms``
            [layers, heads, tokens]; ``logits`` [labels].

        Raises:
            ModelsError: there is no explain graph.
        """
        session = self.explains()
        kinds = {"attention": "attention", "attention_gradient": "gradients", "value_norm": "value_norms"}
        names = [f"{kind}.{layer}" for kind in kinds for layer in range(session.layers)]
        found = self.explained(reading, [*names, "logits"], target)
        arrays = {name: np.concatenate([found.pop(f"{kind}.{layer}") for layer in range(session.layers)]) for kind, name in kinds.items()}
        return {**arrays, "logits": found["logits"][0]}

    def uniform(self, reading: Reading) -> npt.NDArray[np.float32]:
        """Return the explain graph's logits [layers + 1, labels] with uniform attention in each single layer, then in all layers.

        Raises:
            ModelsError: there is no explain graph.
        """
        session = self.explains()
        layers = session.layers
        switches = np.concatenate([np.eye(layers, dtype=np.float32), np.ones((1, layers), np.float32)])
        uniform = np.repeat(switches[:, :, None], session.heads, axis=2)
        step = rows_of(reading.tokens)
        parts = [uniform[start : start + step] for start in range(0, layers + 1, step)]
        found = [self.explained(reading, ["logits"], reading.target(), len(part), head_uniform=part)["logits"] for part in parts]
        return np.concatenate(found)

    def erase(self, encoded: Encoded, masks: Masks, operator: str) -> Feeds:
        """Return the served graph's input for rows of a text, each with some words erased.

        ``attention_mask``: no token attends to the erased words. ``mask_token``: their tokens are replaced by the mask token.
        ``deletion``: their tokens are removed, and later tokens move up. Special tokens are kept.

        Args:
            encoded: the text.
            masks: [rows, n], True: the word is kept.
            operator: one of OPERATORS.
        """
        kept = np.ones((len(masks), len(encoded.ids)), np.bool_)
        for index, word in enumerate(encoded.words):
            kept[:, word.first : word.last] = masks[:, index, None]
        row, inputs = Row(encoded.ids, encoded.type_ids, encoded.truncated), self.classifier.session.inputs
        if operator == "deletion":
            return self._pad([_without(row, keep) for keep in kept], inputs)
        feeds = self._pad([row] * len(masks), inputs)
        if operator == "attention_mask":
            feeds["attention_mask"] = kept.astype(np.int64)
        else:
            assert operator == "mask_token" and self.mask_id is not None, operator
            feeds["input_ids"] = np.where(kept, feeds["input_ids"], self.mask_id)
        return feeds

    def explains(self) -> ExplainSession:
        """Return the session of the explain graph.

        Raises:
            ModelsError: there is none.
        """
        if self.session is None:
            raise ModelsError(f"{self.bundle}: the bundle has no explain graph")
        return self.session

    def _pad(self, rows: Sequence[Row], inputs: Sequence[str]) -> Feeds:
        return pad(rows, inputs, self.classifier.tokenizer.pad_id, self.classifier.manifest.padding_side == "left")

    def _request(self, texts: tuple[str, ...]) -> ExplanationRequest:
        refuses = self.classifier.manifest.default_truncation == "refuse"
        return ExplanationRequest(texts[0], texts[1] if len(texts) > 1 else None, "head" if refuses else None, evidence=False)


def rows_of(tokens: int) -> int:
    """Return the batch size for rows of ``tokens`` tokens."""
    return max(1, min(ROWS_MAX, TOKENS_MAX // tokens))


def _without(row: Row, keep: npt.NDArray[np.bool_]) -> Row:
    types = None if row.type_ids is None else list(compress(row.type_ids, keep))
    return Row(list(compress(row.ids, keep)), types, row.truncated)
