"""A tiny random classifier of each family with a tokenizer of the family's kind, made without download and training.

Vocabularies are counted, not trained: the trainers of WordPiece and Unigram give another one in each process, and a random model of
other ids could fail by chance.
"""

import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from sentiment.model.bundle import Manifest, load_bundle
from sentiment.model.tokenizer import Tokenizer
from sentiment_models.export.checkpoint import Checkpoint, save_weights
from sentiment_models.export.export import Exported, export
from sentiment_models.export.golden import MEANT
from sentiment_models.export.graphs.graph import serialize
from sentiment_models.export.graphs.quantize import quantize
from sentiment_models.export.manifest import WEIGHTS_FILE
from sentiment_models.export.weights import put_real, refer, rounded

MAX_TOKENS = 64
SPACE = "\u2581"
TEXTS = sorted(MEANT)

Make = Callable[[], tokenizers.Tokenizer]


def _word_counts() -> Counter[str]:
    return Counter(word for text in TEXTS for word in "".join(sign if sign.isalpha() else " " for sign in text.lower()).split())


def _pieces() -> tuple[list[str], list[str]]:
    """The 60 commonest words, and all characters with the 40 commonest pairs of letters."""
    words = _word_counts()
    pairs = Counter(word[start : start + 2] for word in words.elements() for start in range(len(word) - 1))
    common, commonest = (sorted(counts, key=lambda one: (-counts[one], one)) for counts in (words, pairs))
    characters = sorted({sign for text in TEXTS for sign in text.lower() if not sign.isspace()})
    return common[:60], [*characters, *commonest[:40]]


def _templates(tokenizer: tokenizers.Tokenizer, single: str, pair: str, special: Sequence[str]) -> tokenizers.Tokenizer:
    ids = [(token, tokenizer.token_to_id(token)) for token in special]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    return tokenizer


def _word_piece(special: Sequence[str], unknown: str, single: str, pair: str) -> Make:
    def make() -> tokenizers.Tokenizer:
        words, parts = _pieces()
        pieces = dict.fromkeys([*special, *words, *parts, *(f"##{part}" for part in parts)])
        model = models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token=unknown)
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.add_special_tokens(list(special))
        return _templates(tokenizer, single, pair, [token for token in special if token in single.replace(":0", " ").split()])

    return make


