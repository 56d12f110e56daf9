"""A Hugging Face checkpoint: load it with weights rounded to fp16, export it to ONNX; also if a bundle stores them in int8.

Only this module and the adapters of the families use torch and transformers in the export.
"""

import copy
import logging
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tokenizers
import torch
from numpy.typing import NDArray
from onnx import ModelProto
from safetensors.numpy import load_file, save_file
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from sentiment.model.bundle import parse_manifest
from sentiment.model.tensors import Feeds
from sentiment_models.errors import BadCheckpoint
from sentiment_models.evaluation.metrics import Logits
from sentiment_models.export.families import FAMILIES, Family
from sentiment_models.export.golden import GOLDEN_TEXTS
from sentiment_models.export.graphs.graph import resolve_aliases, strip_varying
from sentiment_models.export.graphs.quantize import INT8, OPSET_MIN
from sentiment_models.export.kinds import tokenizer_files
from sentiment_models.export.labels import check_folder, labels_of, outputs_of, read_config
from sentiment_models.export.manifest import CONFIG_FILE, MANIFEST_FILE, TOKENIZER_FILE, WEIGHTS_FILE, read_object, write_object
from sentiment_models.export.modernbert import as_version_4
from sentiment_models.export.positions import TOKENIZER_CONFIG, tokens_of
from sentiment_models.export.spellings import without_spellings
from sentiment_models.export.verify import Explained
from sentiment_models.export.weights import Weights, check_weights, dithered, name_after, real, stored_tensors

# transformers 4.57.3 to 4.57.6 warn of Mistral's regular expression in any large vocabulary, such as one with spellings, that they saved,
# and of the class that transformers 5 has instead of PreTrainedTokenizerFast.
BACKEND = "TokenizersBackend"
LAYER = re.compile(r"\.\d+\.")
logging.getLogger("transformers.tokenization_utils_base").addFilter(
    lambda record: not any(words in record.getMessage() for words in ("fix_mistral_regex", BACKEND))
)


