"""Generate code and Envoy's descriptor from proto/: ``make proto``. Needs what proto/requirements.txt names."""

import os
import sys
import sysconfig
from pathlib import Path

from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
WELL_KNOWN = Path(protoc.__file__).parent / "_proto"
SOURCES = ("sentiment/v1/sentiment.proto", "sentiment/oip/inference.proto")
ERROR_DETAILS = "google/rpc/error_details.proto"


def generate(output: Path) -> None:
    """Write ``*_pb2.py``, ``*_pb2_grpc.py`` and their stubs below ``output``.

    Raises:
        RuntimeError: protoc failed; it has printed the reason.
    """
    # protoc looks for the mypy-protobuf plugins on PATH. They are installed next to this interpreter.
    os.environ["PATH"] = sysconfig.get_path("scripts") + os.pathsep + os.environ.get("PATH", "")
    kinds = [f"--{kind}={output}" for kind in ("python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out")]
    _protoc(["protoc", f"-I{PROTO}", f"-I{WELL_KNOWN}", *kinds, *SOURCES])


def describe(file: Path) -> None:
    """Write the descriptor with which Envoy transcodes JSON: the services, and the messages of error details.

    Raises:
        RuntimeError: protoc failed; it has printed the reason.
    """
    command = ["protoc", f"-I{PROTO}", f"-I{WELL_KNOWN}", "--include_imports", f"--descriptor_set_out={file}", *SOURCES, ERROR_DETAILS]
    _protoc(command)


def _protoc(command: list[str]) -> None:
    status = protoc.main(command)
    if status:
        raise RuntimeError(f"protoc failed with exit status {status}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]))
    describe(Path(sys.argv[2]))
