"""Two workers for ``sentiment-batch``: processes of this machine, or two machines of a Ray cluster."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

import psutil

from tests.conftest import leave_out

LOCAL, RAY = "one machine", "Ray"


class Local:
    """Two processes of the command. ``arguments``: of the command."""

    arguments = ("--processes", "2")

    def kill_worker(self, command: psutil.Process) -> None:
        """Kill a worker."""
        workers_of(command)[0].kill()

    def kill_half(self, command: psutil.Process) -> None:
        """Kill both workers: there is no other machine."""
        for worker in workers_of(command):
            worker.kill()


def workers_of(command: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in command.children():
        # One that ends meanwhile is left out.
        with suppress(psutil.NoSuchProcess):
            if any("spawn_main" in word for word in child.cmdline()):
                found.append(child)
    return found


class Ray:
    """Two machines of one core each, from Ray's point of view."""

    def __init__(self) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        # A machine counts as gone after five failed health checks; they begin late, because a busy machine starts slowly.
        checks = {"health_check_period_ms": 1000, "health_check_initial_delay_ms": 20_000}
        node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False, "_system_config": checks}
        self.cluster = Cluster(initialize_head=True, head_node_args=node)
        self._other = self.cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
        self.arguments = ("--ray", self.cluster.address)

    def kill_worker(self, command: psutil.Process) -> None:
        raylet = self.cluster.head_node.all_processes["raylet"][0].process.pid
        # Processes that end meanwhile are left out.
        running = psutil.process_iter(["ppid", "cmdline"])
        workers = [one for one in running if one.info["ppid"] == raylet and any("Actor" in word for word in one.info["cmdline"] or ())]
        workers[0].kill()

    def kill_half(self, command: psutil.Process) -> None:
        """Lose a machine."""
        self.cluster.remove_node(self._other, allow_graceful=False)


@contextmanager
def pool_of(kind: str) -> Iterator[Local | Ray]:
    """The workers of a kind. Skips the test where Ray is not installed."""
    if kind == LOCAL:
        yield Local()
        return
    if not find_spec("ray"):
        leave_out("a Ray cluster", "needs the extra ray")
    pool = Ray()
    try:
        yield pool
    finally:
        pool.cluster.shutdown()
