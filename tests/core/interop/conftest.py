"""Environments of others' clients, which cannot stand in ours."""

from pathlib import Path

import pytest

from tests.environments import environment

# Its generated code wants protobuf 6 and has the same names as ours.
TRITONCLIENT = ("tritonclient[grpc,http]==2.73.0", "numpy>=2,<3")


@pytest.fixture(scope="session")
def tritonclient() -> Path:
    """The Python of an environment that has it."""
    return environment("tritonclient", TRITONCLIENT)
