"""Lets TensorFlow write tiny checkpoints as the original BERT's, and computes in NumPy from their variables what they answer.

``python original_bert.py FOLDER``. Imports nothing of ours or of transformers.
"""

import json
import math
import string
import sys
from pathlib import Path
from typing import Any

import numpy as np

LAYERS, HEADS, WIDTH, INNER, TOKENS = 2, 4, 32, 64, 64
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film", "was", "good", "bad", "very", "dull", "great"]
PIECES += ["not", "and"]
PIECES += [*string.ascii_lowercase, *("##" + letter for letter in string.ascii_lowercase)]
IDS = np.array([[2, 5, 6, 7, 10, 8, 3, 5, 6, 3], [2, 9, 14, 11, 3, 12, 30, 40, 50, 3]])
SEGMENTS = np.array([[0] * 7 + [1] * 3, [0] * 5 + [1] * 5])


def shapes() -> dict[str, list[int]]:
    """Names as in modeling.py and run_pretraining.py of google-research/bert."""
    found = {"bert/embeddings/word_embeddings": [len(PIECES), WIDTH], "bert/embeddings/token_type_embeddings": [2, WIDTH]}
    found["bert/embeddings/position_embeddings"] = [TOKENS, WIDTH]
    dense = {"bert/pooler/dense": (WIDTH, WIDTH), "cls/predictions/transform/dense": (WIDTH, WIDTH)}
    norms = ["bert/embeddings/LayerNorm", "cls/predictions/transform/LayerNorm"]
    for layer in (f"bert/encoder/layer_{index}" for index in range(LAYERS)):
        dense |= {f"{layer}/attention/self/{name}": (WIDTH, WIDTH) for name in ("query", "key", "value")}
        dense[f"{layer}/attention/output/dense"] = (WIDTH, WIDTH)
        dense |= {f"{layer}/intermediate/dense": (WIDTH, INNER), f"{layer}/output/dense": (INNER, WIDTH)}
        norms += [f"{layer}/attention/output/LayerNorm", f"{layer}/output/LayerNorm"]
    for name, shape in dense.items():
        found |= {f"{name}/kernel": list(shape), f"{name}/bias": [shape[1]]}
    for name in norms:
        found |= {f"{name}/gamma": [WIDTH], f"{name}/beta": [WIDTH]}
    found |= {"cls/predictions/output_bias": [len(PIECES)], "cls/seq_relationship/output_weights": [2, WIDTH]}
    return found | {"cls/seq_relationship/output_bias": [2]}


def write(folder: Path, without: str = "-", more: dict[str, list[int]] | None = None) -> None:
    """Let TensorFlow's Saver, as the original's, write all variables but those that begin with ``without``, and ``more``."""
    import tensorflow as tf

    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, shape in (shapes() | (more or {})).items():
            value = rng.normal(1 if name.endswith("gamma") else 0, 0.2, shape).astype(np.float32)
            if not name.startswith(without):
                tf.compat.v1.get_variable(name, initializer=value, use_resource=False)
                for slot in ("adam_m", "adam_v"):
                    tf.compat.v1.get_variable(f"{name}/{slot}", initializer=value + 1, use_resource=False)
        tf.compat.v1.train.create_global_step()
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(folder / "bert_model.ckpt"), write_meta_graph=False)
    config: dict[str, Any] = {"vocab_size": len(PIECES), "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    config |= {"intermediate_size": INNER, "max_position_embeddings": TOKENS, "type_vocab_size": 2, "hidden_act": "gelu"}
    config |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02}
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")


def answers(folder: Path) -> dict[str, np.ndarray]:
    """Each layer's hidden states, the pooled vector and both heads' logits, in float64 by the paper's formulas."""
    import tensorflow as tf

    def of(name: str) -> np.ndarray:
        return tf.train.load_variable(str(folder / "bert_model.ckpt"), name).astype(np.float64)

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ of(f"{name}/kernel") + of(f"{name}/bias")

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * of(f"{name}/gamma") + of(f"{name}/beta")

    def gelu(x: np.ndarray) -> np.ndarray:
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    def split(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)

    table, place = of("bert/embeddings/word_embeddings"), of("bert/embeddings/position_embeddings")[: IDS.shape[1]]
    x = norm(table[IDS] + place + of("bert/embeddings/token_type_embeddings")[SEGMENTS], "bert/embeddings/LayerNorm")
    hidden = [x]
    for layer in (f"bert/encoder/layer_{index}" for index in range(LAYERS)):
        query, key, value = (split(dense(x, f"{layer}/attention/self/{name}")) for name in ("query", "key", "value"))
        scores = np.exp(query @ key.swapaxes(2, 3) / math.sqrt(WIDTH / HEADS))
        seen = (scores / scores.sum(-1, keepdims=True) @ value).swapaxes(1, 2).reshape(x.shape)
        x = norm(x + dense(seen, f"{layer}/attention/output/dense"), f"{layer}/attention/output/LayerNorm")
        x = norm(x + dense(gelu(dense(x, f"{layer}/intermediate/dense")), f"{layer}/output/dense"), f"{layer}/output/LayerNorm")
        hidden.append(x)
    pooled = np.tanh(dense(x[:, 0], "bert/pooler/dense"))
    words = norm(gelu(dense(x, "cls/predictions/transform/dense")), "cls/predictions/transform/LayerNorm")
    words = words @ table.T + of("cls/predictions/output_bias")
    follows = pooled @ of("cls/seq_relationship/output_weights").T + of("cls/seq_relationship/output_bias")
    return {"ids": IDS, "segments": SEGMENTS, "hidden": np.stack(hidden), "pooled": pooled, "words": words, "follows": follows}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write(folder / "whole")
    write(folder / "headless", without="cls/")
    write(folder / "poolerless", without="bert/pooler/")
    write(folder / "short", without="bert/encoder/layer_1/output/dense/")
    write(folder / "classifier", more={"output_weights": [2, WIDTH], "output_bias": [2]})
    np.savez(folder / "answers.npz", **answers(folder / "whole"))
