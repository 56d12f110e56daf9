"""An ONNX Runtime session over one graph. The only module that imports onnxruntime."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

# From 1.29 on, ONNX Runtime reports sessions and graph hashes to its maker unless told otherwise before it loads.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime  # after the line above

from sentiment.errors import BadBundle, OutOfMemory
from sentiment.model.tensors import Feeds

RUNTIME_VERSION: str = onnxruntime.__version__
_KNOWN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


# How ONNX Runtime says that an allocation failed; its exceptions have no class of their own for it.
_OUT_OF_MEMORY = ("failed to allocate memory", "bad_alloc", "bad allocation", "out of memory")


class Stop:
    """Asks a run to end. Heard between two nodes of the graph; the session stays good. For one run only: it cannot be taken back."""

    def __init__(self) -> None:
        self.options = onnxruntime.RunOptions()

    def ask(self) -> None:
        """End soon; from any thread."""
        self.options.terminate = True


class Session:
    """A classify graph, ready to run. ``run`` may be called from several threads at once; each run uses its own thread only."""

    def __init__(self, path: Path, provider: str = "CPUExecutionProvider", labels: int | None = None) -> None:
        """Load the graph.

        Args:
            path: the .onnx file.
            provider: an ONNX Runtime execution provider.
            labels: how many logits a row must have, None to accept any.

        Raises:
            BadBundle: not a graph this service can run, or the provider is not there.
        """
        options = onnxruntime.SessionOptions()
        # One thread a run, several runs at once: 1.8 times two cores' work, without the barriers of a shared pool.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Memory patterns are kept for every new shape and never dropped.
        options.enable_mem_pattern = False
        # What fails is raised, and logged by us; its own lines on standard error are no JSON.
        options.log_severity_level = 4
        if provider not in onnxruntime.get_available_providers():
            raise BadBundle(f"{path}: wants {provider}; this ONNX Runtime has {', '.join(onnxruntime.get_available_providers())}")
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=[provider])
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise BadBundle(f"{path}: ONNX Runtime cannot load it: {error}") from error
        self.inputs = [entry.name for entry in self._session.get_inputs()]
        self.output = self._session.get_outputs()[0].name
        self.provider = provider
        unknown = set(self.inputs) - set(_KNOWN_INPUTS)
        if unknown:
            raise BadBundle(f"{path}: has the inputs {', '.join(sorted(unknown))}; known are {', '.join(_KNOWN_INPUTS)}")
        shape = self._session.get_outputs()[0].shape
        if len(shape) != 2:
            raise BadBundle(f"{path}: its first output has the shape {shape}; wanted are logits [rows, labels]")
        width = shape[-1]
        if labels is not None and isinstance(width, int) and width != labels:
            raise BadBundle(f"{path}: gives {width} logits a row; the manifest has {labels} labels")

    def run(self, feeds: Feeds, stop: Stop | None = None) -> npt.NDArray[np.float32]:
        """Compute the logits, float32 [rows, labels]. The GIL is free meanwhile.

        Raises:
            OutOfMemory: there is not enough for this many rows of this length.
        """
        options = stop.options if stop is not None else None
        try:
            logits: npt.NDArray[np.float32] = self._session.run([self.output], feeds, options)[0]
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY):
                raise OutOfMemory(str(error)) from error
            raise
        return logits
