"""Requests as both clients send them."""

from collections.abc import Iterable, Sequence

import grpc

from sentiment.client.results import CallFailed, Result, Violation
from sentiment.v1 import sentiment_pb2 as pb

TextOrPair = str | tuple[str, str]
TRUNCATIONS = {"": pb.TRUNCATION_UNSPECIFIED, "refuse": pb.TRUNCATION_REFUSE, "head": pb.TRUNCATION_HEAD}


def truncation_of(name: str) -> pb.Truncation.ValueType:
    """The enum value of ``refuse``, ``head`` or the empty string (the model's default).

    Raises:
        ValueError: another name.
    """
    if name not in TRUNCATIONS:
        raise ValueError(f"truncation is {name!r}; known are refuse, head and the empty string for the model's default")
    return TRUNCATIONS[name]


def item_of(text: TextOrPair) -> pb.Item:
    """An item of a batch or stream.

    Raises:
        CallFailed: the text is no Unicode, so that no message can carry it.
    """
    try:
        return pb.Item(text=text) if isinstance(text, str) else pb.Item(text=text[0], text_pair=text[1])
    except UnicodeEncodeError as error:
        reason = f"has a lone surrogate at code point {error.start}; Unicode text has none"
        raise CallFailed(grpc.StatusCode.INVALID_ARGUMENT, f"text: {reason}", [Violation("text", reason)]) from error


def one(text: TextOrPair, model: str, truncation: str) -> pb.ClassifyRequest:
    """A Classify request.

    Raises:
        CallFailed: as ``item_of``.
    """
    item = item_of(text)
    pair = item.text_pair if item.HasField("text_pair") else None
    return pb.ClassifyRequest(text=item.text, text_pair=pair, model=model, truncation=truncation_of(truncation))


class Batch:
    """A ClassifyBatch request of those texts that a message can carry; the others fail here, each on its own."""

    def __init__(self, texts: Sequence[TextOrPair], model: str, truncation: str) -> None:
        self.request = pb.ClassifyBatchRequest(model=model, truncation=truncation_of(truncation))
        self._failed: list[CallFailed | None] = []
        for text in texts:
            try:
                self.request.items.append(item_of(text))
                self._failed.append(None)
            except CallFailed as error:
                self._failed.append(error)

    @property
    def sent(self) -> int:
        """How many texts the server is asked about."""
        return len(self.request.items)

    def results(self, answers: Iterable[Result]) -> list[Result]:
        """One result a text, in order, from the server's answers."""
        given = iter(answers)
        return [failed or next(given) for failed in self._failed]
