"""A Hugging Face checkpoint: loading it with its weights rounded to fp16, saving them once, exporting them to ONNX.

With the families' adapters the only module of the export that knows torch and transformers.
"""

import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tokenizers
import torch
from numpy.typing import NDArray
from onnx import ModelProto
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from sentiment.model.tensors import Feeds
from sentiment_models.errors import BadCheckpoint, ModelsError
from sentiment_models.evaluation.metrics import Logits
from sentiment_models.export.families import FAMILIES, Family
from sentiment_models.export.graphs.graph import resolve_aliases, strip_varying
from sentiment_models.export.graphs.quantize import OPSET_MIN
from sentiment_models.export.manifest import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE, read_object, write_object
from sentiment_models.export.provenance import Json
from sentiment_models.export.spellings import without_spellings
from sentiment_models.export.verify import Explained
from sentiment_models.export.weights import Weights, check_weights, name_after

# What a bundle's manifest must have.
TOKENS_MIN = 8
# What transformers calls labels that nobody named.
UNNAMED = re.compile(r"LABEL_\d+")


class Checkpoint:
    """A classifier whose weights are fp16 numbers, computing in fp32: what every graph of a bundle must compute.

    ``tokenizer``: its own, without the spellings of a bundle.
    """

    def __init__(self, path: Path, max_tokens: int | None = None) -> None:
        """Load a checkpoint directory and round its weights; ``max_tokens``: read fewer tokens than it can.

        Raises:
            BadCheckpoint: it cannot be loaded, is of an unsupported family, lacks its head, its labels' names or its tokenizer, or
                has weights that fp16 cannot hold.
        """
        self.path = path
        config = _config(path)
        self.labels = _labels(config, path / CONFIG_FILE)
        self.architecture = str(config.get("model_type"))
        self.family = _family(self.architecture, path / CONFIG_FILE)
        self.tokenizer = _tokenizer(path / TOKENIZER_FILE)
        self._model = _load(path)
        limit = self.family.max_tokens(self._model.config)
        if max_tokens is not None and not TOKENS_MIN <= max_tokens <= limit:
            raise BadCheckpoint(f"{path}: {max_tokens} tokens a text are asked for; the limits are {TOKENS_MIN} and {limit}")
        self.max_tokens = max_tokens or limit
        self._check_vocabulary()

    def logits(self, feeds: Feeds) -> Logits:
        """Compute in torch, in fp32."""
        with torch.no_grad():
            logits: Logits = self._model(**{name: torch.from_numpy(array) for name, array in feeds.items()}).logits.numpy()
        return logits

    def explained(self, feeds: Feeds, label: NDArray[np.int64], alpha: NDArray[np.float32], baseline_ids: NDArray[np.int64]) -> Explained:
        """Compute in torch, in fp32, what the explain graph gives for the same feeds."""
        table = self._model.get_input_embeddings()
        words, base = (table(torch.from_numpy(ids)).detach() for ids in (feeds["input_ids"], baseline_ids))
        between = (base + torch.from_numpy(alpha)[:, None, None] * (words - base)).requires_grad_()
        # Not as inputs_embeds: some families count their positions by the ids.
        handle = table.register_forward_hook(lambda *_: between)
        try:
            found = self._model(**{name: torch.from_numpy(array) for name, array in feeds.items()}, output_attentions=True)
        finally:
            handle.remove()
        chosen = found.logits.gather(1, torch.from_numpy(label)[:, None]).sum()
        by_words, *by_attention = torch.autograd.grad(chosen, [between, *found.attentions])
        return Explained(
            logits=found.logits.detach().numpy(),
            attentions=[one.detach().numpy() for one in found.attentions],
            attention_gradients=[one.numpy() for one in by_attention],
            dots=torch.stack([(by_words * one).sum(-1) for one in (words, base)], -1).numpy(),
        )

    def save(self, folder: Path) -> Weights:
        """Write model.safetensors in fp16, config.json, and tokenizer.json without padding and truncation; return the weights."""
        config = self._model.config.to_diff_dict()
        config.pop("_name_or_path", None)
        write_object(folder / CONFIG_FILE, {**config, "dtype": "float16"})
        # A bundle's max_tokens rules, not what training cut or padded to.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.save(str(folder / TOKENIZER_FILE))
        halves = {name: tensor.half().contiguous() for name, tensor in self._model.state_dict().items()}
        save_file(halves, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        (folder / WEIGHTS_FILE).chmod(0o644)  # safetensors lets its owner alone read it; a container may run as another user
        return {name: tensor.numpy() for name, tensor in halves.items()}

    def to_onnx(self, weights: Weights) -> ModelProto:
        """Export to fp32 ONNX with the weights inside, named as in the checkpoint, with nothing that varies from run to run.

        Raises:
            BadCheckpoint: the graph would read other inputs than a server feeds.
        """
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer warns of each number that it fixes; parity tells whether it may
            path = Path(folder) / "model.onnx"
            self.family.write(self._model, OPSET_MIN, path)
            graph = onnx.load(path)
        resolve_aliases(graph)
        name_after(graph, weights)
        strip_varying(graph)
        inputs = [value.name for value in graph.graph.input]
        if sorted(inputs) != sorted(self.family.inputs):
            raise BadCheckpoint(f"{self.path}: the export reads {', '.join(inputs)}; wanted {', '.join(self.family.inputs)}")
        return graph

    def check_pairs(self) -> None:
        """Refuse to read pairs if the model is told of segments and its tokenizer tells none.

        Raises:
            BadCheckpoint: names the tokenizer and what is wrong with its template.
        """
        if self.family.segments and 1 not in self.tokenizer.encode("a", "b").type_ids:
            raise BadCheckpoint(
                f"{self.path / TOKENIZER_FILE}: gives the second text of a pair no segment id; its post_processor wants $B:1 for pairs"
            )

    def _check_vocabulary(self) -> None:
        last, rows = max(self.tokenizer.get_vocab().values(), default=0), int(self._model.config.vocab_size)
        if last >= rows:
            raise BadCheckpoint(
                f"{self.path / TOKENIZER_FILE}: has token ids up to {last}; the model knows {rows}; put the model's own tokenizer there"
            )


def _config(path: Path) -> dict[str, Json]:
    if not (path / CONFIG_FILE).is_file():
        raise BadCheckpoint(f"{path}: holds no {CONFIG_FILE}; wanted a checkpoint directory")
    try:
        return read_object(path / CONFIG_FILE)
    except ModelsError as error:
        raise BadCheckpoint(str(error)) from error


def _labels(config: Mapping[str, Json], path: Path) -> list[str]:
    found = config.get("id2label")
    names = {str(key): str(name) for key, name in found.items()} if isinstance(found, dict) else {}
    labels = [names.get(str(index), "") for index in range(len(names))]
    if len(labels) < 2 or not all(labels) or len(set(labels)) < len(labels) or any(map(UNNAMED.fullmatch, labels)):
        raise BadCheckpoint(
            f"{path}: names its labels {found}; wanted two or more names of their own, in the order of the model's logits, "
            'such as "id2label": {"0": "negative", "1": "positive"}'
        )
    return labels


def _family(name: str, path: Path) -> Family:
    if name not in FAMILIES:
        raise BadCheckpoint(f"{path}: model_type is {name}; exported are {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _load(path: Path) -> PreTrainedModel:
    model = _classifier(path, attn_implementation="eager")
    model.half().float()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise BadCheckpoint(f"{path}: {name} is not finite in fp16, whose largest number is 65504")
    return model


def _classifier(path: Path, **settings: str) -> PreTrainedModel:
    check_weights(str(path))
    try:
        model, report = AutoModelForSequenceClassification.from_pretrained(
            path, dtype=torch.float32, local_files_only=True, output_loading_info=True, **settings
        )
    except Exception as error:  # transformers and safetensors raise a dozen kinds for a damaged checkpoint
        raise BadCheckpoint(f"{path}: cannot be loaded as a classifier: {error}") from error
    if report["missing_keys"]:
        raise BadCheckpoint(f"{path}: lacks {', '.join(sorted(report['missing_keys']))}; wanted a fine-tuned classifier")
    classifier: PreTrainedModel = model.eval()
    return classifier


def load_classifier(path: Path) -> tuple[PreTrainedModel, Any]:  # transformers has no one type for its tokenizers
    """Load a fine-tuned classifier in fp32, in eval mode, and its tokenizer, as transformers has them.

    Raises:
        BadCheckpoint: there is none, it is damaged or of an unsupported family, or it lacks its head or its tokenizer.
    """
    _family(str(_config(path).get("model_type")), path / CONFIG_FILE)
    model = _classifier(path)
    try:
        return model, AutoTokenizer.from_pretrained(path, local_files_only=True)  # type: ignore[no-untyped-call]  # untyped there
    except Exception as error:  # the Rust side raises bare Exception
        raise BadCheckpoint(f"{path}: holds no tokenizer that can be loaded: {error}") from error


def base_tokenizer(base: str) -> Any:  # transformers has no one type for its tokenizers
    """Load the fast tokenizer of a base that is trained on: without the spellings of a bundle, for it will be added to, and saved.

    Raises whatever transformers does.
    """
    file = Path(base) / TOKENIZER_FILE
    known = {"tokenizer_object": without_spellings(file)} if file.is_file() else {}
    return AutoTokenizer.from_pretrained(base, use_fast=True, **known)  # type: ignore[no-untyped-call]  # untyped there


def _tokenizer(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        make = f'AutoTokenizer.from_pretrained("{path.parent}").save_pretrained("{path.parent}")'
        raise BadCheckpoint(f"{path}: is not there; with transformers and sentencepiece, {make} makes it from the older files")
    return without_spellings(path)


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
        BadCheckpoint: there is no checkpoint, or it does not name them.
    """
    return _labels(_config(path), path / CONFIG_FILE)
