"""Drift of hidden states: for some answered texts the explain graph computes projections, which a model's references count too."""

import random

from sentiment.batching.row_queue import Reading
from sentiment.errors import BadBundle
from sentiment.explain.engine import Explainer
from sentiment.explain.engine.projections import project
from sentiment.model.execute import Execute
from sentiment.model.scores import Scored
from sentiment.model.session import Stop
from sentiment.model.tokenizer import Windows
from sentiment.observability.drift import Drift
from sentiment.observability.logs import logger
from sentiment.serving.lifecycle.sampling import Purpose, Sampling
from sentiment.serving.lifecycle.served_model import RunningModel
from sentiment.serving.pipeline import Served
from sentiment.serving.queries import Query


class _Projections(Purpose[list[float]]):
    """The hidden states of one model."""

    def __init__(self, model: str, explainer: Explainer, layer: int, drift: Drift, text_bytes_max: int) -> None:
        super().__init__(explainer.classifier, text_bytes_max)
        self.model, self.explainer, self.layer, self.drift = model, explainer, layer, drift

    def work(self, reading: Reading, stop: Stop, execute: Execute) -> list[float]:
        graph = self.explainer.load(execute)
        if graph is None or not graph.session.hidden:
            raise BadBundle(self.explainer.failure or "the bundle has no explain graph with hidden states")
        # Of several windows the first, as in the references.
        row = reading.rows[0] if isinstance(reading, Windows) else reading
        return project(self.classifier, graph.session, row, self.layer, stop, execute)

    def count(self, found: list[float], _answered: object) -> None:
        self.drift.add(found)

    def count_failed(self) -> None:
        """There is no count: ``hidden_drift_texts`` does not grow."""

    def log_failure(self, reason: str) -> None:
        logger().error("hidden_drift_failed", model=self.model, reason=reason)


class HiddenDrift:
    """Compares hidden states of answered texts with the models' references. Belongs to one event loop."""

    def __init__(self, sampling: Sampling, sampled: float, text_bytes_max: int) -> None:
        """Compare nothing yet.

        Args:
            sampling: reads the texts.
            sampled: the share of the texts to compare, 0 to 1.
            text_bytes_max: limit of a text in UTF-8 bytes, as for calls.
        """
        self._sampling, self._sampled, self._text_bytes_max = sampling, sampled, text_bytes_max
        self._models: dict[str, _Projections] = {}

    def sample(self, used: Served, query: Query, _scored: Scored) -> None:
        """Offer an answered text, if it is in the sample."""
        if random.random() < self._sampled:  # noqa: S311  # a sample, not a secret
            self.offer(used, query)

    def offer(self, used: Served, query: Query) -> None:
        """Compare an answered text, unless its model has nothing to compare with, or there is no room."""
        found = self._models.get(used.id) or self._begin(used)
        if found is not None:
            self._sampling.add(found, query)

    def withdraw(self, leaving: Served) -> None:
        """End the comparison of a version that is being unloaded."""
        if (found := self._models.pop(leaving.id, None)) is not None:
            self._sampling.end(found)

    def _begin(self, used: Served) -> _Projections | None:
        manifest, drift = used.classifier.manifest, used.metrics.hidden_drift
        if drift is None or manifest.hidden_layer is None or used.explaining is None:
            return None
        assert isinstance(used, RunningModel)
        found = _Projections(used.id, used.explaining.explainer, manifest.hidden_layer, drift, self._text_bytes_max)
        self._models[used.id] = found
        return found
