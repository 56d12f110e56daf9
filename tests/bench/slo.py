"""The highest load that meets an objective, and the answers in time under three times that load, compared with other policies."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from sentiment_tools.loadtest.drivers import Target
from sentiment_tools.loadtest.fleet import Fleet, measure
from sentiment_tools.loadtest.mix import Mix
from sentiment_tools.traffic.arrivals import Poisson
from tests.bench.processes import start_server

OBJECTIVE_S = 0.5
IN_TIME_MIN = 0.99
SEARCH_STEPS = 6
CALLERS = 64
PATIENT = (60.0, 60.0)
POLICIES = {"ours": "", "single": "single", "fifo-8": "fifo-8", "fifo-32": "fifo-32"}
OVERLOAD = 3.0
# Loads at which the order of the rows is compared, and a time to answer that leaves the order to the objective.
SHARES = (0.3, 0.6, 0.9)
WAIT_S = 5.0


async def measure_capacity(target: str, texts: Sequence[str], seconds: float) -> float:
    """Texts a second that a server answers when CALLERS callers wait all the time."""
    point = await measure(Target(target), Mix(PATIENT), texts, CALLERS, seconds, OBJECTIVE_S)
    return point.answered_per_s


async def measure_objective(model: str, texts: Sequence[str], seconds: float) -> dict[str, float]:
    """Start our server and one for each policy to compare with, and load them in turn, each text with OBJECTIVE_S to be answered.

    Returns:
        ``capacity`` (texts a second, callers waiting all the time), ``load_<policy>`` (highest load that meets the objective),
        ``overload_<policy>`` (texts a second that are answered in time at OVERLOAD times the capacity), and of ``ours`` and ``single``
        ``p50_<policy>_at_<share>`` and ``p99_...`` (seconds, at shares of the capacity, with WAIT_S to be answered).
    """
    async with AsyncExitStack() as stack:
        fleets: dict[str, Fleet] = {}
        waiting: dict[str, Fleet] = {}
        found: dict[str, float] = {}
        for name, policy in POLICIES.items():
            started = start_server(model, policy)
            stack.callback(started.end)
            if name == "ours":
                found["capacity"] = await measure_capacity(started.grpc, texts, seconds)
            for mix, wait_s in ((fleets, OBJECTIVE_S), (waiting, WAIT_S)):
                fleet = Fleet(Target(started.grpc), Mix((wait_s, wait_s)), texts, OBJECTIVE_S, processes=1)
                mix[name] = await stack.enter_async_context(fleet)
        for name, load in (await highest_load(fleets, found["capacity"], seconds)).items():
            found[f"load_{name}"] = load
        for name, fleet in fleets.items():
            point = await fleet.measure(Poisson(OVERLOAD * found["capacity"]), seconds)
            found[f"overload_{name}"] = point.goodput_per_s
        for share in SHARES:
            for name in ("ours", "single"):
                point = await waiting[name].measure(Poisson(share * found["capacity"]), 2 * seconds)
                for percentile in (50, 99):
                    found[f"p{percentile}_{name}_at_{share:g}"] = point.percentile(percentile)
    return found


async def highest_load(fleets: Mapping[str, Fleet], capacity: float, seconds: float) -> dict[str, float]:
    """The highest rate, by bisection up to 1.3 times ``capacity``, at which each server answers IN_TIME_MIN of the texts in time.

    The servers take turns within each step, so that what else the machine does meets all of them, and all get arrivals of one seed. A rate
    that fails is tried once more: a neighbour's second is not the server's.
    """
    bounds = dict.fromkeys(fleets, (0.1 * capacity, 1.3 * capacity))
    for _ in range(SEARCH_STEPS):
        for name, fleet in fleets.items():
            low, high = bounds[name]
            rate = (low + high) / 2
            holds = await _holds(name, fleet, rate, seconds) or await _holds(name, fleet, rate, seconds)
            bounds[name] = (rate, high) if holds else (low, rate)
    return {name: low for name, (low, _) in bounds.items()}


async def _holds(name: str, fleet: Fleet, rate: float, seconds: float) -> bool:
    """Whether a server answers IN_TIME_MIN of the texts in time, which is printed."""
    point = await fleet.measure(Poisson(rate), seconds)
    share = point.share_in_time
    limited = f" (the client was the limit: {point.client_limited})" if point.client_limited else ""
    print(f"  {name}: {rate:.1f} texts/s, {share:.1%} within {OBJECTIVE_S * 1e3:.0f} ms{limited}", flush=True)
    return share >= IN_TIME_MIN