class Checkpoint:
    """A classifier with fp16 weights that computes in fp32, the reference for a bundle's int8 graph.

    ``with_weights`` gives the reference for the other graphs, whose weights are those that the bundle stores.

    ``tokenizer`` is the checkpoint's own, without the spellings of a bundle.
    """

    def __init__(self, path: Path, max_tokens: int | None = None, labels: Sequence[str] = (), tokenizer: Path | None = None) -> None:
        """Load a checkpoint directory and round its weights.

        Args:
            path: the directory.
            max_tokens: read no more than these; None: as many as the model reads.
            labels: names for the outputs, in their order; empty: those of its config.json.
            tokenizer: the folder of the tokenizer; None: ``path``.

        Raises:
            BadCheckpoint: the checkpoint cannot be loaded, is of an unsupported family, lacks its head, the names of its labels or its
                tokenizer, has weights outside of the range of fp16, or reads fewer tokens than ``max_tokens``.
        """
        self.path = path
        config = read_config(path)
        self.labels = list(labels) or labels_of(config, path / CONFIG_FILE)
        self.architecture = str(config.get("model_type"))
        self.family = family_of(self.architecture, path / CONFIG_FILE)
        self._tokenizer_file = (tokenizer or path) / TOKENIZER_FILE
        self.tokenizer = _tokenizer(tokenizer or path)
        # The bundle's max_tokens applies, not the truncation and padding of training.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._check_reading()
        self._model = _load(path)
        self._model.config.id2label = dict(enumerate(self.labels))
        self._model.config.label2id = {label: index for index, label in enumerate(self.labels)}
        self.reads = tokens_of(self._model.config.to_dict(), tokenizer or path, max_tokens)
        self._check_vocabulary()

    def logits(self, feeds: Feeds) -> Logits:
        """Compute in torch, in fp32."""
        with torch.no_grad():
            logits: Logits = self._model(**{name: torch.from_numpy(array) for name, array in feeds.items()}).logits.numpy()
        return logits

    def explained(self, feeds: Feeds, label: NDArray[np.int64], alpha: NDArray[np.float32], baseline_ids: NDArray[np.int64]) -> Explained:
        """Compute in torch, in fp32, the outputs of the explain graph for the same feeds."""
        given = {name: torch.from_numpy(array) for name, array in feeds.items()}
        with between(self._model, given["input_ids"], torch.from_numpy(baseline_ids), torch.from_numpy(alpha)) as (point, ends):
            found = self._model(**given, output_attentions=True, output_hidden_states=True)
        chosen = found.logits.gather(1, torch.from_numpy(label)[:, None]).sum()
        by_words, *by_attention = torch.autograd.grad(chosen, [point, *found.attentions])
        return Explained(
            logits=found.logits.detach().numpy(),
            attentions=[one.detach().numpy() for one in found.attentions],
            attention_gradients=[one.numpy() for one in by_attention],
            hidden=[one.detach().numpy() for one in found.hidden_states],
            dots=torch.stack([(by_words * one).sum(-1) for one in ends], -1).numpy(),
        )

    @property
    def max_tokens(self) -> int:
        """How many tokens of a text are read, special ones included."""
        return self.reads.tokens

    @property
    def heads(self) -> int:
        """The number of heads of a layer."""
        return int(self._model.config.num_attention_heads)

    @property
    def weights(self) -> Weights:
        """The weights in fp16."""
        return {name: tensor.half().contiguous().numpy() for name, tensor in self._model.state_dict().items()}

    @classmethod
    def of_bundle(cls, bundle: Path) -> "Checkpoint":
        """Load a bundle's weights as they are stored, some of them in int8. Raises as the constructor does."""
        manifest = parse_manifest((bundle / MANIFEST_FILE).read_bytes(), bundle / MANIFEST_FILE)
        return cls(bundle, labels=outputs_of(manifest.labels, manifest.mixed)).with_weights(load_file(bundle / WEIGHTS_FILE))

    def with_weights(self, stored: Weights) -> "Checkpoint":
        """Return a copy that computes with the weights that a bundle stores."""
        other = copy.copy(self)
        other._model = copy.deepcopy(self._model)
        other._model.load_state_dict({name: torch.from_numpy(array) for name, array in real(stored).items()})
        return other

    def save(self, folder: Path) -> None:
        """Write config.json, and tokenizer.json without padding and truncation."""
        config = self._model.config.to_diff_dict()
        config.pop("_name_or_path", None)
        write_object(folder / CONFIG_FILE, {**config, "dtype": "float16"})
        self.tokenizer.save(str(folder / TOKENIZER_FILE))

    def to_onnx(self, weights: Weights) -> ModelProto:
        """Export to fp32 ONNX with the weights inside, named as in the checkpoint. Repeated exports give equal bytes.

        Raises:
            BadCheckpoint: the graph has other inputs than the service feeds.
        """
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer warns of each number that it makes constant; the parity check covers that
            path = Path(folder) / "model.onnx"
            self.family.write(self._model, OPSET_MIN, path)
            graph = onnx.load(path)
        resolve_aliases(graph)
        name_after(graph, weights)
        strip_varying(graph)
        inputs = [value.name for value in graph.graph.input]
        if sorted(inputs) != sorted(self.family.inputs):
            raise BadCheckpoint(f"{self.path}: the exported graph must read {', '.join(self.family.inputs)}, got {', '.join(inputs)}")
        return graph

    def check_pairs(self) -> None:
        """Check that the tokenizer marks the second text of a pair if the model has segments.

        Raises:
            BadCheckpoint: it does not. Names the tokenizer and the fix of its template.
        """
        if self.family.segments and 1 not in self.tokenizer.encode("a", "b").type_ids:
            raise BadCheckpoint(
                f"{self._tokenizer_file}: the second text of a pair has no segment id 1; use $B:1 for pairs in its post_processor"
            )

    def _check_reading(self) -> None:
        """Check that tokenizer.json gives the tokens that the model was trained on: transformers may change it by its own configuration."""
        try:
            special = self.tokenizer.encode("").ids
            self.tokenizer.encode_batch(list(GOLDEN_TEXTS))
        except Exception as error:  # the Rust side raises bare Exception
            raise BadCheckpoint(f"{self._tokenizer_file}: cannot tokenize a text: {one_line(error)}") from error
        if not special:
            raise BadCheckpoint(
                f"{self._tokenizer_file}: adds no special token to a text, and the classifier reads one, such as [CLS]; set post_processor "
                "(transformers 5 adds it when it reads a RemBERT, and does not save that)"
            )
        folder = self._tokenizer_file.parent
        if not (self._tokenizer_file.is_file() and (folder / TOKENIZER_CONFIG).is_file()):
            return
        try:
            theirs = _fast_tokenizer(folder).backend_tokenizer
        except Exception:  # of another library: what it cannot read it does not change
            return
        theirs.no_truncation()
        theirs.no_padding()
        for text in GOLDEN_TEXTS:
            if theirs.encode(text).ids != self.tokenizer.encode(text).ids:
                raise BadCheckpoint(
                    f"{self._tokenizer_file}: gives {text!r} other tokens than transformers does with {TOKENIZER_CONFIG} (do_lower_case?); "
                    f'make it again: AutoTokenizer.from_pretrained("{folder}").save_pretrained("{folder}")'
                )

    def _check_vocabulary(self) -> None:
        last, rows = max(self.tokenizer.get_vocab().values(), default=0), int(self._model.config.vocab_size)
        if last >= rows:
            raise BadCheckpoint(
                f"{self._tokenizer_file}: has token ids up to {last}, but the model has only {rows}; use the model's own tokenizer"
            )


