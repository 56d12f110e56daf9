"""One /metrics page for several processes: the front ends' counts are added to the executor's.

A front end sends the growth since it last sent. So the counts of one that dies stay, and when the executor is replaced all counters start
at zero together, as Prometheus expects of a restart.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

# Only these can be added. Gauges are the executor's.
ADDED = ("counter", "histogram")
Series = tuple[str, tuple[tuple[str, str], ...]]
# An exemplar: the labels with the trace id, the measurement, and its time.
Example = tuple[Mapping[str, str], float, float]
# A series' name, its labels, its growth, and its last exemplar.
Growth = tuple[str, dict[str, str], float, Example | None]


class Counted:
    """The growth of a front end's registry since the last call of ``take``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._sent: dict[Series, float] = {}

    def take(self) -> list[Growth]:
        """The series that have grown."""
        grown: list[Growth] = []
        for family in self._registry.collect():
            if family.type not in ADDED:
                continue
            for sample in family.samples:
                series = _series(sample)
                more = sample.value - self._sent.get(series, 0.0)
                if more:
                    self._sent[series] = sample.value
                    example = sample.exemplar
                    kept = None if example is None else (example.labels, example.value, _instant(example))
                    grown.append((sample.name, sample.labels, more, kept))
        return grown

    def forget(self, label: str, value: str) -> None:
        """The series with this label were removed; new ones would start at zero."""
        self._sent = {series: sent for series, sent in self._sent.items() if (label, value) not in series[1]}


class Totals(Collector):
    """The executor's metrics plus the front ends' counts, with the process_ metrics of each process by its name."""

    def __init__(
        self,
        registry: CollectorRegistry,
        pids: Callable[[], Mapping[str, int]],
        begin: Callable[[str, Mapping[str, str]], object] = lambda *_: None,
    ) -> None:
        """``pids``: the other processes by name; ``begin``: called with the name and labels of a series that grows for the first time."""
        self._registry = registry
        self._begin = begin
        self._pids = pids
        self._added: dict[Series, float] = {}
        self._examples: dict[Series, Exemplar] = {}

    def add(self, counts: Iterable[Growth]) -> None:
        """Add the counts of another process."""
        for name, labels, more, example in counts:
            series = name, tuple(sorted(labels.items()))
            if series not in self._added:
                self._begin(name, labels)
            self._added[series] = self._added.get(series, 0.0) + more
            if example is not None:
                # Buckets are cumulative: one may have grown without a new exemplar, and then sends its old one again.
                labels_of, value, at = example
                self._examples[series] = _newer(self._examples.get(series), Exemplar(dict(labels_of), value, at))

    def forget(self, label: str, value: str) -> None:
        """Remove the counts with this label, such as those of a model."""
        self._added = {series: added for series, added in self._added.items() if (label, value) not in series[1]}
        self._examples = {series: example for series, example in self._examples.items() if (label, value) not in series[1]}

    def collect(self) -> Iterable[Metric]:
        """All metric families, summed."""
        others = {name: _process(pid) for name, pid in self._pids().items()}
        for family in self._registry.collect():
            if family.name.startswith("process_"):
                own = {"executor": family.samples}
                apart = own | {name: found.get(family.name, []) for name, found in others.items()}
                family.samples = [
                    sample._replace(labels={**sample.labels, "process": name}) for name, samples in apart.items() for sample in samples
                ]
            else:
                family.samples = [self._summed(sample) for sample in family.samples]
            yield family

    def _summed(self, sample: Sample) -> Sample:
        series = _series(sample)
        more = self._added.get(series)
        if more is None:
            return sample
        example = self._examples.get(series)
        return sample._replace(value=sample.value + more, exemplar=sample.exemplar if example is None else _newer(sample.exemplar, example))


def _newer(one: Exemplar | None, other: Exemplar) -> Exemplar:
    return one if one is not None and _instant(one) > _instant(other) else other


def _instant(example: Exemplar) -> float:
    return float(example.timestamp or 0.0)


def _series(sample: Sample) -> Series:
    return sample.name, tuple(sorted(sample.labels.items()))


def _process(pid: int) -> dict[str, list[Sample]]:
    """The process_ metrics of a process; empty if it has ended."""
    return {family.name: family.samples for family in ProcessCollector(pid=lambda: pid, registry=None).collect()}
