"""An explanation with more said in it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sentiment.v1 import sentiment_pb2 as pb

if TYPE_CHECKING:
    from sentiment.client.explanations import Explanation


def without_attention(explanation: "Explanation", why: str) -> "Explanation":
    """The explanation without its maps, and the note why."""
    kept = tuple(message for message in explanation.messages if not pb.ExplainResponse.FromString(message).HasField("tile"))
    return with_notes(replace(explanation, attention=None, messages=kept), [why])


def with_notes(explanation: "Explanation", notes: Sequence[str]) -> "Explanation":
    """The explanation, which is not complete any more, and says why."""
    told = (*explanation.summary.notes, *notes)
    last = pb.ExplainResponse.FromString(explanation.messages[-1])
    last.summary.complete = False
    last.summary.notes.extend(notes)
    summary = replace(explanation.summary, complete=False, notes=told)
    return replace(explanation, summary=summary, messages=(*explanation.messages[:-1], last.SerializeToString()))
