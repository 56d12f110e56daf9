"""The memory of a server of one version of a model, and of one that serves an earlier version beside it.

    python -m tests.bench.two_versions FOLDER english/2 english/1

Prints the resident memory of each server in MB, idle after some texts of every length.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

READY_S_MAX = 600
# Texts of all lengths, so that every shape has run.
TEXTS = ["a good film " * times for times in (1, 4, 16, 64, 200)]


def resident_mb(bundles: Path, model: str, others: str) -> float:
    """Of a server of ``model`` and, separated by commas, ``others``, after some texts for each."""
    with tempfile.NamedTemporaryFile("w+") as log:
        command = [sys.executable, "-m", "sentiment", "serve", "--bundles", str(bundles), "--model", model, "--device", "cpu"]
        command += ["--models", others] if others else []
        environment = os.environ | {
            "SENTIMENT_GRPC_LISTEN": "127.0.0.1:0",
            "SENTIMENT_HTTP_LISTEN": "127.0.0.1:0",
            "SENTIMENT_LOG_FORMAT": "json",
        }
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            url = address(Path(log.name), server)
            for name in filter(None, (model, *others.split(","))):
                for text in TEXTS:
                    body = json.dumps({"text": text, "model": name, "priority": "PRIORITY_BULK"}).encode()
                    request = urllib.request.Request(f"{url}v1/classify", body, {"grpc-timeout": "60S"})
                    with urllib.request.urlopen(request, timeout=90) as answer:
                        answer.read()
            status = Path(f"/proc/{server.pid}/status").read_text()
            return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1000  # type: ignore[index]  # it has one
        finally:
            server.terminate()
            server.wait(60)


def address(log: Path, server: subprocess.Popen[bytes]) -> str:
    """Where a server that starts answers HTTP, once it is ready."""
    until = time.monotonic() + READY_S_MAX
    while time.monotonic() < until and server.poll() is None:
        if found := re.search(r'"viewer": "(http://[^"]+)"', log.read_text()):
            return found[1]
        time.sleep(0.5)
    raise RuntimeError(f"the server is not ready: {log.read_text()[-2000:]}")


def main() -> None:
    folder, model, others = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    alone, both = resident_mb(folder, model, ""), resident_mb(folder, model, others)
    print(f"{model} alone: {alone:.0f} MB; with {others}: {both:.0f} MB; {both - alone:.0f} MB more")


if __name__ == "__main__":
    main()
