"""Text to rows: shortening huge texts changes no token and bounds the work."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from sentiment.errors import BadBundle
from sentiment.model import known_words
from sentiment.model.tokenizer import CUT_CHARACTERS_MAX, CUT_CHARACTERS_PER_TOKEN, PAIR_GROWTH, Row, Tokenizer
from tests.english import ENGLISH
from tests.tiny import SPECIAL, WEIGHTS, make_tokenizer

MAX_TOKENS = 16
CUT = CUT_CHARACTERS_PER_TOKEN * MAX_TOKENS


def make_subword_tokenizer() -> tokenizers.Tokenizer:
    """As BERT's: punctuation splits words, words become pieces, and a word of more than 100 characters is unknown."""
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


def make_cased_tokenizer() -> tokenizers.Tokenizer:
    """As BERT's cased tokenizer, with added tokens: an emoji, two joined emoji, a keycap, and words."""
    tokenizer = make_subword_tokenizer()
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
    added = ("[SEP]", "\U0001f600", "\u2764\ufe0f", "\U0001f469\u200d\U0001f680", "1\ufe0f\u20e3", "wow", "@user", "tag:")
    tokenizer.add_tokens([tokenizers.AddedToken(content, normalized=False) for content in added])
    return tokenizer


def make_piece_tokenizer() -> tokenizers.Tokenizer:
    """As ALBERT's: pieces include their white space, accents are dropped, and unknown text of any length is one token."""
    pieces = [*SPECIAL, "\u2581", "\u2581good", "\u2581film", "\u2581a", *"abce.,!", "ly", "film", "good"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram([(piece, -10.0 + len(piece)) for piece in pieces], 1))
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [
            *(tokenizers.normalizers.NFKD(), tokenizers.normalizers.StripAccents(), tokenizers.normalizers.Lowercase()),
            tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.post_processor = make_tokenizer().post_processor
    return tokenizer


KINDS = {
    "words": make_tokenizer,
    "subwords": make_subword_tokenizer,
    "cased": make_cased_tokenizer,
    "bytes": make_byte_tokenizer,
    "pieces": make_piece_tokenizer,
    "english": lambda: tokenizers.Tokenizer.from_file(str(ENGLISH / "tokenizer.json")),
}


def make_whole(kind: str) -> tokenizers.Tokenizer:
    """The library's tokenizer, which reads the whole text and truncates its tokens."""
    tokenizer = KINDS[kind]()
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


WHOLE = {kind: make_whole(kind) for kind in KINDS}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ours(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp(kind) / "tokenizer.json"
    KINDS[kind]().save(str(path))
    # Not saved by the library, which would lose the spelling of the file.
    return Tokenizer(ENGLISH / "tokenizer.json" if kind == "english" else path, MAX_TOKENS)


def spans(encoding: tokenizers.Encoding, source: int, text: str) -> list[tuple[int, int]]:
    """The spans of the tokens of one text, without the white space that some tokenizers include."""
    found = []
    tokens = zip(encoding.offsets, encoding.sequence_ids, encoding.special_tokens_mask, strict=True)
    for (start, end), own, special in tokens:
        if own == source and not special:
            left = len(text[start:end]) - len(text[start:end].lstrip())
            found.append((start + left, max(start + left, start + len(text[start:end].rstrip()))))
    return found


SIGNS = [
    *("a", "b", "e", "good", "film", "badly", "w-3", "wow", "abcdefghijklmnopqrstuvwxyz", ".", ",", "!", "-", "_", "$", "1"),
    *(
        "\u00e9",
        "e\u0301",
        "\u0301",
        "\u0323",
        "\uac00",
        "\u1100\u1161",
        "\u00df",
        "\u0b95",
        "\u1200",
        "\u1000",
        "\u0130",
        "\ufdfa",
        "\ufb01",
    ),
    *("\u4e2d", "\U00020000", "\U0001d41a", "\u2260", "\u20ac", "\u2665", "\u00b4", "\ufffd", "\u0600", "\u08d4", "\U0001d15e", "\ue000"),
    *(
        "\U0001f600",
        "\U0001f469\u200d\U0001f680",
        "\u2764\ufe0f",
        "1\ufe0f\u20e3",
        "\u20e3",
        "\ufe0f",
        "\u200d",
        "[SEP]",
        "[CL",
        "[UNK]",
        "@user",
        "tag:",
    ),
]
SILENT = [" ", "\n", "\t", "\r", "\u2028", "\u3000", "\u00a0", "\x00", "\x07", "\ufeff", "\u200b", "\u00ad"]
TIMES = st.sampled_from([1, 2, 3, 25, 99, 100, 101, 102, 300, 1000])
# Single characters, runs of one character, and mixed runs of a few.
PIECES = st.one_of(
    st.sampled_from([*SIGNS, *SILENT]),
    st.builds(lambda piece, times: piece * times, st.sampled_from([*SIGNS, *SILENT]), TIMES),
    st.builds(
        lambda some, times, seed: "".join(random.Random(seed).choices(some, k=times)),
        *(st.lists(st.sampled_from([*SIGNS, *SILENT]), min_size=2, max_size=5), TIMES, st.integers(0, 2**16)),
    ),
)
TEXTS = st.lists(PIECES, max_size=20).flatmap(lambda pieces: st.sampled_from(["", " "]).map(lambda between: between.join(pieces)))


@settings(max_examples=150, print_blob=True)
@given(text=TEXTS)
@example(text="good " * MAX_TOKENS * 8)
@example(text=" " * CUT + "good film")
@example(text="a" * (CUT - 1) + " " + "b" * CUT)
@example(text="a" * 99 + " " + "b" * (CUT - 100) + "b" * 100)
@example(text="." * (CUT + 1))
@example(text="good " * (MAX_TOKENS - 2) + " " * CUT + "film")
@example(text="a" * CUT + "\u0301 good")
@example(text="good " * (MAX_TOKENS - 3) + "[SEP]" + " good" * CUT)
@example(text=("a" * 50 + "\u1200 ") * 400)
@example(text=("\u0b95" * 100 + " ") * 40)
@example(text="good @user" + "x" * 120 + " " + "y" * 120 + "tag: bad")
@example(text="x" * 300 + "\u2764\ufe0f" + "x" * 300 + "\x00" * 300 + "1\ufe0f\u20e3")
def test_a_text_has_the_tokens_and_offsets_of_the_whole(kind: str, ours: Tokenizer, text: str) -> None:
    # Other tokenizers cannot always be shortened, and then the text beyond the limit is not read.
    assume(kind == "english" or len(text) <= CUT_CHARACTERS_MAX)
    whole = WHOLE[kind].encode(text)

    row, explained = ours.encode(text), ours.encode_explained(text)

    assert (list(row.ids), row.truncated) == (whole.ids, bool(whole.overflowing))
    assert row.type_ids is None
    # Its words are known by now.
    assert ours.encode(text) == row
    assert ours.encode_short(text, len(text)) in ((row,) if ours.is_plain(text) else (row, None))
    assert (list(explained.ids), explained.truncated) == (whole.ids, row.truncated)
    # Unicode reorders some accents; the library's offsets are then those of the places, not of the accents.
    if "\u08d4" not in text:
        assert [(token.start, token.end) for token in explained.tokens if not token.special] == spans(whole, 0, text)
    assert [token.piece for token in explained.tokens] == whole.tokens


@settings(max_examples=60, print_blob=True)
@given(text=TEXTS, pair=TEXTS)
@example(text="good " * 40, pair="film " * 39)
@example(text="good " * 39, pair="film " * 40)
@example(text=" " * 4 * CUT + "good", pair="a" * 4 * CUT)
def test_a_pair_has_the_tokens_and_offsets_of_the_whole(kind: str, ours: Tokenizer, text: str, pair: str) -> None:
    # If both texts are far too long, the longer one is not determined.
    assume(min(map(len, (text, pair))) < PAIR_GROWTH * (MAX_TOKENS - 3) // 3)
    assume(kind == "english" or max(map(len, (text, pair))) <= CUT_CHARACTERS_MAX)
    whole = WHOLE[kind].encode(text, pair)

    row, explained = ours.encode(text, pair), ours.encode_explained(text, pair)

    assert (list(row.ids), row.type_ids, row.truncated) == (whole.ids, whole.type_ids, bool(whole.overflowing))
    assert (list(explained.ids), list(explained.type_ids or ())) == (whole.ids, whole.type_ids)
    for source, one in enumerate((text, pair)):
        own = [(token.start, token.end) for token in explained.tokens if not token.special and token.pair == bool(source)]
        assert own == spans(whole, source, one) or "\u08d4" in one


@settings(max_examples=50, print_blob=True)
@given(texts=st.lists(TEXTS, max_size=6))
def test_many_texts_together_have_the_same_rows_as_one_by_one(ours: Tokenizer, texts: list[str]) -> None:
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
    """Counts the characters that the tokenizer reads, and those that it reads while it holds the GIL."""

    def __init__(self, real: Any) -> None:  # the Rust class, untyped
        self._real = real
        self.read = 0
        self.waited_for = 0

    def encode(self, text: str) -> Any:  # as above
        self.read += len(text)
        self.waited_for += len(text)
        return self._real.encode(text)

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        self.read += sum(map(len, texts))
        return self._real.encode_batch(texts, **options)

    def encode_batch_fast(self, texts: list[str]) -> Any:
        return self.encode_batch(texts)

    def id_to_token(self, number: int) -> Any:
        return self._real.id_to_token(number)


@pytest.fixture
def counting(ours: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting(ours._tokenizer)
    monkeypatch.setattr(ours, "_tokenizer", counting)
    return counting


def test_the_work_is_bounded_by_the_row_and_not_by_the_text(ours: Tokenizer, counting: Counting) -> None:
    row = ours.encode("good film " * 100_000)

    assert row.tokens == MAX_TOKENS
    assert counting.read <= 2 * CUT


MEGABYTE = 2**20
# Texts with few tokens, or with costly ones.
HARD = {
    "letters": "a" * MEGABYTE,
    "hangul": "\uac00" * (MEGABYTE // 3),
    "accents": "\u0301" * (MEGABYTE // 2),
    "a letter with accents": "a" + "\u0301" * (MEGABYTE // 2),
    "blanks": " " * MEGABYTE + "a",
    "nul": "\x00" * MEGABYTE + "a",
    "dropped between": "a\x00" * (MEGABYTE // 2),
    "unknown words": ("ab" * 49 + "\u1200 ") * (MEGABYTE // 102),
    "unknown hangul words": ("\uac00" * 50 + " ") * (MEGABYTE // 151),
    "endless words": ("a" * 101 + " ") * (MEGABYTE // 102),
}


@pytest.mark.parametrize("kind", ["english"], indirect=True)
@pytest.mark.parametrize("text", HARD.values(), ids=HARD.keys())
def test_only_a_small_part_of_a_megabyte_reaches_the_tokenizer(ours: Tokenizer, text: str, counting: Counting) -> None:
    rows = [ours.encode(text), ours.encode(text, "a"), *ours.encode_many([text])]
    rows += [*ours.encode_windows(text, MAX_TOKENS, 7, 8).rows]
    explained = ours.encode_explained(text)

    assert all(row.tokens <= MAX_TOKENS for row in rows)
    assert list(explained.ids) == list(rows[0].ids)
    assert counting.read < 20 * CUT
    assert counting.waited_for <= 1


@pytest.mark.parametrize("kind", ["english"], indirect=True)
@pytest.mark.parametrize("text", HARD.values(), ids=HARD.keys())
def test_a_part_of_a_megabyte_has_the_tokens_of_the_whole(kind: str, ours: Tokenizer, text: str) -> None:
    text = text[-(2**16) :] + " good"
    whole = WHOLE[kind].encode(text)

    row = ours.encode(text)

    assert (list(row.ids), row.truncated) == (whole.ids, bool(whole.overflowing))


@pytest.mark.parametrize("kind", ["bytes", "pieces", "cased"], indirect=True)
@pytest.mark.parametrize("text", ["a" * MEGABYTE, "\u08d4" * MEGABYTE], ids=["letters", "accents of which nothing is known"])
def test_of_an_unknown_tokenizer_a_bounded_part_is_read(ours: Tokenizer, text: str, counting: Counting) -> None:
    row = ours.encode(text)

    assert counting.read < 3 * CUT_CHARACTERS_MAX
    assert row.tokens <= MAX_TOKENS


def test_long_words_and_long_texts_are_not_plain(ours: Tokenizer) -> None:
    assert ours.is_plain("good film " * 10)
    assert ours.is_plain("a" * 24)
    assert not ours.is_plain("good " + "a" * 25)
    assert ours.encode_short("good film " * 10, 99) is None
    assert ours.encode_short("good film " * 10, 100) == ours.encode("good film " * 10)
    assert not ours.is_plain("good film " * CUT)


def test_the_types_of_a_pair_tell_its_texts_apart(kind: str, ours: Tokenizer) -> None:
    row = ours.encode("a a", "a a a")

    assert row.type_ids == [0, 0, 0, 0, 1, 1, 1, 1]
    assert list(row.ids) == WHOLE[kind].encode("a a", "a a a").ids
    assert (row.tokens, row.truncated) == (8, False)


@pytest.mark.parametrize(("first", "second"), [(100, 1), (1, 100), (100, 100), (1, 100_000), (100_000, 100_000)])
def test_a_pair_that_does_not_fit_loses_the_end_of_the_longer_text(ours: Tokenizer, first: int, second: int) -> None:
    row = ours.encode("a " * first, "a " * second)

    own = [row.type_ids.count(number) for number in (0, 1)] if row.type_ids else []
    assert (row.tokens, row.truncated) == (MAX_TOKENS, True)
    assert min(own) >= min(2, first)
    assert abs(own[0] - own[1]) <= 1 or min(first, second) == 1


def test_known_words_are_forgotten_before_they_take_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_words, "WORDS_MAX", 20)
    make_subword_tokenizer().save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer(tmp_path / "tokenizer.json", MAX_TOKENS)
    assert ours._words is not None
    kept = 0

    for number in range(100):
        # Every other text has a word that is too long to be read by itself.
        text = f"good a{'b' * (number % 20)}c{'e' * (number // 20)} {'a' * 25 * (number % 2)}"
        assert list(ours.encode(text).ids) == WHOLE["subwords"].encode(text).ids
        kept = max(kept, len(ours._words._newer) + len(ours._words._older))
        assert "good" in {*ours._words._newer, *ours._words._older}, "a word in use was forgotten"

    assert 10 <= kept <= 24


def test_several_threads_get_the_same_rows_as_one(ours: Tokenizer) -> None:
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


def test_a_file_that_is_not_a_tokenizer_is_a_bad_bundle(tmp_path: Path) -> None:
    for content in (b"", b"{}", b"\xff", b'{"version": "1.0", "model": {"type": "NoSuch"}}'):
        (tmp_path / "tokenizer.json").write_bytes(content)

        with pytest.raises(BadBundle, match=r"tokenizer\.json: not a tokenizer: "):
            Tokenizer(tmp_path / "tokenizer.json", MAX_TOKENS)
