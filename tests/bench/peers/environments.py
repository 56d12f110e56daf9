"""The measured peers, their tuning, and a virtual environment for each, made with pip."""

import importlib.metadata
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "build" / "peers"
INSTALL_S_MAX = 1800
# The same versions in all environments and in ours, so that only the server differs.
SHARED = tuple(f"{name}=={importlib.metadata.version(name)}" for name in ("onnxruntime", "tokenizers"))


class PeerFailed(Exception):
    """A peer cannot be installed, started or called; the message says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another server, or another way to run the model. Its module in ``servers`` explains its tuning.

    ``protocol``: how it is called (``in-process``: lines of JSON). ``short`` and ``mixed``: its largest batch of short texts and of texts
    of mixed lengths. ``ports``: additional ports. ``python``: the interpreter, if it needs a certain one. ``weights``: what it computes
    with instead of our graph; some of its answers may then differ from ours. ``environment``: of which peer, if it has none of its own.
    """

    name: str
    protocol: str
    packages: tuple[str, ...]
    short: int = 1
    mixed: int = 1
    ports: int = 0
    python: str = sys.executable
    weights: str = ""
    environment: str = ""

    @property
    def folder(self) -> Path:
        """Its environment."""
        return FOLDER / (self.environment or self.name)

    @property
    def interpreter(self) -> Path:
        """The environment's Python."""
        return self.folder / "bin" / "python"


_CTRANSLATE2 = (
    "ctranslate2==4.8.5",
    "fastapi==0.165.0",
    "uvicorn[standard]==0.54.0",
    "torch==2.13.0",
    "transformers==4.57.6",
    "safetensors>=0.6",
    "numpy>=2",
    SHARED[1],
)
# Tunings: the best that `tests/bench/peers/tune.py at 8eafeab` found. Good batching of short texts is bad for mixed ones, so each peer
# has two.
PEERS = (
    # Debian's Python: under CPython 3.11.7 PyTriton's workers do not start (multiprocessing's resource tracker has no _recursion_count).
    Peer("triton", "oip", ("nvidia-pytriton==0.7.0", *SHARED), short=8, ports=2, python="/usr/bin/python3.11"),
    Peer("fastapi", "http", ("fastapi==0.165.0", "uvicorn[standard]==0.54.0", *SHARED)),
    Peer("grpcaio", "grpc", (f"grpcio=={importlib.metadata.version('grpcio')}", "grpcio-tools", *SHARED)),
    Peer("ctranslate2_fastapi", "http", _CTRANSLATE2, weights="its own int8", environment="ctranslate2"),
    Peer("ctranslate2", "in-process", _CTRANSLATE2, 32, 32, weights="its own int8"),
)

# Peers that are not servers.
LIBRARIES = tuple(peer.name for peer in PEERS if peer.protocol == "in-process")
NOT_MEASURED = {
    "TEI": "comes as container images, which cannot be run here, and as Rust source; its ONNX backend takes batches of at most 8",
    "TorchServe": "not maintained since 2025 (pytorch/serve#3396); its server is Java, its workers are Python like MLServer's",
}


def find(name: str) -> Peer:
    """A peer by its name.

    Raises:
        PeerFailed: there is none.
    """
    for peer in PEERS:
        if peer.name == name:
            return peer
    raise PeerFailed(f"peer {name!r} is unknown; the peers are {', '.join(peer.name for peer in PEERS)}")


def install(peer: Peer) -> None:
    """Create its environment, unless it exists with these packages.

    Raises:
        PeerFailed: its Python is missing, or pip fails.
    """
    stamp = peer.folder / ".packages.json"
    if stamp.is_file() and json.loads(stamp.read_text()) == list(peer.packages):
        return
    print(f"installing {peer.name} in {stamp.parent.relative_to(ROOT)}", flush=True)
    _run(peer, [peer.python, "-m", "venv", "--clear", str(stamp.parent)])
    _run(peer, [str(peer.interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.packages])
    stamp.write_text(json.dumps(peer.packages))


def _run(peer: Peer, command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, timeout=INSTALL_S_MAX, capture_output=True, text=True)
    except OSError as error:
        raise PeerFailed(f"{peer.name}: {command[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"{peer.name}: {command[1:4]} took more than {INSTALL_S_MAX} s") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout).strip().splitlines()[-1:]
        raise PeerFailed(f"{peer.name}: {' '.join(command[1:4])} failed: {' '.join(last)}") from error


def version(peer: Peer) -> str:
    """The name and version of the measured package, the first of its packages."""
    return peer.packages[0].replace("==", " ").replace("[standard]", "")
