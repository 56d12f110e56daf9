"""Drift of hidden states: for some answered texts the explain graph computes projections, which a model's references count too."""

import random

from sentiment.errors import BadBundle
from sentiment.explain.engine import Explainer
from sentiment.explain.engine.projections import project
from sentiment.lifecycle.registry import Models
from sentiment.lifecycle.sampling import Purpose, Sampling
from sentiment.model.execute import Execute
from sentiment.model.parts import Reading
from sentiment.model.session import Stop
from sentiment.observability.drift import Drift
from sentiment.pipeline.after_answer import Told
from sentiment.pipeline.queries import Query
from sentiment.pipeline.served import Served


class _Projections(Purpose[list[float]]):
    """The hidden states of one model."""

    def __init__(self, used: Served, explainer: Explainer, layer: int, drift: Drift, text_bytes_max: int) -> None:
        super().__init__(explainer.classifier, text_bytes_max, used.metrics.hidden_dropped, "hidden_drift_failed", model=used.id)
        self.used, self.explainer, self.layer, self.drift = used, explainer, layer, drift

    def work(self, reading: Reading, stop: Stop, execute: Execute) -> list[float]:
        graph = self.explainer.load(execute)
        if graph is None or not graph.session.hidden or self.layer > graph.session.layers:
            raise BadBundle(self.explainer.failure or f"the bundle has no explain graph with hidden states of layer {self.layer}")
        # Of several windows the first, as in the references.
        return project(self.classifier, graph.session, reading.rows[0], self.layer, stop, execute)

    def count(self, found: list[float], _answered: object) -> None:
        self.drift.add(found)


class HiddenDrift:
    """Compares hidden states of texts that a version in use has answered with its references. Belongs to one event loop."""

    def __init__(self, models: Models, sampling: Sampling, sampled: float, text_bytes_max: int) -> None:
        """Compare nothing yet.

        Args:
            models: the loaded models.
            sampling: reads the texts.
            sampled: the share of the texts to compare, 0 to 1.
            text_bytes_max: limit of a text in UTF-8 bytes, as for calls.
        """
        self._models, self._sampling, self._sampled, self._text_bytes_max = models, sampling, sampled, text_bytes_max
        self._compared: dict[str, _Projections] = {}

    def sample(self, used: Served, told: Told) -> None:
        """Offer an answered text, if it is in the sample."""
        if random.random() < self._sampled:  # noqa: S311  # a sample, not a secret
            self.offer(used, told.query)

    def offer(self, used: Served, query: Query) -> None:
        """Compare an answered text, unless its version is not in use or has nothing to compare with, or there is no room."""
        # A version that is leaving still answers the calls that began with it: its explain graph must not be loaded again.
        found = self._of(used) if self._models.uses(used) else None
        if found is not None:
            self._sampling.add(found, query)

    def withdraw(self, leaving: Served) -> None:
        """End the comparison of a version that is no longer in use, or is being unloaded."""
        if (found := self._compared.get(leaving.id)) is not None and found.used is leaving:
            del self._compared[leaving.id]
            self._sampling.end(found)

    def _of(self, used: Served) -> _Projections | None:
        found = self._compared.get(used.id)
        if found is None:
            drift, layer = used.metrics.hidden_drift, used.classifier.manifest.hidden_layer
            if drift is None or layer is None or used.explaining is None:
                return None
            found = self._compared[used.id] = _Projections(used, used.explaining.explainer, layer, drift, self._text_bytes_max)
        return found
