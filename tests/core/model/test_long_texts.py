"""Texts longer than a row: which tokens are read, cuts between words, and the special tokens of each template."""

import itertools
import time
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sentiment.model.long_texts import breaks, head_end, tail_start, window_spans
from sentiment.model.tokenizer import CUT_CHARACTERS_PER_TOKEN, Tokenizer
from tests.core.model.test_tokenizer import Counting, make_byte_tokenizer, make_subword_tokenizer
from tests.tiny import SPECIAL, make_tokenizer

MAX_TOKENS = 16
# Words of 1 to 9 tokens.
WORDS = st.lists(st.integers(1, 9), min_size=1, max_size=60).map(
    lambda lengths: [word for word, length in enumerate(lengths) for _ in range(length)]
)


@settings(max_examples=60)
@given(words=WORDS, room=st.integers(1, 24), stride=st.integers(1, 24), count_max=st.integers(1, 40))
@example(words=[0] * 100, room=10, stride=5, count_max=40)
@example(words=[0, *[1] * 99], room=10, stride=5, count_max=40)
@example(words=[0, 0, 1, 1], room=2, stride=1, count_max=2)
@example(words=[None] * 30, room=10, stride=10, count_max=40)
def test_windows_cover_the_text_in_order_without_a_gap(words: list[int | None], room: int, stride: int, count_max: int) -> None:
    stride = min(stride, room)

    spans = window_spans(words, room, stride, count_max)

    assert spans[0][0] == 0
    assert 1 <= len(spans) <= count_max
    assert all(0 < end - start <= room for start, end in spans)
    for (start, end), (following, later) in itertools.pairwise(spans):
        assert (stride + 1) // 2 <= following - start <= stride
        assert following <= end < later
    assert spans[-1][1] == len(words) or len(spans) == count_max


@settings(max_examples=60)
@given(words=WORDS, room=st.integers(18, 40), overlap=st.integers(0, 10))
def test_no_word_of_at_most_half_a_stride_is_cut(words: list[int], room: int, overlap: int) -> None:
    spans = window_spans(words, room, max(18, room - overlap), 100)

    assert all(place in (0, len(words)) or breaks(words, place) for span in spans for place in span)


def test_words_longer_than_a_window_are_cut_where_it_ends() -> None:
    assert window_spans([0] * 25, 10, 6, 9) == [(0, 10), (6, 16), (12, 22), (18, 25)]


def test_a_text_of_exactly_one_window_has_one() -> None:
    assert window_spans([0, 1, 2], 3, 1, 9) == [(0, 3)]
    assert window_spans([0, 1, 2, 3], 3, 3, 9) == [(0, 3), (3, 4)]


@pytest.mark.parametrize(("words", "head"), [([0, 1, 2, 3, 4], 4), ([0, 1, 2, 2, 2], 2), ([0, 0, 0, 1, 1], 3), ([0, 1, 1, 1, 1], 4)])
def test_a_head_ends_after_a_word_unless_that_drops_more_than_half_of_it(words: list[int], head: int) -> None:
    assert head_end(words, 4) == head


@pytest.mark.parametrize(("words", "start"), [([0, 1, 2, 3, 4], 1), ([0, 0, 0, 1, 2], 3), ([0, 0, 1, 1, 1], 2), ([0, 0, 0, 0, 1], 1)])
def test_a_tail_begins_with_a_word_unless_that_drops_more_than_half_of_it(words: list[int], start: int) -> None:
    assert tail_start(words, 4) == start


