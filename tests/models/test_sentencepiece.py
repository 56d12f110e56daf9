"""Checkpoints with a published SentencePiece tokenizer, as of ALBERT and XLNet: tokens equal those of the sentencepiece library."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import sentencepiece
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from sentiment.model.tokenizer import Tokenizer
from sentiment_models.export.export import export
from tests.models.tiny_bert import LABELS, sentences
from tests.models.tiny_families import MAX_TOKENS, PLAIN

# In lower case and without accents, because ALBERT normalizes so before SentencePiece.
TEXTS = ["the film was good", "a dull story  and cold", "it was n't ﬁne 😍 at all", "..."]
# By family: the start of its vocabulary, the sizes of its model, and the place of the text among the special tokens.
FAMILIES = {
    "albert": (
        {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "pad_piece": "<pad>", "control_symbols": "[CLS],[SEP],[MASK]"},
        {**PLAIN, "embedding_size": 16},
        slice(1, -1),
    ),
    "xlnet": (
        {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1, "control_symbols": "<cls>,<sep>,<pad>,<mask>,<eod>,<eop>"},
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
        slice(0, -2),
    ),
}


def save_checkpoint(folder: Path, family: str, texts: Sequence[str]) -> sentencepiece.SentencePieceProcessor:
    """Save a random model with spiece.model as its only tokenizer file; return a reader of that file."""
    options, sizes, _ = FAMILIES[family]
    folder.mkdir()
    (folder.parent / "texts.txt").write_text("\n".join(texts))
    # One thread and a fixed seed, so that the bytes are always the same.
    torch.manual_seed(1)
    made = {
        "num_threads": 1,
        "input": str(folder.parent / "texts.txt"),
        "model_prefix": str(folder / "spiece"),
        "vocab_size": 64,
        "hard_vocab_limit": False,
    }
    sentencepiece.SentencePieceTrainer.train(**made, **options, minloglevel=2)
    (folder / "spiece.vocab").unlink()
    reader = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    names = dict(enumerate(LABELS))
    config = AutoConfig.for_model(
        family, vocab_size=reader.vocab_size(), id2label=names, label2id={v: k for k, v in names.items()}, **sizes
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return reader


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_published_tokenizer_is_converted_and_reads_alike(family: str, tmp_path: Path) -> None:
    checkpoint, bundle = tmp_path / "checkpoint", tmp_path / "bundles" / family / "1"
    reader = save_checkpoint(checkpoint, family, [text for _, text in sentences(300, seed=1)])

    export(checkpoint, bundle, name=family, version=1, max_tokens=MAX_TOKENS)

    tokenizer = Tokenizer(bundle / "tokenizer.json", MAX_TOKENS)
    own = FAMILIES[family][2]
    assert [list(tokenizer.encode(text).ids)[own] for text in TEXTS] == [reader.encode(text) for text in TEXTS]
    assert json.loads((bundle / "manifest.json").read_bytes())["architecture"] == family
