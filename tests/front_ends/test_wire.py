"""Frames decode to what was encoded, however the stream is split."""

import array
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentiment.batching.ticket import Priority
from sentiment.errors import Broken, Expired, ModelFailed, Refused, RequestError, Unavailable
from sentiment.model.tokenizer import Row
from sentiment.observability.tracing.trace import Place
from sentiment_front_ends import frames

ids = st.integers(0, 2**31 - 1)
numbers = st.integers(1, 2**64 - 1)
seconds = st.floats(0, 1e6)
digest = st.binary(min_size=frames.DIGEST_BYTES, max_size=frames.DIGEST_BYTES)
digests = st.lists(digest, max_size=4)
single = array.array("f", [0.1])[0]


@st.composite
def rows(draw: st.DrawFn) -> Row:
    length = draw(st.integers(1, 20))
    row = st.lists(ids, min_size=length, max_size=length)
    return Row(draw(row), draw(st.none() | row), False)


places = st.none() | st.builds(Place, st.integers(1, 2**128 - 1), numbers)
texts = st.lists(
    st.builds(
        frames.Text,
        numbers,
        seconds,
        st.sampled_from((Priority.INTERACTIVE, Priority.BULK)),
        st.lists(rows(), min_size=1, max_size=4),
        places,
        st.booleans(),
        numbers,
        numbers,
    ),
    max_size=8,
)


@given(st.integers(1, 5), st.data())
def test_logits_survive_a_round_trip_to_the_last_bit(labels: int, data: st.DataObject) -> None:
    logits = st.lists(st.floats(width=32), min_size=labels, max_size=labels)
    rows = st.lists(logits, min_size=1, max_size=3)
    answer = st.builds(frames.Answered, numbers, rows, seconds, seconds, st.integers(1, 2**32 - 1), st.booleans())
    sent = data.draw(st.lists(answer, min_size=1, max_size=5))

    found, backlog_s = frames.unpack_answers(frames.pack_answers(sent, 0.25))

    assert backlog_s == 0.25
    # By their text, in which NaN is NaN.
    assert repr(found) == repr(sent)


@pytest.mark.parametrize(
    "error",
    [
        Expired("late"),
        Unavailable("gone"),
        Refused("never", math.inf, "queue_full"),
        ModelFailed("ours"),
        Broken("bug"),
        Refused("full: é", 1.5, "queue_full"),
        Refused("later", 0.5, "backlog", 2.0),
    ],
)
@pytest.mark.parametrize("admitted", [True, False])
def test_an_error_keeps_its_class_message_and_fields(error: RequestError, admitted: bool) -> None:
    error.admitted, error.over_share, error.needs_s = admitted, not admitted, error.needs_s + 0.5
    ((number, found),), backlog_s = frames.unpack_failures(frames.pack_failures([frames.Failed(7, error)], 3.5))

    assert (number, found.admitted, backlog_s) == (7, admitted, 3.5)
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


# Unicode text without surrogates, as calls have it.
words = st.text(st.characters(codec="utf-8"))
flags = st.booleans()
samples = st.builds(
    frames.Sampled, words, st.none() | words, st.none() | st.just("windows"), words, st.floats(0, 1), flags, flags, st.integers(0)
)


@pytest.mark.parametrize(
    ("sendable", "pack", "unpack"),
    [
        (texts, frames.pack_texts, frames.unpack_texts),
        (st.lists(numbers), frames.pack_numbers, frames.unpack_numbers),
        (st.builds(frames.Listing, numbers, digests, digests), frames.pack_listing, frames.unpack_listing),
        (st.tuples(numbers, st.sets(digest, max_size=4)), lambda held: frames.pack_held(*held), frames.unpack_held),
        (samples, frames.pack_sampled, frames.unpack_sampled),
    ],
    ids=["texts", "numbers", "a list of models", "the models that are held", "a text to read once more"],
)
@given(data=st.data())
def test_what_is_sent_survives_a_round_trip(sendable: Any, pack: Any, unpack: Any, data: st.DataObject) -> None:
    sent = data.draw(sendable)

    assert unpack(pack(sent)) == sent


@given(digest, st.binary(max_size=40))
def test_a_frame_of_a_model_names_it(sent: bytes, body: bytes) -> None:
    ((kind, found),) = frames.Frames().feed(frames.model_frame(frames.Kind.ROWS, sent, body))

    assert (kind, frames.model_of(found)) == (frames.Kind.ROWS, (sent, body))


@given(st.lists(st.tuples(st.sampled_from(frames.Kind), st.binary(max_size=40)), max_size=6), st.lists(st.integers(0, 200), max_size=12))
def test_frames_are_the_same_however_the_stream_is_split(sent: list[tuple[frames.Kind, bytes]], cuts: list[int]) -> None:
    stream = b"".join(frames.frame(kind, body) for kind, body in sent)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = frames.Frames()

    found = [one for start, end in pairwise(edges) for one in reader.feed(stream[start:end])]

    assert found == sent


@pytest.mark.parametrize(("size", "kind"), [(frames.BODY_BYTES_MAX + 1, frames.Kind.ROWS), (0, 0), (0, frames.Kind.ASK + 1)])
def test_an_invalid_frame_is_refused_before_its_body_arrives(size: int, kind: int) -> None:
    with pytest.raises(frames.BadFrame, match=str(size)):
        list(frames.Frames().feed(frames.HEAD.pack(size, kind)))