def make_roberta_tokenizer() -> tokenizers.Tokenizer:
    """As RoBERTa's: its own kind of post-processor."""
    tokenizer = make_byte_tokenizer()
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def make_xlnet_tokenizer() -> tokenizers.Tokenizer:
    """As XLNet's: pieces of words with their white space, special tokens at the end, the last of a type of its own."""
    pieces = [*SPECIAL, "\u2581", "\u2581good", "\u2581film", "a", "b", "c", "good", "film", "ly", ".", "!"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.Unigram([(piece, -float(len(pieces) - len(piece))) for piece in pieces], 1, byte_fallback=False)
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A:0 [SEP]:0 [CLS]:2", pair="$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:2", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


# Ids before and after a text, and the type ids after it.
FRAMES = {
    "words": ([2], [3], []),
    "subwords": ([2], [3], []),
    "bytes": ([2], [3], []),
    "roberta": ([2], [3], []),
    "xlnet": ([], [3, 2], [0, 2]),
}
PLAIN = {
    "words": make_tokenizer(),
    "subwords": make_subword_tokenizer(),
    "bytes": make_byte_tokenizer(),
    "roberta": make_roberta_tokenizer(),
    "xlnet": make_xlnet_tokenizer(),
}
ROOM = MAX_TOKENS - 2


@pytest.fixture(scope="module", params=PLAIN)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ours(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp(kind) / "tokenizer.json"
    PLAIN[kind].save(str(path))
    return Tokenizer(path, MAX_TOKENS)


def whole(kind: str, text: str) -> tuple[list[int], list[int | None]]:
    """The ids and words of the whole text."""
    encoding = PLAIN[kind].encode(text, add_special_tokens=False)
    return encoding.ids, encoding.word_ids


PIECES = st.one_of(
    st.sampled_from(
        ["good", "film", "goodly", "bad", "a", "aab", "w-3", ".", ",", "!", "\u4e2d", "\u00e9", "e\u0301", "\U0001f600", "\x00"]
    ),
    st.sampled_from([" ", "\n", "\t", "\u3000"]),
    st.builds(lambda piece, times: piece * times, st.sampled_from([" ", "a", "b", "good", "."]), st.integers(1, 300)),
)
TEXTS = st.lists(PIECES, min_size=1, max_size=60).flatmap(
    lambda pieces: st.sampled_from(["", " "]).map(lambda between: between.join(pieces))
)


def assert_framed(kind: str, ids: list[int], types: list[int] | None) -> list[int]:
    """Check the special tokens of a row, and return the ids of the text."""
    before, after, after_types = FRAMES[kind]
    own = ids[len(before) : len(ids) - len(after)]
    assert ids == [*before, *own, *after]
    assert types == ([0] * len(own) + after_types if any(after_types) else None)
    return own


@settings(max_examples=40, print_blob=True)
@given(text=TEXTS, count_max=st.sampled_from([1, 3, 64]))
@example(text="good " * 60, count_max=64)
@example(text="goodly " * 1000, count_max=3)
@example(text="a" * 5000, count_max=3)
@example(text="good film " + " " * 1000 + "a " * 30, count_max=64)
def test_windows_are_slices_of_the_ids_of_the_whole_text(kind: str, ours: Tokenizer, text: str, count_max: int) -> None:
    ids, words = whole(kind, text)
    spans = window_spans(words, ROOM, 5, count_max)

    found = ours.encode_windows(text, MAX_TOKENS, 5, count_max)

    assert [assert_framed(kind, list(row.ids), row.type_ids) for row in found.rows] == [ids[start:end] for start, end in spans]
    assert (found.tokens, found.truncated) == (spans[-1][1] + 2, spans[-1][1] < len(ids))


@settings(max_examples=40, print_blob=True)
@given(text=TEXTS, head=st.integers(1, ROOM - 1))
@example(text="good " * 1000 + "film " * 5, head=4)
@example(text="goodly " * 1000, head=4)
@example(text="a" * 5000, head=4)
@example(text="good " * 30 + " " * 1000, head=4)
def test_head_and_tail_are_the_first_and_the_last_ids_of_the_whole_text(kind: str, ours: Tokenizer, text: str, head: int) -> None:
    ids, words = whole(kind, text)
    if len(ids) <= ROOM:
        return

    row = ours.encode_head_tail(text, head)

    own = assert_framed(kind, list(row.ids), row.type_ids)
    assert own == ids[: head_end(words, head)] + ids[tail_start(words, ROOM - head) :]
    assert row.truncated


def test_single_token_words_fill_the_row_with_head_and_tail(kind: str, ours: Tokenizer) -> None:
    text = "film " * 40 + "good " * 40

    row = ours.encode_head_tail(text, 4)

    ids, _ = whole(kind, text)
    if kind in ("words", "subwords"):
        assert assert_framed(kind, list(row.ids), row.type_ids) == ids[:4] + ids[-10:]
    assert row.tokens <= MAX_TOKENS


@pytest.mark.parametrize("kind", ["subwords"], indirect=True)
def test_the_pieces_of_a_word_stay_together(ours: Tokenizer, kind: str) -> None:
    text = "goodly bad " * 50
    piece = PLAIN[kind].token_to_id("##ly")

    rows = [*ours.encode_windows(text, MAX_TOKENS, 7, 64).rows, ours.encode_head_tail(text, 5)]

    good = PLAIN[kind].token_to_id("good")
    for row in rows:
        assert all((following == piece) == (first == good) for first, following in itertools.pairwise(row.ids))


@pytest.mark.parametrize("kind", ["subwords"], indirect=True)
def test_a_special_token_spelled_in_a_text_counts_as_text(ours: Tokenizer) -> None:
    text = "[CLS] [SEP] " * 20

    found = ours.encode_windows(text, MAX_TOKENS, 7, 64)

    assert found.tokens == len(whole("subwords", text)[0]) + 2


def test_every_way_to_encode_a_text_gives_the_types_of_the_template(kind: str, ours: Tokenizer) -> None:
    short, long = "good film", "good film " * 50

    for row in (ours.encode(short), *ours.encode_many([short, long]), ours.encode(long), ours.encode_head_tail(long, 4)):
        assert_framed(kind, list(row.ids), row.type_ids)


@pytest.mark.parametrize("read", ["windows", "head_tail"])
def test_the_work_is_bounded_by_the_row_and_not_by_the_text(ours: Tokenizer, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(ours._tokenizer)
    monkeypatch.setattr(ours, "_tokenizer", counting)
    text = "good film " * 100_000

    if read == "windows":
        ours.encode_windows(text, MAX_TOKENS, 7, 8)
    else:
        ours.encode_head_tail(text, 4)

    # Twice what 8 windows, or head and tail, could hold, and each cut tried once more.
    assert counting.read <= 4 * CUT_CHARACTERS_PER_TOKEN * (ROOM + 7 * 7)


@pytest.mark.parametrize("kind", ["subwords", "xlnet"], indirect=True)
@pytest.mark.parametrize("text", ["a" * 2**16, "good" + " " * 2**16 + "film " * 20], ids=["one-word", "white-space"])
def test_a_long_text_without_words_is_read_quickly(ours: Tokenizer, text: str) -> None:
    begun = time.process_time()

    windows, row = ours.encode_windows(text, MAX_TOKENS, 7, 8), ours.encode(text)
    if row.truncated:
        ours.encode_head_tail(text, 4)

    assert 1 <= len(windows.rows) <= 8
    assert time.process_time() - begun < 5


def test_padding_in_the_tokenizer_file_is_ignored(tmp_path: Path) -> None:
    plain = make_xlnet_tokenizer()
    plain.enable_padding(direction="left", pad_id=0, pad_token="[PAD]", length=64)
    plain.save(str(tmp_path / "tokenizer.json"))

    found = Tokenizer(tmp_path / "tokenizer.json", MAX_TOKENS).encode_windows("good film " * 50, MAX_TOKENS, 7, 64)

    assert 0 not in [number for row in found.rows for number in row.ids]
