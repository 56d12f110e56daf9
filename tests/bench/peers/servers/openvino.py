"""OpenVINO in process, int8 weights with activations quantized as it runs, a batch a core at a time.

It cannot run our int8 graph (a scale for each row in QuantizeLinear). Tuned as documented: the fp32 graph with its weights compressed
to int8 by NNCF, which the CPU then multiplies by activations that it quantizes (docs.openvino.ai, "Weight Compression", "Dynamic
Quantization"); a stream with one thread for each core, which is what the hint THROUGHPUT means on these CPUs ("CPU Device").
"""

import threading
from collections.abc import Sequence

import nncf
import numpy as np
import openvino
import tokenizers

from tests.bench.peers.servers.engine import Engine, columns
from tests.bench.peers.servers.lines import serve
from tests.bench.peers.servers.options import Options


class OpenVino(Engine):
    """The bundle's fp32 graph in OpenVINO, with int8 weights."""

    def __init__(self, options: Options) -> None:
        super().__init__(options.bundle)
        graph = next(each for each in self.manifest["graphs"]["classify"] if each["precision"] == "fp32")
        self._inputs: list[str] = graph["inputs"]
        core = openvino.Core()
        self._model = core.compile_model(
            nncf.compress_weights(core.read_model(str(self.folder / graph["file"]))),
            "CPU",
            {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": options.instances, "INFERENCE_NUM_THREADS": options.instances},
        )
        # A request runs one batch at a time.
        self._requests = threading.local()

    def logits(self, rows: Sequence[tokenizers.Encoding]) -> list[list[float]]:
        """In one run."""
        if not hasattr(self._requests, "mine"):
            self._requests.mine = self._model.create_infer_request()
        arrays = columns(rows)
        found = self._requests.mine.infer({name: np.array(arrays[name], dtype=np.int64) for name in self._inputs})
        values: list[list[float]] = found["logits"].tolist()
        return values


if __name__ == "__main__":
    options = Options.read()
    serve(lambda: OpenVino(options), options.instances)
