"""Shadow scoring: some texts that the version in use has answered are scored by a version loaded beside it too, and the two compared.

See ``sampling`` for how live calls do not notice. On a GPU the other version runs on the CPU, as for explanations: a device belongs to its
runner's thread.
"""

import random
from functools import partial

from sentiment.lifecycle.registry import Models
from sentiment.lifecycle.sampling import Purpose, Sampling
from sentiment.lifecycle.served_model import RunningModel
from sentiment.model.execute import Execute, result_of
from sentiment.model.parts import Reading
from sentiment.model.scores import Scored
from sentiment.model.session import Stop
from sentiment.observability.agreement import verdict
from sentiment.observability.metrics import Metrics, ShadowMetrics
from sentiment.pipeline.after_answer import Told
from sentiment.pipeline.queries import Query
from sentiment.pipeline.served import Served

# What the version in use answered: its label and that label's probability.
Answered = tuple[str, float]


class _Pair(Purpose[Scored]):
    """A version in use and the version beside it."""

    def __init__(self, used: Served, other: RunningModel, counted: ShadowMetrics, text_bytes_max: int) -> None:
        super().__init__(other.loaded.explained, text_bytes_max, counted.dropped, "shadow_failed", model=used.id, shadow=other.id)
        self.counted = counted

    def work(self, reading: Reading, stop: Stop, execute: Execute) -> Scored:
        classifier, logits = self.classifier, []
        for row in reading.rows:
            found = result_of(execute, partial(classifier.session.run, classifier.feeds([row]), stop))
            logits.append(found[0].tolist())
        return classifier.answer(reading, logits)[0]

    def count(self, found: Scored, answered: Answered) -> None:
        label, score = answered
        shift = found.scores[self.classifier.manifest.labels.index(label)] - score
        self.counted.texts.inc()
        self.counted.shift["up" if shift > 0 else "down"].inc(abs(shift))
        if found.label != label:
            self.counted.flips[label, found.label].inc()


class Shadow:
    """Compares versions in use with those beside them. Belongs to one event loop."""

    def __init__(self, models: Models, metrics: Metrics, sampling: Sampling, sampled: float, text_bytes_max: int) -> None:
        """Compare nothing yet.

        Args:
            models: the loaded models.
            metrics: counts the comparisons.
            sampling: reads the texts.
            sampled: the share of the texts to compare, 0 to 1.
            text_bytes_max: limit of a text in UTF-8 bytes, as for calls.
        """
        self._models, self._metrics, self._sampling = models, metrics, sampling
        self._sampled, self._text_bytes_max = sampled, text_bytes_max
        self._pairs: dict[tuple[str, str], _Pair] = {}

    def sample(self, used: Served, told: Told) -> None:
        """Offer an answered text, if it is in the sample and was read in full, as it is by the other version."""
        if not told.early and random.random() < self._sampled:  # noqa: S311  # a sample, not a secret
            self.offer(used, told.query, told.scored.label, told.scored.score)

    def offer(self, used: Served, query: Query, label: str, score: float, missed: int = 0) -> None:
        """Compare an answered text, unless there is no version beside the one that answered, or no room.

        Args:
            used: what answered.
            query: the text.
            label: of the answer.
            score: its probability.
            missed: how many texts were dropped before they came here.
        """
        other = self._models.beside(used)
        if other is None:
            return
        pair = self._pair(used, other)
        pair.dropped["queue_full"].inc(missed)
        self._sampling.add(pair, query, (label, score))

    def verdict(self, other: Served) -> str:
        """How a version differs from the version in use of its name; empty if they were not compared."""
        used = self._models.find(other.name)
        pair = self._pairs.get((used.id, other.id))
        if pair is None:
            return ""
        counted = pair.counted
        flips = {labels: count.value for labels, count in counted.flips.items()}
        shift = counted.shift["up"].value - counted.shift["down"].value
        return verdict(used.id, counted.texts.value, flips, shift, counted.dropped["failed"].value)

    def withdraw(self, leaving: Served) -> None:
        """End the comparisons of a version that is being unloaded."""
        for key, pair in list(self._pairs.items()):
            if leaving.id in key:
                del self._pairs[key]
                self._sampling.end(pair)

    def _pair(self, used: Served, other: Served) -> _Pair:
        found = self._pairs.get((used.id, other.id))
        if found is None:
            assert isinstance(other, RunningModel)
            counted = ShadowMetrics(self._metrics, (used.id, other.id), used.classifier.manifest.labels)
            found = self._pairs[used.id, other.id] = _Pair(used, other, counted, self._text_bytes_max)
        return found
