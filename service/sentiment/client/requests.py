"""Requests as both clients send them."""

from collections.abc import Sequence

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
    """An item of a batch or stream."""
    return pb.Item(text=text) if isinstance(text, str) else pb.Item(text=text[0], text_pair=text[1])


def one(text: TextOrPair, model: str, truncation: str) -> pb.ClassifyRequest:
    """A Classify request."""
    item = item_of(text)
    pair = item.text_pair if item.HasField("text_pair") else None
    return pb.ClassifyRequest(text=item.text, text_pair=pair, model=model, truncation=truncation_of(truncation))


def many(texts: Sequence[TextOrPair], model: str, truncation: str) -> pb.ClassifyBatchRequest:
    """A ClassifyBatch request."""
    return pb.ClassifyBatchRequest(items=[item_of(text) for text in texts], model=model, truncation=truncation_of(truncation))