def family_of(name: str, path: Path) -> Family:
    """The family of a model_type. ``path``: of the model, for the error.

    Raises:
        BadCheckpoint: the family is not supported. Names those that are.
    """
    if name not in FAMILIES:
        raise BadCheckpoint(f"{path}: model_type must be one of {', '.join(FAMILIES)}, got {name}")
    return FAMILIES[name]


def _load(path: Path) -> PreTrainedModel:
    model = _classifier(path, attn_implementation="eager")
    model.half().float()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    for name, tensor in model.state_dict().items():
        if tensor.isnan().any():
            raise BadCheckpoint(f"{path}: {name} has values that are not numbers (NaN); take a checkpoint of before its training failed")
        if tensor.isinf().any():
            raise BadCheckpoint(f"{path}: {name} has numbers over 65504, the largest of float16, in which a bundle stores weights")
    return model


def _classifier(path: Path, **settings: Any) -> PreTrainedModel:
    check_weights(str(path))
    try:
        model, report = from_pretrained(path, dtype=torch.float32, local_files_only=True, output_loading_info=True, **settings)
    except BadCheckpoint:
        raise
    except Exception as error:  # transformers and safetensors raise a dozen kinds for a damaged checkpoint
        if any("Weights only load failed" in str(one) for one in _causes(error)):
            raise BadCheckpoint(
                f"{path}: {', '.join(file.name for file in sorted(path.glob('*.bin')))} holds more than tensors, and reading it would run "
                "code; if you trust it, load the model where it was trained and save it again, as .safetensors: model.save_pretrained(DIR)"
            ) from error
        raise BadCheckpoint(f"{path}: cannot be loaded as a classifier: {one_line(error)}") from error
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"]))
        raise BadCheckpoint(f"{path}: not a fine-tuned classifier: the weights lack {missing}")
    # Such as a pooler that the family's classifier does not read may be left; a layer may not.
    if left := sorted(name for name in report["unexpected_keys"] if name.startswith(f"{model.base_model_prefix}.") and LAYER.search(name)):
        raise BadCheckpoint(f"{path}: the weights have {left[0]} and {len(left) - 1} more, for which {CONFIG_FILE} has no layer")
    classifier: PreTrainedModel = model.eval()
    return classifier


@contextmanager
def between(
    model: Any, ids: torch.Tensor, baseline: torch.Tensor, alpha: torch.Tensor
) -> Iterator[tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]]:  # Any: transformers has no one type for its models
    """Let a model read, for its ids, embeddings between those of a baseline (alpha 0) and of the ids (1).

    Yields:
        The embeddings that it reads, of which gradients can be taken, and both ends: of the ids and of the baseline.
    """
    table = model.get_input_embeddings()
    words, base = (table(one).detach() for one in (ids, baseline))
    point = (base + alpha[:, None, None] * (words - base)).requires_grad_()
    # By a hook and not as inputs_embeds, because some families derive positions from the ids.
    handle = table.register_forward_hook(lambda *_: point)
    try:
        yield point, (words, base)
    finally:
        handle.remove()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def one_line(error: Exception) -> str:
    """The message of another library in one line."""
    return " ".join(str(error).split())


