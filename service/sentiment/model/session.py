"""ONNX Runtime sessions over a bundle's graphs. Only the modules of sessions and devices know onnxruntime."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnxruntime

from sentiment.errors import BadBundle, OutOfMemory
from sentiment.model.execute import Execute, here
from sentiment.model.tensors import Feeds, pad
from sentiment.model.tokenizer import Row

RUNTIME_VERSION: str = onnxruntime.__version__
_KNOWN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# What an explain graph reads beside them.
_SWITCHES = ("label", "alpha", "baseline_ids", "head_gate", "head_uniform")

# How ONNX Runtime, cuBLAS and cuDNN say that an allocation failed; there is no exception of its own for it. The fifth is the arena's at
# its limit.
_OUT_OF_MEMORY = (
    *("failed to allocate memory", "bad_alloc", "bad allocation", "out of memory"),
    *("is smaller than requested bytes", "status_alloc_failed"),
)


Fed = Mapping[str, npt.NDArray[np.generic]]
"""What a run is given: Feeds, or PackedFeeds."""


class Stop:
    """Asks a run to end. Heard between two nodes of the graph; the session stays good. For one job only: it cannot be taken back."""

    def __init__(self) -> None:
        self.options = onnxruntime.RunOptions()

    def ask(self) -> None:
        """End soon; from any thread."""
        self.options.terminate = True


class Session:
    """A classify graph, ready to run. ``run`` may be called from several threads at once; each run uses its own thread only."""

    # The device that it runs on; empty for the processor.
    hardware = ""
    # How rows are laid out for it: padded to the longest, or packed one behind the other.
    layout = "padded"
    # Seconds in which the last run copied to a device and back; there is none here.
    copied_s = 0.0
    # Rows and lengths that must be run once before texts are served, and those that should be, the largest first.
    cells: Sequence[tuple[int, int]] = ()
    ladder: Sequence[tuple[int, int]] = ()
    # To one of these rows are padded at least; empty: to any.
    lengths: Sequence[int] = ()
    _known_inputs: tuple[str, ...] = _KNOWN_INPUTS

    def __init__(
        self,
        path: Path,
        provider: str = "CPUExecutionProvider",
        labels: int | None = None,
        outside: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """Load the graph.

        Args:
            path: the .onnx file.
            provider: an ONNX Runtime execution provider.
            labels: how many logits a row must have, None to accept any.
            outside: files that it refers to, by name; what is not given is mapped into memory.

        Raises:
            BadBundle: not a graph this service can run, or the provider is not there.
        """
        self._take(path, load_graph(path, [provider], outside), labels)
        self.provider = provider

    def _take(self, path: Path, session: onnxruntime.InferenceSession, labels: int | None) -> None:
        """Use a loaded graph, if its inputs and its first output are a classifier's."""
        self._session = session
        self.inputs = [entry.name for entry in self._session.get_inputs()]
        self.output = self._session.get_outputs()[0].name
        unknown = set(self.inputs) - set(self._known_inputs)
        if unknown:
            raise BadBundle(f"{path}: has the inputs {', '.join(sorted(unknown))}; known are {', '.join(self._known_inputs)}")
        shape = self._session.get_outputs()[0].shape
        if len(shape) != 2:
            raise BadBundle(f"{path}: its first output has the shape {shape}; wanted are logits [rows, labels]")
        width = shape[-1]
        if labels is not None and isinstance(width, int) and width != labels:
            raise BadBundle(f"{path}: gives {width} logits a row; the manifest has {labels} labels")

    def within(self, rows_at: Callable[[int], int]) -> None:
        """Hear the most rows of a length that batches will have. What has no memory of its own need not care."""

    def close(self) -> None:
        """Give back the graph and its memory; nothing is run here any more."""
        self._session = None

    def feeds(self, rows: Sequence[Row], pad_id: int, left: bool) -> Fed:
        """Lay rows out as the graph reads them; ``left``: padding stands before a text.

        There may be more rows than those that are given, which come first.
        """
        return pad(rows, self.inputs, pad_id, left)

    def run(self, feeds: Fed, stop: Stop | None = None) -> npt.NDArray[np.float32]:
        """Compute the logits, float32 [rows, labels]. The GIL is free meanwhile.

        Raises:
            OutOfMemory: there is not enough for this many rows of this length.
        """
        options = stop.options if stop is not None else None
        try:
            logits: npt.NDArray[np.float32] = self._session.run([self.output], dict(feeds), options)[0]
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            if is_out_of_memory(error):
                raise OutOfMemory(str(error)) from error
            raise
        return logits


