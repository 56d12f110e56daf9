"""The chart's pod, played by podman: what is asked of the kubelet is asked of it."""

import json
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.chart.manifests import made_by, of_kind
from tests.deploy.image.store import CGROUPS, IMAGE, Store
from tests.programs import free_port

NAME = "image-check"
PORTS = {"SENTIMENT_GRPC_LISTEN": "grpc", "SENTIMENT_HTTP_LISTEN": "http"}
POLL_S = 0.1
MIB = 2**20
# Any: documents of YAML have no better type.
Document = dict[str, Any]


def chart_pod(cpu: str = "", memory: str = "") -> Document:
    """The pod of the chart's Deployment, with these limits or with none.

    Of what the chart says four things differ: podman has no probes and no ``preStop`` sleep, and ignores them; the pod is on the host's
    network, on free ports of the loopback device; and a server that ends is not started again, so that its end is seen.
    """
    (deployment,) = of_kind(made_by.template(f"--set=image.repository={IMAGE},image.tag=latest"), "Deployment")
    template = deployment["spec"]["template"]
    spec = {**template["spec"], "hostNetwork": True, "restartPolicy": "Never"}
    (container,) = spec["containers"]
    del container["ports"], container["resources"]
    if cpu:
        # The chart itself refuses less than it needs.
        container["resources"] = {kind: {"cpu": cpu, "memory": memory} for kind in ("requests", "limits")}
    listens = [variable for variable in container["env"] if variable["name"] in PORTS]
    for variable in listens:
        variable["value"] = f"127.0.0.1:{free_port()}"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME, "labels": template["metadata"]["labels"]}, "spec": spec}


class Pod:
    """One that runs; only one at a time."""

    def __init__(self, store: Store, document: Document) -> None:
        (container,) = document["spec"]["containers"]
        self._store = store
        self._name = f"{NAME}-{container['name']}"
        told = {variable["name"]: variable["value"] for variable in container["env"]}
        self.grpc, self.http = (told[name] for name in PORTS)
        self.drain_s = float(told["SENTIMENT_DRAIN_WAIT_S"]) + float(told["SENTIMENT_DRAIN_GRACE_S"])
        self.startup_s = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
        self._file = store.folder / "pod.yaml"
        self._file.write_text(yaml.safe_dump(document), encoding="utf-8")

    def start(self) -> Document:
        """Play it and wait; returns the line that the server logs when it is ready.

        Raises:
            RuntimeError: it ended, or is not ready in the time that the chart gives it.
        """
        self._store.podman("kube", "play", self._file, timeout_s=120)
        self._pid = int(self._inspect("{{.State.Pid}}"))
        until = time.monotonic() + self.startup_s
        while time.monotonic() < until and self._inspect("{{.State.Running}}") == "true":
            said: list[Document] = [json.loads(line) for line in self.log() if line.startswith("{")]
            for line in said:
                if line["event"] == "ready":
                    # Its path in each hierarchy; once it has ended nobody could tell.
                    self._groups = _groups(self._pid)
                    return line
            time.sleep(POLL_S)
        raise RuntimeError("it ended" if self._inspect("{{.State.Running}}") != "true" else f"not ready after {self.startup_s} s")

    def terminate(self) -> int:
        """SIGTERM to the server, as the kubelet sends it; returns its exit code."""
        self._store.podman("kill", "--signal", "TERM", self._name)
        return int(self._store.podman("wait", self._name, timeout_s=self.drain_s + 30))

    def remove(self) -> None:
        """End it if it runs; of one that never began nothing is left."""
        with suppress(subprocess.SubprocessError):
            self._store.podman("kube", "down", self._file)

    def try_to_write(self, *folders: str) -> dict[str, str]:
        """By folder, how the server's user fares who writes a file there: ``written`` or the error's name."""
        program = (
            "import errno, sys\nfor folder in sys.argv[1:]:\n    try:\n        open(folder + '/probe', 'w').close()\n"
            "        print(folder, 'written')\n    except OSError as error:\n        print(folder, errno.errorcode[error.errno])"
        )
        said = self._store.podman("exec", self._name, "python3", "-c", program, *folders)
        return dict(line.split() for line in said.splitlines())

    def status(self) -> dict[str, str]:
        """The server's /proc/PID/status."""
        lines = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii").splitlines()
        return {name: " ".join(value.split()) for name, _, value in (line.partition(":") for line in lines)}

    def cores(self) -> float:
        """The quota in force; 0: none."""
        if (unified := self._groups["cpu"] / "cpu.max").exists():
            quota, period = unified.read_text(encoding="ascii").split()
        else:
            quota, period = (self._figure("cpu", f"cpu.cfs_{part}_us") for part in ("quota", "period"))  # version 1
        return 0.0 if quota in ("max", "-1") else int(quota) / int(period)

    def memory_max(self) -> int:
        """The limit in force, in bytes."""
        found = self._figure("memory", "memory.max", "memory.limit_in_bytes")
        return 0 if found == "max" else int(found)

    def memory_peak(self) -> int:
        """The most that the container has had, in bytes, with what the kernel and the file cache have on its account."""
        return int(self._figure("memory", "memory.peak", "memory.max_usage_in_bytes"))

    def killed(self) -> int:
        """How many of its processes the kernel has killed for lack of memory."""
        words = self._figure("memory", "memory.events", "memory.oom_control").split()
        return int(words[words.index("oom_kill") + 1])

    def _figure(self, controller: str, *names: str) -> str:
        for name in names:
            if (path := self._groups[controller] / name).exists():
                return path.read_text(encoding="ascii").strip()
        raise FileNotFoundError(f"{self._groups[controller]} has none of {names}")

    def _inspect(self, field: str) -> str:
        return self._store.podman("inspect", "--format", field, self._name).strip()

    def log(self) -> list[str]:
        """What the server has said so far."""
        return self._store.podman("logs", self._name, with_errors=True).splitlines()


def _groups(pid: int) -> dict[str, Path]:
    """The folders of a process's cgroups: one for all in version 2, else one for each controller."""
    found = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = CGROUPS / controller / path.lstrip("/")
    unified = CGROUPS / found.pop("", Path()).relative_to(CGROUPS) if "" in found else CGROUPS
    return {"cpu": unified, "memory": unified, **found}
