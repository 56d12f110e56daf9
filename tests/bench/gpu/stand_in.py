"""A CPU in a GPU's place, to try the whole script without one: ``python -m tests.bench.gpu.stand_in serve ...`` is such a server.

All of the way of a GPU's batch is gone, but for capturing runs and for packed attention, which only CUDA has.
"""

import sys

from sentiment.cli.main import main
from sentiment.lifecycle import loading
from sentiment.model.gpu.device_session import prove
from sentiment.model.gpu.devices import Accelerator, Device, Found, find_devices

STAND_IN = Device("cuda:0", 0, Accelerator("CPUExecutionProvider", "cpu", graphs=True), "a CPU in a GPU's place")


def device_of(name: str) -> Device:
    """The measured device, tested.

    Raises:
        BadSettings: it is not there.
    """
    if name == "cpu":
        return STAND_IN
    return find_devices(name, prove).devices[0]


if __name__ == "__main__":
    loading.find_devices = lambda wanted, prove: Found((STAND_IN,))  # type: ignore[attr-defined]  # the stand-in
    sys.exit(main(sys.argv[1:]))
