"""How many tokens a model reads: the one rule for checkpoints, own ONNX files, teachers and finished bundles. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.manifest import CONFIG_FILE, TOKENIZER_FILE, read_object
from sentiment_models.export.provenance import facts

TOKENIZER_CONFIG = "tokenizer_config.json"
# The service's limits of a manifest.
TOKENS_MIN, TOKENS_MAX = 8, 8192
# transformers writes 10^30 for a tokenizer without a limit.
NO_LIMIT = 10**6
# XLNet has relative positions and no last one; its authors fine-tuned on this many tokens.
XLNET_TOKENS_MAX = 512
# Families whose positions begin behind the padding's id, which is 1 unless the config says otherwise.
BEHIND_PADDING = (
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "luke",
)


@dataclass(frozen=True, slots=True)
class Reads:
    """How many ``tokens`` of a text a model reads, special ones included; at most ``most``, which ``by`` sets, in words."""

    tokens: int
    most: int
    by: str

    @property
    def line(self) -> str:
        """What the user should know of it."""
        return f"reads {self.tokens:,} tokens of a text (limited to {self.most:,} by {self.by})"


def tokens_of(config: Mapping[str, object], tokenizer: Path, given: int | None = None) -> Reads:
    """Return how many tokens a model reads: as many as it has positions, its tokenizer allows, and the service takes.

    Args:
        config: of the model, as in config.json.
        tokenizer: the folder of tokenizer.json and tokenizer_config.json, as far as they are there.
        given: read no more than these; None: as many as possible.

    Raises:
        BadCheckpoint: ``given`` is more, which names the limit that holds, or fewer than the service needs; or nothing is given, and
            neither model nor tokenizer has a limit.
    """
    limits = _limits(config, tokenizer)
    if given is None and not limits:
        raise BadCheckpoint(f"{tokenizer}: nothing here says how many tokens the model reads; add --max-tokens N")
    most, by = min([*limits, (TOKENS_MAX, "the service")], key=itemgetter(0))
    tokens = most if given is None else given
    if not TOKENS_MIN <= tokens <= most:
        raise BadCheckpoint(f"{tokenizer}: max_tokens must be from {TOKENS_MIN} to {most}, got {tokens} (limited by {by})")
    return Reads(tokens, most, by)


def positions_of(config: Mapping[str, object]) -> int | None:
    """Return how many tokens a model has positions for, by its config; None if that does not say."""
    family, positions = config.get("model_type"), config.get("max_position_embeddings")
    if family == "xlnet":
        return XLNET_TOKENS_MAX
    if not isinstance(positions, int):
        return None
    if family == "mpnet":
        # It uses 1 as the padding's id, whatever its config says.
        return positions - 2
    padding = config.get("pad_token_id", 1) or 0
    return positions - padding - 1 if family in BEHIND_PADDING and isinstance(padding, int) else positions


def _limits(config: Mapping[str, object], tokenizer: Path) -> list[tuple[int, str]]:
    files = (tokenizer / TOKENIZER_CONFIG, tokenizer / TOKENIZER_FILE)
    settings, rules = (read_object(file) if file.is_file() else {} for file in files)
    found = [
        (int(limit), by)
        for limit, by in (
            (positions_of(config), f"the positions of {CONFIG_FILE}"),
            # As versions of transformers before 3 call it.
            (settings.get("model_max_length", settings.get("max_len")), f"model_max_length of {TOKENIZER_CONFIG}"),
        )
        if isinstance(limit, int | float) and 0 < limit < NO_LIMIT
    ]
    # Training leaves its own behind, which says nothing of the model.
    cut = facts(rules.get("truncation")).get("max_length")
    if not found and isinstance(cut, int) and cut > 0:
        found = [(cut, f"the truncation of {TOKENIZER_FILE}")]
    return found
