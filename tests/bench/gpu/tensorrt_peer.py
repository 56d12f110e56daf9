"""TensorRT as a provider of ONNX Runtime, a peer. An engine is built for one shape of batches and runs no other."""

import contextlib
import importlib
from pathlib import Path

import onnxruntime

PROVIDER = "TensorrtExecutionProvider"
CUDA = "CUDAExecutionProvider"


class NoTensorRT(Exception):
    """TensorRT is missing, or runs no node of the graph; the message says which."""


def load(file: Path, rows: int, tokens: int, index: int) -> onnxruntime.InferenceSession:
    """Build an engine, which takes half a minute for BERT-base.

    Args:
        file: an fp16 graph with inputs [batch, sequence].
        rows: of each batch.
        tokens: of each row.
        index: the GPU's number.

    Raises:
        NoTensorRT: TensorRT is missing. ONNX Runtime raises its own errors if libraries are missing or the engine cannot be built.
    """
    if PROVIDER not in onnxruntime.get_available_providers():
        raise NoTensorRT(f"onnxruntime {onnxruntime.__version__} is built without {PROVIDER}")
    # The loader does not search the folder of a wheel's libraries; the wheel's module loads them. With --wheels it finds them.
    with contextlib.suppress(ImportError, OSError):
        importlib.import_module("tensorrt_libs")
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("batch", rows)
    options.add_free_dimension_override_by_name("sequence", tokens)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    device = {"device_id": str(index)}
    # TensorRT options use True and False, not 1 and 0.
    providers = [(PROVIDER, {**device, "trt_fp16_enable": "True"}), (CUDA, device)]
    # With its fallback, ONNX Runtime would silently run on CUDA if TensorRT does not load.
    session = onnxruntime.InferenceSession(str(file), options, providers, enable_fallback=0)
    if PROVIDER not in session.get_providers():
        raise NoTensorRT(f"{PROVIDER} did not load; the session has {', '.join(session.get_providers())}")
    if all(part.ep_name != PROVIDER for part in session.get_provider_graph_assignment_info()):
        raise NoTensorRT(f"{PROVIDER} runs no node of the graph")
    return session