def _unigram(special: Sequence[str], single: str, pair: str, used: Sequence[str]) -> Make:
    """SentencePiece as transformers converts ALBERT's and XLNet's."""

    def make() -> tokenizers.Tokenizer:
        words, parts = _pieces()
        counts = _word_counts()
        pieces = dict.fromkeys(special, 0.0)
        pieces |= {SPACE + word: math.log(counts[word] / counts.total()) for word in words}
        pieces |= {part: -9.0 - len(part) for part in (SPACE, *parts)}
        tokenizer = tokenizers.Tokenizer(models.Unigram(list(pieces.items()), unk_id=special.index("<unk>")))
        tokenizer.normalizer = normalizers.Sequence(
            [
                normalizers.Replace("``", '"'),
                normalizers.NFKD(),
                normalizers.StripAccents(),
                normalizers.Lowercase(),
                normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
            ]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.add_special_tokens(list(special))
        return _templates(tokenizer, single, pair, used)

    return make


def _byte_level(special: Sequence[str], normalizer: normalizers.Normalizer | None = None) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(special),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _roberta_tokens() -> tokenizers.Tokenizer:
    tokenizer = _byte_level(("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
    tokenizer.post_processor = processors.RobertaProcessing(sep=("</s>", 2), cls=("<s>", 0), add_prefix_space=False)
    return tokenizer


def _modern_tokens() -> tokenizers.Tokenizer:
    """ModernBERT's, with added tokens of blanks and of signs, such as the published tokenizer has by the dozen."""
    tokenizer = _byte_level(("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"), normalizers.NFC())
    tokenizer.add_tokens([tokenizers.AddedToken("   "), tokenizers.AddedToken("  "), tokenizers.AddedToken("|||EMAIL_ADDRESS|||")])
    return _templates(tokenizer, "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0", ("[CLS]", "[SEP]"))


BERT_TOKENS = _word_piece(
    ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "[UNK]", "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
)
MPNET_TOKENS = _word_piece(
    ("<s>", "<pad>", "</s>", "[UNK]", "<mask>"), "[UNK]", "<s>:0 $A:0 </s>:0", "<s>:0 $A:0 </s>:0 </s>:0 $B:1 </s>:1"
)
ALBERT_TOKENS = _unigram(
    ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "[CLS]:0 $A:0 [SEP]:0",
    "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
    ("[CLS]", "[SEP]"),
)
XLNET_TOKENS = _unigram(
    ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"),
    "$A:0 <sep>:0 <cls>:2",
    "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2",
    ("<sep>", "<cls>"),
)

XLMR_TOKENS = _unigram(
    ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "<s>:0 $A:0 </s>:0", "<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0", ("<s>", "</s>")
)
DEBERTA_TOKENS = _unigram(
    ("[PAD]", "[CLS]", "[SEP]", "<unk>", "[MASK]"), "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", ("[CLS]", "[SEP]")
)

TWO, THREE = ("negative", "positive"), ("negative", "neutral", "positive")
STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
VALUES = r"\.(query|value|q|v|q_lin|v_lin)(\.weight)?$"
PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
DISENTANGLED = {"type_vocab_size": 0, "relative_attention": True, "max_relative_positions": -1, "position_biased_input": False}
MODERN = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "global_attn_every_n_layers": 3,
    "local_attention": 8,
    "initializer_cutoff_factor": 2.0,
}
DEEP = {**PLAIN, "hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 4, "initializer_range": 0.1}


@dataclass(frozen=True, slots=True)
class Tiny:
    """A checkpoint to make; in TINY under its family's name, or another if the family has several.

    ``products``: the number of products with a weight in its graph, all int8 after quantisation; ``shared``: how many of them are with a
    weight of another one. ``flattened``: whether the export flattens its int8 graph; ``explained``: whether it makes an explain graph.
    """

    family: str
    tokens: Make
    pad: str
    products: int
    sizes: dict[str, Any]  # as the family's config calls them
    labels: tuple[str, ...] = TWO
    pairs: bool = True
    flattened: bool = True
    explained: bool = True
    positions: int = MAX_TOKENS
    shared: int = 0


TINY = {
    "bert": Tiny("bert", BERT_TOKENS, "[PAD]", 12, PLAIN),
    # Heads of 64 dimensions, as in the base and large shapes, and more layers.
    "bert-deep": Tiny("bert", BERT_TOKENS, "[PAD]", 24, DEEP, pairs=False),
    "roberta": Tiny("roberta", _roberta_tokens, "<pad>", 12, {**PLAIN, "type_vocab_size": 1}, THREE, positions=MAX_TOKENS + 2),
    "distilbert": Tiny("distilbert", BERT_TOKENS, "[PAD]", 12, {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, flattened=False),
    # Two layers share weights; one more product maps the embeddings.
    "albert": Tiny("albert", ALBERT_TOKENS, "<pad>", 13, {**PLAIN, "embedding_size": 16}, ("a", "b", "c", "d"), flattened=False, shared=6),
    "xlnet": Tiny(
        "xlnet",
        XLNET_TOKENS,
        "<pad>",
        14,
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
        THREE,
        flattened=False,
        explained=False,
    ),
    "electra": Tiny("electra", BERT_TOKENS, "[PAD]", 13, {**PLAIN, "embedding_size": 16}, STARS),
    "mpnet": Tiny("mpnet", MPNET_TOKENS, "<pad>", 12, PLAIN, THREE, flattened=False, positions=MAX_TOKENS + 2),
    "xlm-roberta": Tiny("xlm-roberta", XLMR_TOKENS, "<pad>", 12, {**PLAIN, "type_vocab_size": 1}, THREE, positions=MAX_TOKENS + 2),
    "camembert": Tiny("camembert", XLMR_TOKENS, "<pad>", 12, {**PLAIN, "type_vocab_size": 1}, THREE, positions=MAX_TOKENS + 2),
    "data2vec-text": Tiny("data2vec-text", _roberta_tokens, "<pad>", 12, {**PLAIN, "type_vocab_size": 1}, THREE, positions=MAX_TOKENS + 2),
    "deberta": Tiny(
        "deberta",
        BERT_TOKENS,
        "[PAD]",
        12,
        {**PLAIN, **DISENTANGLED, "pos_att_type": ["c2p", "p2c"]},
        THREE,
        flattened=False,
        explained=False,
    ),
    "deberta-v2": Tiny(
        "deberta-v2",
        DEBERTA_TOKENS,
        "[PAD]",
        # Queries and keys multiply the positions, too.
        16,
        {
            **PLAIN,
            **DISENTANGLED,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 16,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
        THREE,
        flattened=False,
        explained=False,
        shared=4,
    ),
    # Layers 0 and 3 attend to all tokens, the others to four on each side.
    "modernbert": Tiny("modernbert", _modern_tokens, "[PAD]", 17, {**MODERN, "classifier_pooling": "mean"}, THREE, flattened=False),
    "modernbert-cls": Tiny("modernbert", _modern_tokens, "[PAD]", 17, MODERN, THREE, flattened=False),
    "rembert": Tiny("rembert", ALBERT_TOKENS, "<pad>", 13, {**PLAIN, "input_embedding_size": 16, "output_embedding_size": 16}, THREE),
    "roformer": Tiny("roformer", BERT_TOKENS, "[PAD]", 12, PLAIN, THREE, flattened=False),
}


def _centre(model: Any, tokenizer: tokenizers.Tokenizer) -> None:
    """Scale the head so that logits of the golden texts have mean 0 and deviation 1 and all labels occur."""
    head = [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]
    logits = torch.cat([model(input_ids=torch.tensor([tokenizer.encode(text).ids[:MAX_TOKENS]])).logits for text in TEXTS])
    scale = 1 / logits.std()
    head.weight.mul_(scale)
    head.bias.sub_(logits.mean(0)).mul_(scale)


def save_tiny(folder: Path, tiny: Tiny, seed: int = 0) -> Path:
    """Save the checkpoint's directory and return it."""
    torch.manual_seed(seed)
    tokenizer = tiny.tokens()
    names = dict(enumerate(tiny.labels))
    config = AutoConfig.for_model(
        tiny.family,
        vocab_size=tokenizer.get_vocab_size(),
        pad_token_id=tokenizer.token_to_id(tiny.pad),
        id2label=names,
        label2id={name: index for index, name in names.items()},
        **({} if tiny.family == "xlnet" else {"max_position_embeddings": tiny.positions}),
        # Large weights, so that random answers differ from text to text by far more than rounding.
        **{"initializer_range": 0.2, **tiny.sizes},
    )
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # New biases and norms are all zeros and ones, which would hide a mix-up of two of them.
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            # Otherwise attention would mix hardly anything but the mean of the tokens.
            if re.search(VALUES, name):
                parameter.mul_(2)
        _centre(model, tokenizer)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=tiny.pad).save_pretrained(folder)
    return folder


@dataclass(frozen=True, slots=True)
class Made:
    """A family's checkpoint, its bundle, and what the export said and measured."""

    name: str
    checkpoint: Path
    bundle: Path
    exported: Exported
    said: tuple[str, ...]

    @property
    def tiny(self) -> Tiny:
        return TINY[self.name]

    @property
    def manifest(self) -> Manifest:
        return load_bundle(self.bundle).manifest

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.bundle / "tokenizer.json", MAX_TOKENS)


def export_tiny(folder: Path, name: str) -> Made:
    """Save a family's checkpoint and export it to a bundle of its name."""
    tiny, said = TINY[name], list[str]()
    checkpoint, bundle = save_tiny(folder / "checkpoint", tiny), folder / "bundles" / name / "1"
    exported = export(checkpoint, bundle, name=name, version=1, pairs=tiny.pairs, max_tokens=MAX_TOKENS, say=said.append)
    return Made(name, checkpoint, bundle, exported, tuple(said))


def graph_tiny(bundle: Path, name: str) -> Path:
    """Write what making graphs for a GPU reads of a family's bundle: its fp32 graph, its weights and its side of padding. Returns it."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(save_tiny(Path(folder), TINY[name]))
        graph = checkpoint.to_onnx(checkpoint.weights)
    stored = rounded(checkpoint.weights, quantize(graph))
    put_real(graph, stored)
    save_weights(stored, bundle / WEIGHTS_FILE)
    (bundle / "fp32.onnx").write_bytes(serialize(refer(graph, bundle / WEIGHTS_FILE)))
    (bundle / "manifest.json").write_text(json.dumps({"name": name, "padding_side": checkpoint.family.padding_side}))
    return bundle
