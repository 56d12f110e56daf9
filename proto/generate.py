"""Generate the Python code of proto/ into a source root: ``python proto/generate.py OUTPUT`` (service/ in this repository)."""

import os
import sys
import sysconfig
from pathlib import Path

from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
SOURCES = ("sentiment/v1/sentiment.proto", "sentiment/oip/inference.proto")


def generate(output: Path) -> None:
    """Write ``*_pb2.py``, ``*_pb2_grpc.py`` and their stubs below ``output``.

    Raises:
        RuntimeError: protoc refused; it has printed why.
    """
    # protoc looks for the mypy-protobuf plugins on PATH; they stand beside this interpreter.
    os.environ["PATH"] = sysconfig.get_path("scripts") + os.pathsep + os.environ.get("PATH", "")
    well_known = Path(protoc.__file__).parent / "_proto"
    kinds = [f"--{kind}={output}" for kind in ("python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out")]
    status = protoc.main(["protoc", f"-I{PROTO}", f"-I{well_known}", *kinds, *SOURCES])
    if status:
        raise RuntimeError(f"protoc ended with status {status}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]))
