"""Text to rows: the cut of huge texts changes nothing, and bounds what is read."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sentiment.errors import BadBundle
from sentiment.model.tokenizer import CUT_CHARACTERS_PER_TOKEN, Row, Tokenizer
from tests.tiny import SPECIAL, WEIGHTS, make_tokenizer

MAX_TOKENS = 16
CUT = CUT_CHARACTERS_PER_TOKEN * MAX_TOKENS


def make_subword_tokenizer() -> tokenizers.Tokenizer:
    """As BERT's: words part at punctuation and become pieces; one of more than 100 characters is unknown."""
    pieces = ["good", "film", "bad", "a", "b", "c", "e", ".", ",", "\u4e2d", "##good", "##ly", "##a", "##b", "##c", "##e"]
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *pieces))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = make_tokenizer().post_processor
    return tokenizer


def make_byte_tokenizer() -> tokenizers.Tokenizer:
    """As RoBERTa's: white space belongs to the word after it, and no word is unknown."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *alphabet, "aa", "\u0120a"))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "a"), ("\u0120", "a")]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = make_tokenizer().post_processor
    return tokenizer


KINDS = {"words": make_tokenizer, "subwords": make_subword_tokenizer, "bytes": make_byte_tokenizer}
PLAIN = {kind: make() for kind, make in KINDS.items()}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ours(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp(kind) / "tokenizer.json"
    PLAIN[kind].save(str(path))
    return Tokenizer(path, MAX_TOKENS)


def whole(kind: str, text: str) -> tuple[list[int], bool]:
    """The first tokens of a text that was tokenized as a whole, and whether there were more."""
    ids = PLAIN[kind].encode(text, add_special_tokens=False).ids
    room = MAX_TOKENS - 2
    return [2, *ids[:room], 3], len(ids) > room


PIECES = st.one_of(
    st.sampled_from(
        ["good", "film", "badly", "a", "w-3", "w3", ".", ",", "!", "\u4e2d", "\u00e9", "e\u0301", "\u0301", "\U0001f600", "\x00", "\ufeff"]
    ),
    st.sampled_from([" ", "\n", "\t", "\u2028", "\u3000", "\r"]),
    st.builds(
        lambda piece, times: piece * times, st.sampled_from([" ", "a", "b", "ab", "good", ".", " .", "\u0301"]), st.integers(1, 2 * CUT)
    ),
)
TEXTS = st.lists(PIECES, max_size=40).flatmap(lambda pieces: st.sampled_from(["", " "]).map(lambda between: between.join(pieces)))


@settings(deadline=None, max_examples=150, print_blob=True)
@given(text=TEXTS)
@example(text="good " * MAX_TOKENS * 8)
@example(text=" " * CUT + "good film")
@example(text="a" * (CUT - 1) + " " + "b" * CUT)
@example(text="a" * 99 + " " + "b" * (CUT - 100) + "b" * 100)
@example(text="." * (CUT + 1))
@example(text="good " * (MAX_TOKENS - 2) + " " * CUT + "film")
@example(text="a" * CUT + "\u0301 good")
def test_the_cut_of_a_huge_text_changes_nothing(kind: str, ours: Tokenizer, text: str) -> None:
    row = ours.encode(text)

    assert (list(row.ids), row.truncated) == whole(kind, text)
    assert row.type_ids is None


@settings(deadline=None, max_examples=50, print_blob=True)
@given(texts=st.lists(TEXTS, max_size=6))
def test_many_texts_give_the_same_rows_as_one_by_one(ours: Tokenizer, texts: list[str]) -> None:
    assert ours.encode_many(texts) == [ours.encode(text) for text in texts]


@pytest.mark.parametrize(
    ("words", "truncated"), [(MAX_TOKENS - 3, False), (MAX_TOKENS - 2, False), (MAX_TOKENS - 1, True), (10 * MAX_TOKENS, True)]
)
def test_a_text_is_truncated_from_the_first_token_that_does_not_fit(ours: Tokenizer, words: int, truncated: bool) -> None:
    text = " ".join(["a"] * words)

    for row in (ours.encode(text), *ours.encode_many([text])):
        assert row.tokens == min(words + 2, MAX_TOKENS)
        assert row.truncated is truncated


class Counting:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, real: Any) -> None:  # the Rust class, untyped
        self._real = real
        self.read = 0

    def encode(self, text: str) -> Any:  # as above
        self.read += len(text)
        return self._real.encode(text)

    def encode_batch(self, texts: list[str]) -> Any:
        self.read += sum(map(len, texts))
        return self._real.encode_batch(texts)


def test_the_work_is_bounded_by_what_is_read_and_not_by_the_text(ours: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(ours._tokenizer)
    monkeypatch.setattr(ours, "_tokenizer", counting)

    row = ours.encode("good film " * 100_000)

    assert row.tokens == MAX_TOKENS
    assert counting.read <= 2 * CUT


@pytest.mark.parametrize("kind", ["subwords"], indirect=True)
@pytest.mark.parametrize("text", [" " * 2**20, "a" * 2**20, " " * 2**19 + "\u0301" * 2**18], ids=["white-space", "one-word", "nothing"])
def test_a_megabyte_of_anything_is_read_at_most_twice_and_quickly(ours: Tokenizer, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(ours._tokenizer)
    monkeypatch.setattr(ours, "_tokenizer", counting)
    begun = time.process_time()

    row = ours.encode(text)

    assert row.tokens <= MAX_TOKENS
    assert counting.read < 3 * len(text)
    # About half a second. Were the time to grow with the square of a word, it would be minutes.
    assert time.process_time() - begun < 5


def test_a_pair_has_both_texts_and_says_which_token_is_whose(ours: Tokenizer) -> None:
    row = ours.encode("a a", "a a a")

    assert row.type_ids == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [row.ids[place] for place in (0, 3, 7)] == [2, 3, 3]
    assert (row.tokens, row.truncated) == (8, False)


@pytest.mark.parametrize(("first", "second"), [(100, 1), (1, 100), (100, 100), (1, 100_000), (100_000, 100_000)])
def test_a_pair_that_does_not_fit_loses_the_end_of_the_longer_text(ours: Tokenizer, first: int, second: int) -> None:
    row = ours.encode("a " * first, "a " * second)

    own = [row.type_ids.count(number) for number in (0, 1)] if row.type_ids else []
    assert (row.tokens, row.truncated) == (MAX_TOKENS, True)
    assert min(own) >= min(2, first)
    assert abs(own[0] - own[1]) <= 1 or min(first, second) == 1


def test_threads_that_tokenize_at_once_get_what_one_would_get(ours: Tokenizer) -> None:
    words = itertools.cycle(WEIGHTS)
    texts = [" ".join(itertools.islice(words, length % 60)) for length in range(200)]
    alone = [ours.encode(text) for text in texts]

    def one_by_one(texts: list[str]) -> list[Row]:
        return [ours.encode(text) for text in texts]

    with ThreadPoolExecutor(8) as threads:
        together = [threads.submit(way, texts) for way in (one_by_one, ours.encode_many) * 4]

    assert all(future.result() == alone for future in together)


def test_the_padding_token_is_found_by_its_name(ours: Tokenizer) -> None:
    assert ours.pad_id == 0
    assert ours.special_tokens == 2


def test_a_file_that_is_no_tokenizer_is_a_bad_bundle(tmp_path: Path) -> None:
    for content in (b"", b"{}", b"\xff", b'{"version": "1.0", "model": {"type": "NoSuch"}}'):
        (tmp_path / "tokenizer.json").write_bytes(content)

        with pytest.raises(BadBundle, match=r"tokenizer\.json: not a tokenizer: "):
            Tokenizer(tmp_path / "tokenizer.json", MAX_TOKENS)
