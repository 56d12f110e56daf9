"""ONNX Runtime sessions over a bundle's graphs. Only the session and device modules import onnxruntime."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnxruntime

from sentiment.errors import BadBundle, OutOfMemory
from sentiment.model.execute import Execute, here
from sentiment.model.lowest_priority import LowestPriority
from sentiment.model.tensors import Feeds, pad
from sentiment.model.tokenizer import Row

RUNTIME_VERSION: str = onnxruntime.__version__
_KNOWN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# The further inputs of an explain graph.
_SWITCHES = ("label", "alpha", "baseline_ids", "head_gate", "head_uniform")

# Parts of the messages of ONNX Runtime, cuBLAS and cuDNN after a failed allocation, which has no exception type of its own. The fifth
# comes from an arena at its limit.
_OUT_OF_MEMORY = (
    *("failed to allocate memory", "bad_alloc", "bad allocation", "out of memory"),
    *("is smaller than requested bytes", "status_alloc_failed"),
)


PAIRS_FIT = "sentiment.int8_pairs_fit"
"""The metadata key of an int8 graph whose products fit into the pairs of 16 bits that x86 without VNNI adds them in."""

# Of the threads that help a wide run: far below the runners' 10, so that they get an eighth of a core that a runner needs.
HELPER_NICENESS = 19

Providers = Sequence[str | tuple[str, dict[str, str]]]
"""Execution providers, with options or without. The first must run the graph; the others run the nodes that it does not support."""

Fed = Mapping[str, npt.NDArray[np.generic]]
"""The inputs of a run by name: Feeds or PackedFeeds."""


class Stop:
    """Stops a run between two nodes of its graph. The session stays usable. For one run only: it cannot be reset."""

    def __init__(self) -> None:
        self.options = onnxruntime.RunOptions()

    def ask(self) -> None:
        """Request the stop. May be called from any thread."""
        self.options.terminate = True


class Session:
    """A loaded classify graph. ``run`` may be called from several threads at once; each run computes in the calling thread only.

    ``run_wide`` computes in ``width`` threads and returns the same bits. The further threads have the lowest priority, and the calling
    thread does what they do not take, so it costs other runs little. If ``width`` is 1, there are no further threads.
    """

    # The device that it runs on; empty for the CPU.
    hardware = ""
    # How rows are laid out: padded to the longest, or packed one after the other.
    layout = "padded"
    # Seconds that the last run spent on copies to and from a device; always 0 on the CPU.
    copied_s = 0.0
    # Shapes (rows, length) that must run once before the first request, the largest first.
    cells: Sequence[tuple[int, int]] = ()
    width = 1
    # Whether each row of a batch runs by itself, without its padding. For graphs whose answers depend on the other rows, on the CPU only.
    rows_alone = False
    _known_inputs: tuple[str, ...] = _KNOWN_INPUTS
    _wide: onnxruntime.InferenceSession | None = None

    def __init__(
        self,
        path: Path,
        provider: str = "CPUExecutionProvider",
        logits: int | None = None,
        outside: Mapping[str, bytes] = MappingProxyType({}),
        pairs_fit: bool | None = None,
    ) -> None:
        """Load the graph.

        Args:
            path: the .onnx file.
            provider: an ONNX Runtime execution provider.
            logits: how many a row must have, that of ``mixed`` included; None accepts any.
            outside: the content of its external files, by name. ONNX Runtime maps any others into memory.
            pairs_fit: the manifest's, see ``GraphSpec``. None: the graph is loaded to read its metadata, and once more if they do not
                have ``PAIRS_FIT``.

        Raises:
            BadBundle: the service cannot run the graph, or the provider is missing.
        """
        session = load_graph(path, [provider], outside, pairs_fit=pairs_fit is not False)
        self.pairs_fit = PAIRS_FIT in session.get_modelmeta().custom_metadata_map if pairs_fit is None else pairs_fit
        if pairs_fit is None and not self.pairs_fit:
            del session  # two at once need twice the memory
            session = load_graph(path, [provider], outside)
        self._take(path, session, logits)
        self.provider = provider

    def use_threads(self, path: Path, threads: int, outside: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """Load the graph once more, for wide runs in ``threads`` threads. Does nothing where threads have no priorities of their own.

        It takes about as much memory as the graph has bytes.

        Raises:
            BadBundle: as for the first time.
        """
        if threads < 2 or sys.platform != "linux":
            return
        # ONNX Runtime's threads inherit the priority of the thread that makes them.
        maker = LowestPriority("load-wide", HELPER_NICENESS)
        try:
            maker.run(lambda: setattr(self, "_wide", load_graph(path, [self.provider], outside, threads, self.pairs_fit)))
        finally:
            maker.close()
        self.width = threads

    def use_one_thread(self) -> None:
        """Release what ``use_threads`` loaded."""
        self._wide, self.width = None, 1

    def _take(self, path: Path, session: onnxruntime.InferenceSession, logits: int | None) -> None:
        """Check that a loaded graph has the inputs and the first output of a classifier, and use it."""
        self._session = session
        self.inputs = [entry.name for entry in self._session.get_inputs()]
        self.output = self._session.get_outputs()[0].name
        unknown = set(self.inputs) - set(self._known_inputs)
        if unknown:
            raise BadBundle(f"{path}: has unknown inputs: {', '.join(sorted(unknown))}; supported are {', '.join(self._known_inputs)}")
        shape = self._session.get_outputs()[0].shape
        if len(shape) != 2:
            raise BadBundle(f"{path}: the first output must be logits [rows, labels], got the shape {shape}")
        width = shape[-1]
        if logits is not None and isinstance(width, int) and width != logits:
            raise BadBundle(f"{path}: returns {width} logits per row; the manifest says {logits}")

    def within(self, rows_at: Callable[[int], int]) -> None:
        """Set the row limit of each length. Only a session that captures runs needs it, to limit its cells."""

    def close(self) -> None:
        """Release the graph and its memory. The session cannot run after that."""
        self._session = self._wide = None

    def feeds(self, rows: Sequence[Row], pad_id: int, left: bool) -> Fed:
        """Lay rows out as the graph reads them. ``left``: padding stands before the text.

        The result may have more rows than ``rows``; the given rows come first.
        """
        return pad(rows, self.inputs, pad_id, left)

    def run(self, feeds: Fed, stop: Stop | None = None) -> npt.NDArray[np.float32]:
        """Compute the logits, float32 [rows, labels]. The GIL is free meanwhile.

        Raises:
            OutOfMemory: too little memory for this many rows of this length.
        """
        return self._logits(self._session, feeds, stop)

    def run_wide(self, feeds: Fed, stop: Stop | None = None) -> npt.NDArray[np.float32]:
        """As ``run``, in ``width`` threads."""
        return self._logits(self._wide or self._session, feeds, stop)

    def _logits(self, session: onnxruntime.InferenceSession, feeds: Fed, stop: Stop | None) -> npt.NDArray[np.float32]:
        options = stop.options if stop is not None else None
        runs = _each_alone(feeds) if self.rows_alone else [dict(feeds)]
        try:
            found = [session.run([self.output], one, options)[0] for one in runs]
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            if is_out_of_memory(error):
                raise OutOfMemory(str(error)) from error
            raise
        logits: npt.NDArray[np.float32] = found[0] if len(found) == 1 else np.concatenate(found)
        return logits


def _each_alone(feeds: Fed) -> Iterator[dict[str, npt.NDArray[np.generic]]]:
    """The inputs of each row by itself: from the first token that it reads to the last."""
    for row, mask in enumerate(feeds["attention_mask"]):
        read = np.flatnonzero(mask)
        span = slice(read[0], read[-1] + 1) if len(read) else slice(None)
        yield {name: array[row : row + 1, span] for name, array in feeds.items()}


class ExplainSession:
    """A loaded explain graph; docs/internals/bundle-format.md has its inputs and outputs. For several threads, as ``Session``.

    ``layers`` and ``heads`` are those of its attention, ``logits`` how many a row has, ``provider`` what runs it. ``hidden``:
    whether it has hidden states.
    """

    def __init__(
        self, path: Path, providers: Providers = ("CPUExecutionProvider",), outside: Mapping[str, bytes] = MappingProxyType({})
    ) -> None:
        """Load the graph. ``outside``: see ``Session``.

        Raises:
            BadBundle: not an explain graph, or the provider is missing.
            OutOfMemory: too little memory for it now.
        """
        try:
            self._session = load_graph(path, providers, outside)
        except BadBundle as error:
            if isinstance(error.__cause__, Exception) and is_out_of_memory(error.__cause__):
                raise OutOfMemory(str(error)) from error
            raise
        self.provider = str(self._session.get_providers()[0])
        shapes = {entry.name: entry.shape for entry in self._session.get_inputs()}
        given = {entry.name: entry.shape for entry in self._session.get_outputs()}
        self.outputs = tuple(given)
        missing = {*_SWITCHES} - shapes.keys()
        unknown = shapes.keys() - {*_SWITCHES, *_KNOWN_INPUTS}
        if missing or unknown or not {"logits", "embedding_dots"} <= given.keys():
            facts = {"missing inputs": missing, "unknown inputs": unknown, "missing outputs": {"logits", "embedding_dots"} - given.keys()}
            wrong = "; ".join(f"{fact}: {', '.join(sorted(names))}" for fact, names in facts.items() if names)
            raise BadBundle(f"{path}: not an explain graph: {wrong}")
        self.inputs = [name for name in shapes if name in _KNOWN_INPUTS]
        _, self.layers, self.heads = shapes["head_gate"]
        self.logits = given["logits"][1]
        # Graphs that were exported before 0.2 have none.
        self.hidden = all(f"hidden.{layer}" in given for layer in range(self.layers + 1))

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
            feeds: the ``inputs`` of the rows, each [rows, tokens].
            outputs: some of ``self.outputs``.
            label: the index of the label whose logit is differentiated, [rows].
            alpha: the interpolation of word embeddings between the baseline (0) and the text (1), [rows]; None: 1.
            baseline_ids: token ids of the baseline, [rows, tokens]; None: those of the text.
            head_gate: the factor of each head's attention, [rows, layers, heads]; None: 1.
            head_uniform: the part of each head's attention that is replaced by uniform attention, 0 to 1, same shape; None: 0.
            stop: can stop the run.
            execute: calls the run, possibly in another thread. Preparation that needs the GIL stays in the calling thread.

        Raises:
            OutOfMemory: too little memory for this many rows of this length.
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
            # The run allocates the output: only the graph knows the width of a head's queries.
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
    path: Path | bytes,
    providers: Providers,
    outside: Mapping[str, bytes] = MappingProxyType({}),
    threads: int = 1,
    pairs_fit: bool = False,
) -> onnxruntime.InferenceSession:
    """Load a graph from a file or from its bytes, for the first of ``providers``. The others run the nodes that it does not support.

    ``outside``: see ``Session``. ``threads``: of a run, the calling one included. ``pairs_fit``: see ``GraphSpec``; False is right for any
    graph, but slower for an int8 one.

    Raises:
        BadBundle: the graph cannot be loaded, or ONNX Runtime would not use the first provider.
    """
    named = "test graph" if isinstance(path, bytes) else str(path)
    provider = providers[0] if isinstance(providers[0], str) else providers[0][0]
    options = onnxruntime.SessionOptions()
    # Usually one thread a run and several runs at once: two runs on two cores do 1.8 times the work of one, without a pool's barriers.
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # ONNX Runtime keeps a memory pattern for each new shape and never frees it.
    options.enable_mem_pattern = False
    # Failures are raised, and the service logs them. The library's own lines on standard error are not JSON.
    options.log_severity_level = 4
    if outside:
        sizes = [len(content) for content in outside.values()]
        options.add_external_initializers_from_files_in_memory(list(outside), list(outside.values()), sizes)
    if provider not in onnxruntime.get_available_providers():
        raise BadBundle(f"{named}: needs {provider}; this ONNX Runtime has {', '.join(onnxruntime.get_available_providers())}")
    if not pairs_fit:
        # On x86 without VNNI, other int8 graphs overflow silently; this makes their products exact, and slower. Elsewhere: no effect.
        options.add_session_config_entry("session.x64quantprecision", "1")
    given = path if isinstance(path, bytes) else str(path)
    try:
        # Without its fallback, which prints to standard output and uses another provider.
        session = onnxruntime.InferenceSession(given, options, providers=list(providers), enable_fallback=0)
        # A name that is not UTF-8 fails when it is read.
        _ = [entry.name for entry in (*session.get_inputs(), *session.get_outputs())]
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise BadBundle(f"{named}: ONNX Runtime cannot load it: {error}") from error
    if session.get_providers()[0] != provider:
        raise BadBundle(f"{named}: ONNX Runtime could not start {provider} and would use {session.get_providers()[0]}")
    return session


def is_out_of_memory(error: Exception) -> bool:
    """Whether a run or a load failed because of too little memory."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY)