def save_weights(stored: Weights, path: Path) -> None:
    """Write a .safetensors file that everyone may read."""
    save_file(dict(stored), path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors makes it readable for its owner only; a container may run as another user


def config_of(path: str | Path, **settings: Any) -> PretrainedConfig:
    """Call ``from_pretrained`` of transformers' AutoConfig, also for what transformers 5 has saved.

    Raises:
        BadCheckpoint: it was saved by version 5 and says what version 4 cannot compute.
        Exception: whatever transformers raises.
    """
    config: PretrainedConfig = AutoConfig.from_pretrained(path, **settings)
    if config.model_type == "modernbert":
        as_version_4(config, str(Path(path) / CONFIG_FILE))
    return config


def from_pretrained(
    path: str | Path, config: PretrainedConfig | None = None, kind: Any = None, dither: int | None = None, **settings: Any
) -> Any:
    """Call ``from_pretrained`` of transformers, also for a bundle, whose weights are in int8.

    Args:
        path: a folder.
        config: instead of that of ``path``.
        kind: a class of transformers; None: the classifier of the config's family.
        dither: of weights in int8, for training, see ``dithered``; None: as they are.
        settings: further arguments.

    Any: transformers has no one type for its models.

    Raises:
        BadCheckpoint: the weights are in a damaged .safetensors file.
        Exception: whatever transformers raises, and ``KeyError`` for an unknown family.
    """
    config = config or config_of(path)
    kind = kind or MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
    file = Path(path) / WEIGHTS_FILE
    if not file.is_file() or not any(name.endswith(INT8) for name in stored_tensors(file)):
        return kind.from_pretrained(path, config=config, **settings)
    weights = real(load_file(file)) if dither is None else dithered(load_file(file), dither)
    state = {name: torch.from_numpy(array) for name, array in weights.items()}
    return kind.from_pretrained(None, config=config, state_dict=state, **settings)


@contextmanager
def loading(base: str, what: str) -> Iterator[str]:
    """Yield the family of a base's folder. ``what``: the base is to be loaded as this within.

    Raises:
        BadCheckpoint: the folder is not one of a model, its weights are damaged, or whatever transformers raised.
    """
    check_folder(Path(base))
    check_weights(base)
    try:
        yield str(read_object(Path(base) / CONFIG_FILE).get("model_type"))
    except BadCheckpoint:
        raise
    except Exception as error:  # transformers and safetensors raise a dozen kinds for a damaged checkpoint
        raise BadCheckpoint(f"{base}: cannot be loaded as {what}: {error}") from error


def load_classifier(path: Path) -> tuple[PreTrainedModel, Any]:  # transformers has no one type for its tokenizers
    """Load a fine-tuned classifier in fp32 and in eval mode, and its tokenizer, as transformers objects.

    Raises:
        BadCheckpoint: the checkpoint does not exist, is damaged or of an unsupported family, or lacks its head or its tokenizer.
    """
    family_of(str(read_config(path).get("model_type")), path / CONFIG_FILE)
    model = _classifier(path)
    try:
        return model, _fast_tokenizer(path)
    except Exception as error:  # the Rust side raises bare Exception
        raise BadCheckpoint(f"{path}: the tokenizer cannot be loaded: {error}") from error


def base_tokenizer(base: str) -> Any:  # transformers has no one type for its tokenizers
    """Load the fast tokenizer of a base for training, without the spellings of a bundle, so that it can be extended and saved.

    Raises the exceptions of transformers.
    """
    file = Path(base) / TOKENIZER_FILE
    known = {"tokenizer_object": without_spellings(file)} if file.is_file() else {}
    return _fast_tokenizer(Path(base), **known)


def _fast_tokenizer(folder: Path, **settings: Any) -> Any:  # transformers has no one type for its tokenizers
    """Load a tokenizer, also as transformers 5 saves it: the class that belongs to no family and further tokens have other names there."""
    file = folder / TOKENIZER_CONFIG
    saved = read_object(file) if file.is_file() else {}
    further = saved.get("extra_special_tokens")
    if isinstance(further, list):
        settings = {"extra_special_tokens": {}, "additional_special_tokens": further, **settings}
    kind = PreTrainedTokenizerFast if saved.get("tokenizer_class") == BACKEND else AutoTokenizer
    return kind.from_pretrained(folder, local_files_only=True, **settings)


def _tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """Read tokenizer.json, or let transformers make it from the older files of a tokenizer."""
    if (folder / TOKENIZER_FILE).is_file():
        return without_spellings(folder / TOKENIZER_FILE)
    if not tokenizer_files(folder):
        raise BadCheckpoint(f"{folder / TOKENIZER_FILE}: no such file, nor an older one of a tokenizer")
    try:
        found = _fast_tokenizer(folder)
        if not found.is_fast:
            raise BadCheckpoint(
                f"{folder}: transformers has no fast tokenizer for it, {type(found).__name__} is slow; save one with its model"
            )
        return tokenizers.Tokenizer.from_str(found.backend_tokenizer.to_str())
    except BadCheckpoint:
        raise
    except Exception as error:  # the Rust side raises bare Exception
        raise BadCheckpoint(
            f"{folder}: {TOKENIZER_FILE} cannot be made from {', '.join(tokenizer_files(folder))}, for which transformers may need the "
            f"packages sentencepiece and protobuf: {one_line(error)}"
        ) from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread, so that the figures in a manifest do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
