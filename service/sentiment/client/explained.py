"""The way to explanations, which are NumPy arrays: what reads them is imported with the first, for classification needs no NumPy."""

# ruff: noqa: PLC0415 - as said above

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from sentiment.client.packages import imported
from sentiment.client.results import Classification, classification_of, ignored_parts
from sentiment.v1 import sentiment_pb2 as pb

if TYPE_CHECKING:
    from sentiment.client.explanation_reader import Reader
    from sentiment.client.explanations import Explanation


def need_numpy() -> None:
    """Refuse to ask a server for what this process cannot read.

    Raises:
        ModuleNotFoundError: NumPy is not installed.
    """
    imported("numpy", "an explanation")


def explained_of(response: pb.ClassifyResponse, request: pb.ClassifyRequest) -> Classification:
    """Read an answer with its explanation, if it has one.

    Raises:
        CallFailed: as in ``explanation_of``, or the server ignores sentences or targets (UNIMPLEMENTED).
    """
    if failed := ignored_parts(response, request, request.sentences):
        raise failed
    answer = classification_of(response, request.text)
    if not response.HasField("explanation"):
        return answer
    from sentiment.client.explanation_reader import messages_of

    text_pair = request.text_pair if request.HasField("text_pair") else None
    return replace(answer, explanation=explanation_of(messages_of(response.explanation), request.text, text_pair))


def explanation_of(messages: Iterable[pb.ExplainResponse], text: str, text_pair: str | None = None) -> "Explanation":
    """Read an explanation of the text or pair that was sent.

    Raises:
        CallFailed: the messages end before the summary (UNAVAILABLE), or contradict each other (INTERNAL).
    """
    from sentiment.client.explanation_reader import Reader

    reader = Reader(text, text_pair)
    for message in messages:
        reader.take(message)
    return reader.explanation()


def reader_of(request: pb.ExplainRequest | pb.ClassifyRequest) -> "Reader":
    """A reader of the messages of the explanation that is asked for."""
    from sentiment.client.explanation_reader import Reader

    text_pair = request.text_pair if request.HasField("text_pair") else None
    return Reader(request.text, text_pair, request.target if isinstance(request, pb.ExplainRequest) else "")
