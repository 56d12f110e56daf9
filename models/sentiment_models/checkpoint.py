"""A Hugging Face checkpoint: loading it with its weights rounded to fp16, saving them once, exporting them to ONNX.

The only module of the export that knows torch and transformers.
"""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import tokenizers
import torch
from onnx import ModelProto
from optimum.exporters.onnx.convert import export_pytorch
from optimum.exporters.onnx.model_configs import BertOnnxConfig
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel

from sentiment.model.tensors import Feeds
from sentiment_models.errors import BadCheckpoint
from sentiment_models.graph import resolve_aliases, strip_varying
from sentiment_models.manifest import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE, write_object
from sentiment_models.metrics import Logits
from sentiment_models.quantize import OPSET_MIN
from sentiment_models.weights import Weights, name_after

# Families whose export, quantisation and padding on the right are shown; others need that first (XLNet pads left, for one).
FAMILIES = {"bert": BertOnnxConfig}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Checkpoint:
    """A classifier whose weights are fp16 numbers, computing in fp32: what every graph of a bundle must compute."""

    def __init__(self, path: Path) -> None:
        """Load a checkpoint directory and round its weights.

        Raises:
            BadCheckpoint: it cannot be loaded, is of an unsupported family, lacks its head, or has weights that fp16 cannot hold.
        """
        self.path = path
        self._model = _load(path)
        config = self._model.config
        self.architecture: str = config.model_type
        self.labels: list[str] = [(config.id2label or {})[index] for index in range(config.num_labels)]
        self.max_tokens = int(config.max_position_embeddings)

    def logits(self, feeds: Feeds) -> Logits:
        """Compute in torch, in fp32."""
        with torch.no_grad():
            logits: Logits = self._model(**{name: torch.from_numpy(array) for name, array in feeds.items()}).logits.numpy()
        return logits

    def save(self, folder: Path) -> Weights:
        """Write model.safetensors in fp16, config.json, and tokenizer.json without padding and truncation; return the weights.

        Raises:
            BadCheckpoint: there is no tokenizer.json.
        """
        config = self._model.config.to_diff_dict()
        config.pop("_name_or_path", None)
        write_object(folder / CONFIG_FILE, {**config, "dtype": "float16"})
        # A bundle's max_tokens rules, not what training cut or padded to.
        tokenizer = _tokenizer(self.path / TOKENIZER_FILE)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.save(str(folder / TOKENIZER_FILE))
        halves = {name: tensor.half().contiguous() for name, tensor in self._model.state_dict().items()}
        save_file(halves, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        (folder / WEIGHTS_FILE).chmod(0o644)  # safetensors lets its owner alone read it; a container may run as another user
        return {name: tensor.numpy() for name, tensor in halves.items()}

    def to_onnx(self, weights: Weights) -> ModelProto:
        """Export to fp32 ONNX with the weights inside, named as in the checkpoint, with nothing that varies from run to run.

        Raises:
            BadCheckpoint: the graph would read other inputs than a server feeds.
        """
        config = FAMILIES[self.architecture](self._model.config, task="text-classification")
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer warns of each number that it fixes; parity tells whether it may
            path = Path(folder) / "model.onnx"
            export_pytorch(self._model, config, OPSET_MIN, path)
            graph = onnx.load(path)
        resolve_aliases(graph)
        name_after(graph, weights)
        strip_varying(graph)
        inputs = [value.name for value in graph.graph.input]
        if sorted(inputs) != sorted(INPUTS):
            raise BadCheckpoint(f"{self.path}: the export reads {', '.join(inputs)}; wanted {', '.join(INPUTS)}")
        return graph


def _load(path: Path) -> PreTrainedModel:
    if not (path / CONFIG_FILE).is_file():
        raise BadCheckpoint(f"{path}: holds no {CONFIG_FILE}; wanted a checkpoint directory")
    try:
        model, report = AutoModelForSequenceClassification.from_pretrained(
            path, attn_implementation="eager", dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # transformers and safetensors raise a dozen kinds for a damaged checkpoint
        raise BadCheckpoint(f"{path}: cannot be loaded as a classifier: {error}") from error
    family = model.config.model_type
    if family not in FAMILIES:
        raise BadCheckpoint(f"{path}: is a {family}; exported are {', '.join(FAMILIES)}")
    if report["missing_keys"]:
        raise BadCheckpoint(f"{path}: lacks {', '.join(sorted(report['missing_keys']))}; wanted a fine-tuned classifier")
    model = model.eval().half().float()
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise BadCheckpoint(f"{path}: {name} is not finite in fp16, whose largest number is 65504")
    classifier: PreTrainedModel = model
    return classifier


def _tokenizer(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise BadCheckpoint(f"{path}: not a tokenizer: {error}") from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: figures that land in a manifest must not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def label_names(path: Path) -> list[str]:
    """Read the labels of a checkpoint, in the order of their indices, without its weights.

    Raises:
        BadCheckpoint: there is no checkpoint.
    """
    try:
        names = PretrainedConfig.from_pretrained(path, local_files_only=True).id2label or {}
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{path}: holds no {CONFIG_FILE} that can be read: {error}") from error
    return [names[index] for index in sorted(names)]
