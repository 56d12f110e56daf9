"""Builds the requests of both clients."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import grpc

from sentiment.client.chunks import CALL_TIMEOUT_S
from sentiment.client.columns import Item, Targeted, Targets, TextOrPair, Unusable, item_of_value, targets_of_all
from sentiment.client.explain_options import ExplainOptions
from sentiment.client.explained import need_numpy
from sentiment.client.results import REQUEST_ID, CallFailed, Result, Violation, result_of
from sentiment.v1 import sentiment_pb2 as pb

# Empty: the default of the model, of the call or of the server.
Truncation = Literal["", "refuse", "head", "head_tail", "windows"]
Priority = Literal["", "interactive", "bulk"]
Effort = Literal["", "full", "adaptive"]

TRUNCATIONS = {
    "": pb.TRUNCATION_UNSPECIFIED,
    "refuse": pb.TRUNCATION_REFUSE,
    "head": pb.TRUNCATION_HEAD,
    "head_tail": pb.TRUNCATION_HEAD_TAIL,
    "windows": pb.TRUNCATION_WINDOWS,
}
# As servers keep them.
REQUEST_ID_MAX = 128
_PLACE = re.compile(r"^items\[\d+\]\.")
EFFORTS = {"": pb.EFFORT_UNSPECIFIED, "full": pb.EFFORT_FULL, "adaptive": pb.EFFORT_ADAPTIVE}
PRIORITIES = {"": pb.PRIORITY_UNSPECIFIED, "interactive": pb.PRIORITY_INTERACTIVE, "bulk": pb.PRIORITY_BULK}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a call, which apply to all its texts. Those from ``request_id`` on are not in its message.

    Raises:
        ValueError: truncation is not refuse, head, head_tail, windows or empty (the model's default), priority is not interactive,
            bulk or empty (the call's default), effort is not full, adaptive or empty (the server's default), or the server would not
            keep the id.
    """

    model: str = ""
    truncation: Truncation = ""
    priority: Priority = ""
    sentences: bool = False
    effort: Effort = ""
    no_cache: bool = False
    request_id: str = ""
    timeout_s: float = CALL_TIMEOUT_S
    attempts_max: int = 1
    progress: bool | None = False

    def __post_init__(self) -> None:
        if self.truncation not in TRUNCATIONS:
            known = ", ".join(filter(None, TRUNCATIONS))
            raise ValueError(f"truncation must be one of {known}, or empty for the model's default, got {self.truncation!r}")
        if self.priority not in PRIORITIES:
            raise ValueError(f"priority must be interactive, bulk, or empty for the call's default, got {self.priority!r}")
        if self.effort not in EFFORTS:
            raise ValueError(f"effort must be full, adaptive, or empty for the server's default, got {self.effort!r}")
        headers(self.request_id)

    def write(self, message: pb.ClassifyRequest | pb.ClassifyBatchRequest | pb.StreamOptions) -> None:
        """Write the options to a message."""
        message.model = self.model
        message.truncation = TRUNCATIONS[self.truncation]
        message.priority = PRIORITIES[self.priority]
        message.sentences = self.sentences
        message.effort = EFFORTS[self.effort]
        message.no_cache = self.no_cache


def item_of(text: Item) -> pb.Item:
    """An item of a batch or stream.

    Raises:
        CallFailed: the text is missing or no string, or is not valid Unicode, so protobuf cannot encode it.
    """
    if isinstance(text, Unusable):
        raise _invalid(text.field, text.reason)
    text, targets = (text.text, text.targets) if isinstance(text, Targeted) else (text, ())
    item = pb.Item()
    field = "text"
    try:
        if isinstance(text, str):
            item.text = text
        else:
            item.text = text[0]
            field = "text_pair"
            item.text_pair = text[1]
        for place, target in enumerate(targets):
            field = f"targets[{place}]"
            item.targets.append(target)
    except UnicodeEncodeError as error:
        raise _no_unicode(field, error) from error
    return item


def one(text: Item, options: Options, explain: ExplainOptions | None = None) -> pb.ClassifyRequest:
    """A Classify request.

    Raises:
        CallFailed: as in ``item_of``.
        ModuleNotFoundError: ``explain`` is given and NumPy, which reads explanations, is not installed.
        TypeError: ``explain`` is something else.
        ValueError: as in ``ExplainOptions.message``.
    """
    if explain is not None:
        need_numpy()
        _check_options("explain", explain)
    item = item_of(text)
    pair = item.text_pair if item.HasField("text_pair") else None
    explained = None if explain is None else explain.message()
    request = pb.ClassifyRequest(text=item.text, text_pair=pair, explain=explained, targets=item.targets)
    options.write(request)
    return request


def _check_options(name: str, options: object) -> None:
    if not isinstance(options, ExplainOptions):
        raise TypeError(f"{name} must be ExplainOptions, such as {name}=ExplainOptions(), got {type(options).__name__}")


