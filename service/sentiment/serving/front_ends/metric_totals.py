"""One truthful /metrics of several processes: what front ends count is added to what the executor counts.

A front end tells what has come since it was last asked, so that one that dies takes back nothing of what it had told, and an executor
that is replaced begins at zero in everything at once, as Prometheus expects of a restart.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

# Only these can be added up. Of gauges the executor has the true ones.
ADDED = ("counter", "histogram")
Series = tuple[str, tuple[tuple[str, str], ...]]
# A request that a bucket counted: its trace, its measurement, and when.
Example = tuple[Mapping[str, str], float, float]
# A series' name, labels, what has come, and one request of it that was traced.
Grown = tuple[str, dict[str, str], float, Example | None]
Counts = list[Grown]


class Counted:
    """What a front end's registry has counted since it was last looked at."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._told: dict[Series, float] = {}

    def take(self) -> Counts:
        """Series that have grown, with their growth."""
        grown: Counts = []
        for family in self._registry.collect():
            if family.type not in ADDED:
                continue
            for sample in family.samples:
                series = _series(sample)
                more = sample.value - self._told.get(series, 0.0)
                if more:
                    self._told[series] = sample.value
                    example = sample.exemplar
                    told = None if example is None else (example.labels, example.value, _told_at(example))
                    grown.append((sample.name, sample.labels, more, told))
        return grown


class Totals(Collector):
    """A registry's families with what others have counted, and with every process's own figures by its name."""

    def __init__(self, registry: CollectorRegistry, pids: Callable[[], Mapping[str, int]]) -> None:
        """``pids``: the other processes by name."""
        self._registry = registry
        self._pids = pids
        self._added: dict[Series, float] = {}
        self._examples: dict[Series, Exemplar] = {}

    def add(self, counts: Iterable[Grown]) -> None:
        """Add what another process has counted."""
        for name, labels, more, example in counts:
            series = name, tuple(sorted(labels.items()))
            self._added[series] = self._added.get(series, 0.0) + more
            if example is not None:
                # A bucket that has grown by what a smaller one counts tells its last one again.
                labels_of, value, at = example
                self._examples[series] = _newer(self._examples.get(series), Exemplar(dict(labels_of), value, at))

    def collect(self) -> Iterable[Metric]:
        """Every family, summed."""
        others = {name: _process(pid) for name, pid in self._pids().items()}
        for family in self._registry.collect():
            if family.name.startswith("process_"):
                own = {"executor": family.samples}
                apart = own | {name: found.get(family.name, []) for name, found in others.items()}
                family.samples = [_named(sample, name) for name, samples in apart.items() for sample in samples]
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
    return one if one is not None and _told_at(one) > _told_at(other) else other


def _told_at(example: Exemplar) -> float:
    return float(example.timestamp or 0.0)


def _series(sample: Sample) -> Series:
    return sample.name, tuple(sorted(sample.labels.items()))


def _named(sample: Sample, process: str) -> Sample:
    return sample._replace(labels={**sample.labels, "process": process})


def _process(pid: int) -> dict[str, list[Sample]]:
    """What the system knows of a process; nothing of one that has gone."""
    return {family.name: family.samples for family in ProcessCollector(pid=lambda: pid, registry=None).collect()}
