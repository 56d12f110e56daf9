"""A tiny classifier for tests: a real ONNX graph, a real tokenizer and a real bundle, without a download.

Each word has a weight. The positive logit of a text is the sum of the weights of its words; the negative logit is its opposite. So a
test can tell from an answer which text it belongs to.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import tokenizers
from onnx import TensorProto, helper, numpy_helper

WEIGHTS = {
    "good": 1.0,
    "great": 2.0,
    "bad": -1.0,
    "awful": -2.0,
    "film": 0.0,
    "a": 0.0,
    "the": 0.0,
    "and": 0.0,
    **{f"w{number}": number / 64 for number in range(-32, 33)},
}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
MAX_TOKENS = 32
LABELS = ("negative", "positive")
# Those of a bundle with ``three``. Words of weight 0 speak for neutral, and "and" for the output ``mixed``.
THREE = (*LABELS, "neutral")
MIXED_AT = 0.5
TARGET_TOKENS = 16
# A rule of adaptive effort.
EFFORT: dict[str, object] = {"head": 4, "tail": 4, "tokens_min": 10, "log_odds": 3.0}
# Of texts such as "a good film" and "awful".
REFERENCE = {
    "texts": 2000,
    "files": {},
    "label": {"negative": 1000, "positive": 1000},
    "abstained": 100,
    "score": {"edges": [0.6, 0.9], "counts": [100, 900, 1000]},
    "tokens": {"edges": [4, 8], "counts": [900, 1000, 100]},
    "unknown": {"edges": [0, 0.5], "counts": [1900, 100, 0]},
    "fragments": {"edges": [0, 0.5], "counts": [1900, 100, 0]},
}


def make_bundle(
    root: Path,
    name: str = "tiny",
    version: int = 1,
    *,
    pairs: bool = False,
    max_tokens: int = MAX_TOKENS,
    three: bool = False,
    effort: dict[str, object] | None = None,
) -> Path:
    """Write a bundle ``root/name/version`` and return its folder. ``three``: its labels are THREE, and it has ``mixed`` and ``targets``."""
    path = root / name / str(version)
    path.mkdir(parents=True)
    make_tokenizer().save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps({"num_attention_heads": 2}))
    onnx.save(make_graph(three), path / "fp32.onnx")
    labels = THREE if three else LABELS
    golden = [
        {"text": "a good film", "label": "positive", "logits": [-1.0, 1.0, *([0.5, -2.0] if three else [])]},
        {"text": "awful", "label": "negative", "logits": [2.0, -2.0, *([0.0, -2.0] if three else [])]},
    ]
    manifest = {
        "format": 1,
        "name": name,
        "version": version,
        "labels": list(labels),
        "architecture": "bag-of-words",
        "max_tokens": max_tokens,
        "pairs": pairs,
        "default_truncation": "head",
        "inputs": ["input_ids", "attention_mask"],
        "graphs": {
            "classify": [
                {
                    "file": "fp32.onnx",
                    "precision": "fp32",
                    "providers": ["CPUExecutionProvider"],
                    "inputs": ["input_ids", "attention_mask"],
                    "outputs": ["logits"],
                    "invariance": 1e-4,
                    "tolerance": 1e-3,
                }
            ]
        },
        "calibration": {"temperature": 1.0, "abstain_below": 0.6},
        "padding_side": "right",
        "windows": None,
        "golden": golden,
        "accuracy": {"made-up": {"accuracy": 0.5, "macro_f1": 0.5, "ece": 0.1, "rows": 2}},
        "references": {"usual": REFERENCE | {"label": {label: 1000 if label in LABELS else 0 for label in labels}}},
        "provenance": {},
    }
    if three:
        manifest |= {"mixed": {"at": MIXED_AT}, "targets": {"tokens": TARGET_TOKENS}}
    if effort:
        manifest["effort"] = effort
    write_manifest(path, manifest)
    (path / "MODEL_CARD.md").write_text("# Tiny\n")
    return path


def write_manifest(path: Path, manifest: dict[str, object]) -> None:
    """Write manifest.json with the current digests and sizes of the files in the folder."""
    files = [file for file in sorted(path.iterdir()) if file.name not in ("manifest.json", "MODEL_CARD.md")]
    manifest["files"] = {
        file.name: {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "bytes": file.stat().st_size} for file in files
    }
    (path / "manifest.json").write_text(json.dumps(manifest))


def read_manifest(path: Path) -> dict[str, object]:
    """The manifest as plain JSON."""
    loaded: dict[str, object] = json.loads((path / "manifest.json").read_text())
    return loaded


def make_tokenizer() -> tokenizers.Tokenizer:
    """An uncased WordPiece tokenizer whose vocabulary is ``WEIGHTS``."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *WEIGHTS))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    # "w-3" is one word here.
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def make_graph(three: bool = False) -> onnx.ModelProto:
    """logits[b] = sum over tokens t of mask[b, t] * (-w, +w)[ids[b, t]].

    ``three``: then follow those of neutral, 1/4 for each word of weight 0, and of ``mixed``, -1 for each special token and 4 for "and".
    """
    weights = np.array([0.0] * len(SPECIAL) + list(WEIGHTS.values()), np.float32)
    columns = [-weights, weights]
    if three:
        words = np.arange(len(weights)) >= len(SPECIAL)
        columns += [0.25 * (words & (weights == 0)), 4.0 * (np.arange(len(weights)) == len(SPECIAL) + list(WEIGHTS).index("and")) - ~words]
    table = numpy_helper.from_array(np.stack(columns, 1).astype(np.float32), "table")
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    last = numpy_helper.from_array(np.array([2], np.int64), "last")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["rows", "wide"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "axes"], ["logits"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(columns)])],
        [table, axes, last],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