def single(text: str, text_pair: object, targets: Targets = ()) -> tuple[Item, str | None]:
    """One text with what may be its pair and its targets: the item, and the pair.

    Raises:
        TypeError: the text or the pair is not a string, or the targets are not a list of strings.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, got {type(text).__name__}; for several texts call explain_all")
    if text_pair is not None and not isinstance(text_pair, str):
        raise TypeError(f"text_pair must be a string, as text is, got {type(text_pair).__name__}")
    asked = same_targets(targets)
    item = text if text_pair is None else (text, text_pair)
    return Targeted(item, asked) if asked else item, text_pair


def same_targets(targets: Targets) -> tuple[str, ...]:
    """The targets of one text, or of each text of a stream.

    Raises:
        TypeError: they are not a list of strings.
    """
    same = targets_of_all(targets, beside=False)
    if same is None:
        raise TypeError("targets must be a list of strings, such as ['battery']; a column of them stands beside a column of texts")
    return same


def check_options_of_many(explain: ExplainOptions | None, request_id: str) -> None:
    """Refuse what a call for many texts does not have.

    Raises:
        ValueError: one of the options is given.
    """
    for name, given in (("explain", explain is not None), ("request_id", bool(request_id))):
        if given:
            raise ValueError(f"{name} is for one text; for many, call classify for each")


def headers(request_id: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """The arguments of a call that give it this id; empty: none.

    Raises:
        ValueError: the server would not keep the id: it is not empty, and has other characters than printable ASCII, or more than
            REQUEST_ID_MAX.
    """
    if not (request_id.isascii() and request_id.isprintable() and len(request_id) <= REQUEST_ID_MAX):
        raise ValueError(f"request_id must have 1 to {REQUEST_ID_MAX} printable ASCII characters, got {len(request_id)} characters")
    return {"metadata": ((REQUEST_ID, request_id),)} if request_id else {}


def explanation(text: Item, options: Options, label: str, explain: ExplainOptions | None, target: str = "") -> pb.ExplainRequest:
    """An Explain request.

    Raises:
        CallFailed: as in ``item_of``; also if the label or the target is not valid Unicode.
        ModuleNotFoundError: as in ``one``.
        ValueError: as in ``one``, or the label is explained against itself.
    """
    need_numpy()
    if explain is not None:
        _check_options("options", explain)
    if label and explain is not None and label == explain.against:
        raise ValueError(f"options.against must be another label than label, got {label!r} for both")
    item = item_of(text)
    pair = item.text_pair if item.HasField("text_pair") else None
    for field, name in (("label", label), ("target", target)):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise _no_unicode(field, error) from error
    return pb.ExplainRequest(
        text=item.text,
        text_pair=pair,
        model=options.model,
        truncation=TRUNCATIONS[options.truncation],
        label=label,
        options=(explain or ExplainOptions()).message(),
        target=target,
    )


def feedback(label: str | None, text: TextOrPair | None, request_id: str, item: int, model: str) -> pb.FeedbackRequest:
    """A Feedback request. ``label``: None: no label is right.

    Raises:
        CallFailed: as in ``explanation``.
        ValueError: neither or both of text and request_id are given.
    """
    if (text is None) is not bool(request_id):
        raise ValueError("give either the text or the request_id of an answer")
    request = pb.FeedbackRequest(request_id=request_id, item=item, model=model, none=label is None)
    if text is not None:
        named = item_of(item_of_value(text))
        request.text = named.text
        if named.HasField("text_pair"):
            request.text_pair = named.text_pair
    try:
        request.label = label or ""
    except UnicodeEncodeError as error:
        raise _no_unicode("label", error) from error
    return request


def _no_unicode(field: str, error: UnicodeEncodeError) -> CallFailed:
    reason = f"has a lone surrogate at code point {error.start}; Unicode text has none"
    return _invalid(field, reason)


def _invalid(field: str, reason: str) -> CallFailed:
    return CallFailed(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {reason}", [Violation(field, reason)])


class Batch:
    """A ClassifyBatch request. Texts that are missing or not valid Unicode fail here, and the others are sent."""

    def __init__(self, texts: Iterable[Item], options: Options) -> None:
        self.request = pb.ClassifyBatchRequest()
        options.write(self.request)
        self._failed: list[CallFailed | None] = []
        for text in texts:
            try:
                self.request.items.append(item_of(text))
                self._failed.append(None)
            except CallFailed as error:
                self._failed.append(error)

    @property
    def count(self) -> int:
        """How many texts there are."""
        return len(self._failed)

    @property
    def sent(self) -> int:
        """How many texts are in the request."""
        return len(self.request.items)

    def answers(self, response: pb.ClassifyBatchResponse) -> list[Result]:
        """The results of the texts that were sent, in order."""
        return [
            _alone(result_of(result, item, self.request.sentences))
            for item, result in zip(self.request.items, response.results, strict=False)
        ]

    def results(self, answers: Iterable[Result]) -> list[Result]:
        """One result per text, in order, from the server's answers and the failures here."""
        given = iter(answers)
        return [failed or next(given) for failed in self._failed]


def _alone(result: Result) -> Result:
    """The result of an item as if its text had been sent alone: an error says text for ``items[3].text``, its place in some call."""
    if not isinstance(result, CallFailed) or not result.violations:
        return result
    violations = [replace(one, field=_PLACE.sub("", one.field)) for one in result.violations]
    return CallFailed(result.code, _PLACE.sub("", result.message), violations, result.retry_after_s, result.request_id)
