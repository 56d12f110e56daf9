"""The packages of this distribution that stand beside the core. The core finds them by entry points and imports none of them.

The groups are ``sentiment.commands`` (functions that add a command to the parser of ``sentiment``), ``sentiment.topologies`` (how
``serve`` runs in several processes), ``sentiment.pages`` (routes for people) and ``sentiment.views`` (explanations as pages).
"""

from importlib.metadata import distribution
from typing import Any

DISTRIBUTION = "sentiment-service"


def wing(group: str, name: str) -> Any:  # Any: what the group is made of
    """What a wing offers under this name.

    Raises:
        ModuleNotFoundError: the wing, or a package that it needs, is not installed. It names the module.
    """
    for point in distribution(DISTRIBUTION).entry_points.select(group=group, name=name):
        return point.load()
    raise ModuleNotFoundError(f"{DISTRIBUTION}, as it is installed here, has no {name} among its {group}", name=DISTRIBUTION)