class ExplainSession:
    """An explain graph, ready to run; docs/internals/bundle-format.md says what it reads and gives. For several threads, as ``Session``.

    ``layers`` and ``heads`` are those of its attention, ``labels`` how many logits a row has.
    """

    def __init__(self, path: Path, provider: str = "CPUExecutionProvider", outside: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """Load the graph; ``outside`` as ``Session``.

        Raises:
            BadBundle: not an explain graph, or the provider is not there.
            OutOfMemory: there is not enough for it now.
        """
        try:
            self._session = load_graph(path, [provider], outside)
        except BadBundle as error:
            if isinstance(error.__cause__, Exception) and is_out_of_memory(error.__cause__):
                raise OutOfMemory(str(error)) from error
            raise
        shapes = {entry.name: entry.shape for entry in self._session.get_inputs()}
        given = {entry.name: entry.shape for entry in self._session.get_outputs()}
        self.outputs = tuple(given)
        missing = {*_SWITCHES} - shapes.keys()
        unknown = shapes.keys() - {*_SWITCHES, *_KNOWN_INPUTS}
        if missing or unknown or not {"logits", "embedding_dots"} <= given.keys():
            odd = ", ".join(sorted(missing | unknown)) or "no logits or embedding_dots"
            raise BadBundle(f"{path}: not an explain graph: {odd}; it reads {', '.join(shapes)} and gives {', '.join(given)}")
        self.inputs = [name for name in shapes if name in _KNOWN_INPUTS]
        _, self.layers, self.heads = shapes["head_gate"]
        self.labels = given["logits"][1]

    def run(
        self,
        feeds: Feeds,
        outputs: Sequence[str],
        label: npt.NDArray[np.int64],
        alpha: npt.NDArray[np.float32] | None = None,
        baseline_ids: npt.NDArray[np.int64] | None = None,
        head_gate: npt.NDArray[np.float32] | None = None,
        head_uniform: npt.NDArray[np.float32] | None = None,
        stop: Stop | None = None,
        execute: Execute = here,
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Compute ``outputs`` by name. The GIL is free meanwhile.

        Args:
            feeds: the rows' ``inputs``, each [rows, tokens].
            outputs: which of ``self.outputs``.
            label: whose logit is differentiated, [rows].
            alpha: how far word embeddings have gone from the baseline's to the text's, [rows]; None: 1, all of the way.
            baseline_ids: ids of the baseline, [rows, tokens]; None: those of the text.
            head_gate: what each head's attention is multiplied with, [rows, layers, heads]; None: 1.
            head_uniform: how much of it is made uniform, 0 to 1, likewise; None: 0.
            stop: ends the run when asked.
            execute: does the run, and only that, maybe in another thread; what has to be done for it with the GIL held is done here.

        Raises:
            OutOfMemory: there is not enough for this many rows of this length.
        """
        rows = len(feeds["input_ids"])
        switches = (rows, self.layers, self.heads)
        given: dict[str, npt.NDArray[np.generic]] = {
            "label": label,
            "alpha": np.ones(rows, np.float32) if alpha is None else alpha,
            "baseline_ids": feeds["input_ids"] if baseline_ids is None else baseline_ids,
            "head_gate": np.ones(switches, np.float32) if head_gate is None else head_gate,
            "head_uniform": np.zeros(switches, np.float32) if head_uniform is None else head_uniform,
        }
        binding = self._session.io_binding()
        for name, array in {**feeds, **given}.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name in outputs:
            # The run allocates it: the width of a head's queries is known to the graph alone.
            binding.bind_output(name)
        options = stop.options if stop is not None else None
        try:
            execute(lambda: self._session.run_with_iobinding(binding, options))
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            if is_out_of_memory(error):
                raise OutOfMemory(str(error)) from error
            raise
        return {name: value.numpy() for name, value in zip(outputs, binding.get_outputs(), strict=True)}


def load_graph(
    path: Path | bytes, providers: Sequence[str | tuple[str, dict[str, str]]], outside: Mapping[str, bytes] = MappingProxyType({})
) -> onnxruntime.InferenceSession:
    """Load a graph from a file or from its bytes, for the first of ``providers``; what that lacks, the others do.

    ``outside``: as ``Session``.

    Raises:
        BadBundle: it cannot be loaded, or ONNX Runtime would do without the first provider.
    """
    named = "a trial" if isinstance(path, bytes) else str(path)
    provider = providers[0] if isinstance(providers[0], str) else providers[0][0]
    options = onnxruntime.SessionOptions()
    # One thread a run, several runs at once: 1.8 times two cores' work, without the barriers of a shared pool.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # On x86 without VNNI the faster products of int8 sum pairs in 16 bits, which overflow in silence; elsewhere this changes nothing.
    options.add_session_config_entry("session.x64quantprecision", "1")
    # Memory patterns are kept for every new shape and never dropped.
    options.enable_mem_pattern = False
    # What fails is raised, and logged by us; its own lines on standard error are no JSON.
    options.log_severity_level = 4
    if outside:
        sizes = [len(content) for content in outside.values()]
        options.add_external_initializers_from_files_in_memory(list(outside), list(outside.values()), sizes)
    if provider not in onnxruntime.get_available_providers():
        raise BadBundle(f"{named}: wants {provider}; this ONNX Runtime has {', '.join(onnxruntime.get_available_providers())}")
    given = path if isinstance(path, bytes) else str(path)
    try:
        # Without its fallback, which prints to standard output and serves by another provider.
        session = onnxruntime.InferenceSession(given, options, providers=list(providers), enable_fallback=0)
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise BadBundle(f"{named}: ONNX Runtime cannot load it: {error}") from error
    if session.get_providers()[0] != provider:
        raise BadBundle(f"{named}: ONNX Runtime could not start {provider} and would use {session.get_providers()[0]}")
    return session


def is_out_of_memory(error: Exception) -> bool:
    """Whether a run or a load failed for want of memory."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY)
