"""Warnings about a simulation that says less than it seems to. Pure."""

import itertools

from sentiment_tools.planning.machine import Machine
from sentiment_tools.planning.search import Objective
from sentiment_tools.planning.simulation import Traffic
from sentiment_tools.traffic.arrivals import Bursts, Law

# An overload passes until the backlog has grown to the objective's seconds. This many times the objective is long enough.
LASTING = 40
# If fewer requests may be late, one more or less decides whether the objective is met.
LATE_MIN = 10
# Of a machine that was not quiet: load average per core before the measurement, and by how much equal runs vary.
LOAD_MAX, SPREAD_MAX = 0.25, 0.3


def cautions(law: Law, traffic: Traffic, objective: Objective, requests: int, seed: int) -> list[str]:
    """Warnings for the reader of the result, as sentences.

    Args:
        law: the arrival law of ``traffic``.
        traffic: the simulated requests.
        objective: the latency objective.
        requests: the limit of requests that were drawn.
        seed: of the law.
    """
    found = []
    simulated_s, came = float(traffic.due_at[-1]), len(traffic.due_at)
    if simulated_s < LASTING * objective.seconds:
        found.append(
            f"the simulation covers {simulated_s:.3g} s, only {simulated_s / objective.seconds:.3g} times the objective: a load up to "
            f"{objective.seconds / simulated_s:.0%} above a fleet's capacity passes, because the backlog grows too slowly to show; "
            "simulate longer, with more --requests or a longer --law"
        )
    may_be_late = came * (1 - objective.percentile / 100)
    if objective.percentile < 100 and may_be_late < LATE_MIN:
        found.append(f"{came:,} requests are too few for {objective.percentile:g} %: only {may_be_late:.2g} of them may be late")
    if isinstance(law, Bursts) and simulated_s < law.every_s:
        found.append(f"the simulation covers {simulated_s:.3g} s, less than one period of the bursts: use more --requests")
    if came == requests and law.seconds < float("inf") and any(True for _ in itertools.islice(law.times(seed), requests, None)):
        found.append(f"--requests {requests} ended the law after {simulated_s:.3g} s of its {law.seconds:.3g} s")
    return found


def not_quiet(machine: Machine) -> list[str]:
    """A warning if the machine was busy with something else while it was measured."""
    seen = []
    if machine.others_load >= LOAD_MAX:
        seen.append(f"a load average of {machine.others_load:.2g} per core before it began")
    if machine.spread >= SPREAD_MAX:
        seen.append(f"run times of equal batches that vary by {machine.spread:.0%}")
    advice = "measure again on a quiet machine, or calibrate with --measured"
    return [f"the machine was busy while it was measured, with {' and '.join(seen)}: {advice}"] if seen else []
