"""A real Prometheus on a free local port. It scrapes a real server every second and evaluates the real rules."""

import json
import subprocess
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

import yaml

from tests.deploy.alerts.expressions import RULES


class Prometheus:
    """A context manager; its data are in ``folder``."""

    def __init__(self, folder: Path, target: str) -> None:
        """``folder``: an empty one; ``target``: the HTTP address of the server."""
        scraped = {"targets": [target], "labels": {"namespace": "default", "pod": "pod-a"}}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "sentiment", "static_configs": [scraped]}],
        }
        self._config = folder / "prometheus.yaml"
        self._config.write_text(yaml.safe_dump(config))
        self._command = ["prometheus", f"--config.file={self._config}", f"--storage.tsdb.path={folder / 'data'}"]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([*self._command, "--web.listen-address=127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        lines = []
        for line in self._process.stderr:
            lines.append(line)
            if '"Listening on" address=' in line:
                self.url = "http://" + line.strip().rpartition("address=")[2]
            if "ready to receive web requests" in line:
                break
        else:
            raise RuntimeError(f"prometheus ended with {self._process.wait()}: {''.join(lines[-3:])}")
        # A full pipe would block it.
        self._reader = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def query(self, expression: str) -> list[float]:
        """The current values of an expression, of each series.

        Raises:
            urllib.error.HTTPError: the expression is not PromQL.
        """
        return [float(series["value"][1]) for series in self._get("query", query=expression)["result"]]

    def rules(self) -> list[dict[str, Any]]:
        """All rules with their health and last error."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **arguments: object) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(arguments)}", timeout=10) as response:
            answer: dict[str, Any] = json.load(response)["data"]
        return answer
