"""What makes a simulation worth less than it seems. Pure."""

import itertools

from sentiment.planning.search import Objective
from sentiment.planning.simulation import Traffic
from sentiment.traffic.arrivals import Bursts, Law

# A load above what a fleet holds for good looks as if it held until the backlog has grown to the objective: so many of it are enough.
LASTING = 40
# Requests that may be late; of fewer, one more or less decides.
LATE_MIN = 10


def cautions(law: Law, traffic: Traffic, objective: Objective, requests: int, seed: int) -> list[str]:
    """Sentences for who reads the result; none where there is nothing to say.

    Args:
        law: by which ``traffic`` was drawn.
        traffic: what was simulated.
        objective: what was wanted.
        requests: at most so many were drawn.
        seed: of the law.
    """
    found = []
    simulated_s, came = float(traffic.due_at[-1]), len(traffic.due_at)
    if simulated_s < LASTING * objective.seconds:
        found.append(
            f"{simulated_s:.3g} s are {simulated_s / objective.seconds:.3g} times the objective: a load up to "
            f"{objective.seconds / simulated_s:.0%} above what a fleet holds for good passes, because no backlog grows so fast; "
            "simulate longer, with more --requests or a longer law"
        )
    may_be_late = came * (1 - objective.percentile / 100)
    if objective.percentile < 100 and may_be_late < LATE_MIN:
        found.append(f"of {came:,} requests {may_be_late:.2g} may be late: too few to tell {objective.percentile:g} %")
    if isinstance(law, Bursts) and simulated_s < law.every_s:
        found.append(f"{simulated_s:.3g} s are less than one period of the bursts: try more --requests")
    if came == requests and law.seconds < float("inf") and any(True for _ in itertools.islice(law.times(seed), requests, None)):
        found.append(f"--requests {requests} ended the law after {simulated_s:.3g} of its {law.seconds:.3g} s")
    return found
