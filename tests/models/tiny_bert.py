"""A tiny random BERT classifier, made with transformers' own code in milliseconds, without a download."""

import random
import string
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

LABELS = ("negative", "positive")
GOOD = ("good", "great", "fine", "lovely", "warm")
BAD = ("bad", "poor", "dull", "awful", "cold")
PLAIN = ("the", "a", "film", "story", "was", "and", "but", "not", "very", "it")


def save_tiny_bert(folder: Path, *, seed: int = 0, labels: tuple[str, ...] = LABELS, known: tuple[str, ...] = ()) -> Path:
    """Save a checkpoint directory with 2 layers, 32 dimensions and at most 64 tokens, and return it; ``known``: additional words."""
    torch.manual_seed(seed)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *PLAIN]
    pieces += [*string.ascii_lowercase, *("##" + letter for letter in string.ascii_lowercase), *string.punctuation, *known]
    pieces = list(dict.fromkeys(pieces))  # "a" is a word and a letter
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    config = BertConfig(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        # Large weights, so that random answers differ from text to text by far more than rounding.
        initializer_range=0.2,
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )
    model = BertForSequenceClassification(config).eval()  # type: ignore[no-untyped-call]  # so too
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # New biases and norms are all zeros and ones, which would hide a mix-up of two of them.
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            # An outlier dimension, as in trained encoders.
            if name.endswith("output.LayerNorm.weight"):
                parameter[3] = 8.0
            # With large inputs, tanh in the pooler would give +1 or -1 for every text.
            if name == "bert.pooler.dense.weight":
                parameter.mul_(0.2)
    model.save_pretrained(folder)
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=64)  # type: ignore[no-untyped-call]  # so too
    tokenizer.save_pretrained(folder)
    return folder


def sentences(count: int, seed: int = 0, words_max: int = 20) -> list[tuple[int, str]]:
    """Make labelled sentences: label 1 with a good word, 0 with a bad one."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        label = rng.randrange(2)
        words = rng.choices(PLAIN, k=rng.randint(1, words_max))
        words.insert(rng.randint(0, len(words)), rng.choice((BAD, GOOD)[label]))
        made.append((label, " ".join(words)))
    return made


def write_tsv(path: Path, rows: list[tuple[int, str]]) -> Path:
    """Write ``label<TAB>text`` lines and return the path."""
    path.write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    return path
