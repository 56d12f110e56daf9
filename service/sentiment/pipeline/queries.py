"""Queries to a model: how they are validated and tokenized before anything runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sentiment.batching.ticket import Priority
from sentiment.errors import InvalidInput, Unsupported
from sentiment.model.classifier import Classifier
from sentiment.model.effort import may_end_early
from sentiment.model.long_texts import READ_ON
from sentiment.model.parts import Parted, Reading, read_parts
from sentiment.model.text_check import TARGET_BYTES_MAX, check_text, unreadable
from sentiment.model.tokenizer import Row
from sentiment.observability.tracing.trace import Trace


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Limits of a text: its UTF-8 bytes, its sentences that are answered, and its targets."""

    bytes_max: int
    sentences_max: int
    targets_max: int


class Source(Protocol):
    """The request that a text came with."""

    @property
    def request_id(self) -> str:
        """Its id, the same at each read."""

    @property
    def scope(self) -> int:
        """Whose known answers it may get: see ``RowQueue.submit``."""

    @property
    def account(self) -> str:
        """Who asks: the name of a token, or an address."""

    @property
    def payer(self) -> int:
        """Who asks: see ``RowQueue.submit``."""


@dataclass(slots=True)
class Query:
    """One text or pair. ``truncation``: refuse, head, head_tail or windows; None for the model's default. ``field``: the request field
    that errors name. ``trace``: records its stages; None if it is not sampled. ``source``: its request, for the journal; None for none.
    ``item``: its place in the request, from 0. ``counted``: whether its answer counts among what the model answers. ``sentences``,
    ``targets``: what is answered besides the whole. ``adaptive``: a part of a long text may suffice.
    ``cached``: a known answer may be given, and this one be known to others.
    """

    text: str
    text_pair: str | None = None
    truncation: str | None = None
    field: str = "text"
    priority: Priority = Priority.INTERACTIVE
    trace: Trace | None = None
    source: Source | None = None
    item: int = 0
    counted: bool = True
    sentences: bool = False
    targets: Sequence[str] = ()
    adaptive: bool = False
    cached: bool = False

    @property
    def in_parts(self) -> bool:
        """Whether parts of the text are answered too."""
        return self.sentences or bool(self.targets)

    @property
    def targets_field(self) -> str:
        """The request field of the targets, in errors."""
        return self.field.removesuffix("text") + "targets"

    def forget_text(self) -> None:
        """Free the memory of the text, which is no longer read."""
        self.text, self.text_pair = "", None


class QueryReader:
    """Validates and tokenizes queries for one classifier. Thread-safe."""

    def __init__(self, classifier: Classifier, limits: TextLimits) -> None:
        self._classifier = classifier
        self._limits = limits
        spec = classifier.manifest.targets
        self._target_tokens = 0 if spec is None else spec.tokens

    def check(self, query: Query) -> None:
        """Refuse a query that can never be answered, before it is tokenized.

        Raises:
            InvalidInput, Unsupported: the message names the field and the limit.
        """
        check_text(query.text, query.field, self._limits.bytes_max)
        if query.text_pair is not None:
            # First the text, as the client checks it before it sends it.
            check_text(query.text_pair, query.field + "_pair", self._limits.bytes_max)
            if query.in_parts:
                asked = "targets" if query.targets else "sentences"
                raise InvalidInput(query.field + "_pair", f"is given with {asked}, which are answered of one text; leave one of them unset")
            if not self._classifier.manifest.pairs:
                raise Unsupported(f"model {self._classifier.bundle.id} reads one text; a pair was given")
        if query.targets:
            self._check_targets(query.targets, query.targets_field)

    def _check_targets(self, targets: Sequence[str], field: str) -> None:
        if len(targets) > self._limits.targets_max:
            raise InvalidInput(field, f"has {len(targets)} targets; the limit is {self._limits.targets_max}")
        first: dict[str, int] = {}
        for place, target in enumerate(targets):
            check_text(target, f"{field}[{place}]", TARGET_BYTES_MAX)
            if first.setdefault(target, place) != place:
                raise InvalidInput(f"{field}[{place}]", f"is the same as targets[{first[target]}]; give each target once")
        if not self._target_tokens:
            raise Unsupported(f"model {self._classifier.bundle.id} answers no targets; {len(targets)} were given")

    def check_reading(self, query: Query, reading: Reading) -> None:
        """Refuse a tokenized query that cannot be answered.

        Raises:
            InvalidInput: it, or a target, has no tokens; or it has more than the model reads.
        """
        tokenizer = self._classifier.tokenizer
        limit = tokenizer.max_tokens
        if reading.tokens <= tokenizer.special_tokens:
            raise unreadable(query.field, query.text)
        for place, target in enumerate(reading.targets if isinstance(reading, Parted) else ()):
            if target.blank:
                raise unreadable(f"{query.targets_field}[{place}]", target.name)
        if not reading.truncated:
            return
        if self._truncation(query) == "refuse":
            raise InvalidInput(query.field, f"has more tokens than the model reads; the limit is {limit} and truncation is refuse")
        if query.text_pair is not None and query.truncation in READ_ON:
            raise InvalidInput(
                query.field,
                f"has with its pair more tokens than the model reads; the limit is {limit} and truncation {query.truncation} "
                "is for single texts",
            )

    def may_end_early(self, query: Query, reading: Reading) -> bool:
        """Whether a part of what is read of a query may suffice."""
        if not query.adaptive or query.text_pair is not None or not isinstance(reading, Row):
            return False
        return may_end_early(reading.truncated, query.truncation, self._classifier.manifest.default_truncation)

    def read_short(self, query: Query) -> Row | None:
        """As ``read``, if the text is short and costs no more than such a text; else None."""
        if query.text_pair is not None or query.in_parts:
            return None
        row = self._classifier.tokenizer.encode_short(query.text)
        return None if row is None or self._reads_on(query, row) else row

    def read(self, queries: Sequence[Query]) -> list[Reading]:
        """Tokenize the queries together, each with its truncation."""
        tokenizer = self._classifier.tokenizer
        if any(query.text_pair is not None for query in queries):
            rows = [tokenizer.encode(query.text, query.text_pair) for query in queries]
        else:
            rows = tokenizer.encode_many([query.text for query in queries])
        return [self._read_on(query, row) for query, row in zip(queries, rows, strict=True)]

    def _read_on(self, query: Query, row: Row) -> Reading:
        """All that is read of a text that begins with this row."""
        tokenizer = self._classifier.tokenizer
        whole = self._classifier.read_on(query.text, self._truncation(query)) if self._reads_on(query, row) else row
        # A text without a token is refused.
        if not query.in_parts or whole.tokens <= tokenizer.special_tokens:
            return whole
        sentences_max = self._limits.sentences_max if query.sentences else 0
        return read_parts(tokenizer, query.text, whole, sentences_max, query.targets, self._target_tokens)

    def _reads_on(self, query: Query, row: Row) -> bool:
        """Whether more of the text is read than this row of its first tokens."""
        return row.truncated and query.text_pair is None and self._truncation(query) in READ_ON

    def _truncation(self, query: Query) -> str:
        return query.truncation or self._classifier.manifest.default_truncation
