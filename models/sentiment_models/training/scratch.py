"""Make an untrained BERT and learn its WordPiece tokenizer, for training from scratch."""

from collections import Counter
from collections.abc import Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers.implementations import BertWordPieceTokenizer
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from sentiment_models.errors import BadData
from sentiment_models.training.recipe import Recipe, Shape

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# BERT's own limit: a script with thousands of characters must not fill the vocabulary.
CHARACTERS_MAX = 1000
# Marks the start of each word while pieces are learned. It is in the private use area, which BERT's normalizer deletes from texts.
WORD_START = "\ue000"


def bert_config(shape: Shape, vocabulary: int, positions: int, dropout: float) -> BertConfig:
    """Return the configuration of a BERT of this size that reads at most ``positions`` tokens."""
    return BertConfig(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        vocab_size=vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        max_position_embeddings=positions,
        hidden_dropout_prob=dropout,
        # The fused attention kernel has no dropout on attention probabilities.
        attention_probs_dropout_prob=0.0,
    )


def train_tokenizer(texts: Sequence[str], size: int, tokens_max: int) -> BertTokenizerFast:
    """Learn a lower-casing WordPiece tokenizer. Equal texts give equal tokenizers.

    The library's WordPiece trainer numbers pieces in an order that changes from run to run. Its BPE trainer does not. So pieces are learned
    as BPE with a marker at the start of words, and renamed to WordPiece's ## form afterwards.

    Args:
        texts: the training texts.
        size: maximum entries of the vocabulary, special tokens included. Few texts give fewer.
        tokens_max: number of tokens that the model reads.

    Raises:
        BadData: ``size`` is too small for the single characters of the texts, each at a word's start and inside it.
    """
    normalizer = normalizers.BertNormalizer(lowercase=True)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    frequent = sorted((one for one in counts if not one.isspace()), key=lambda one: (-counts[one], one))
    alphabet = sorted(frequent[:CHARACTERS_MAX])
    least = len(SPECIAL_TOKENS) + 2 * len(alphabet)
    if size < least:
        raise BadData(f"vocabulary must be at least {least} for the {len(alphabet)} characters of the texts, got {size}")
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizer
    words = [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always")]
    learner.pre_tokenizer = pre_tokenizers.Sequence(words)
    known = [*alphabet, WORD_START]
    # Characters of the initial alphabet count as the most frequent ones, so the limit keeps exactly these.
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, initial_alphabet=known, limit_alphabet=len(known), show_progress=False)
    learner.train_from_iterator(texts, trainer)
    numbers = learner.get_vocab()
    learned = (_continued(piece) for piece in sorted(numbers, key=numbers.__getitem__) if piece != WORD_START)
    pieces = dict.fromkeys([*SPECIAL_TOKENS, *alphabet, *("##" + one for one in alphabet), *learned])
    vocabulary = {piece: number for number, piece in enumerate(list(pieces)[:size])}
    whole = BertWordPieceTokenizer(vocabulary, lowercase=True)
    return BertTokenizerFast(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        tokenizer_object=whole._tokenizer,
        model_max_length=tokens_max,
        do_lower_case=True,
    )


def fresh_classifier(recipe: Recipe, texts: Sequence[str]) -> tuple[BertForSequenceClassification, BertTokenizerFast]:
    """Make an untrained classifier of the recipe's shape, and learn its tokenizer from the texts.

    It reads at most ``recipe.max_tokens`` tokens, because positions beyond are never trained.
    """
    shape = Shape(recipe.layers, recipe.heads, recipe.width)
    tokenizer = train_tokenizer(list(dict.fromkeys(texts)), recipe.vocabulary, recipe.max_tokens)
    config = bert_config(shape, len(tokenizer), recipe.max_tokens, recipe.dropout)
    config.id2label = dict(enumerate(recipe.labels))
    config.label2id = {name: index for index, name in enumerate(recipe.labels)}
    return BertForSequenceClassification(config), tokenizer  # type: ignore[no-untyped-call]  # transformers leaves it untyped


def _continued(piece: str) -> str:
    return piece[1:] if piece.startswith(WORD_START) else "##" + piece
