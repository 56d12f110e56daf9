"""Typing slips, casing and the undoing of treebank tokenization."""

import random
import re
from difflib import SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentiment_models.data.perturb import detokenize, recase, sentence_case, typos

LONG = "The quick brown fox jumps over the lazy dog and then it rests in the warm shade of an old apple tree"


@pytest.mark.parametrize(
    ("tokenized", "written"),
    [
        ("", ""),
        ("good", "good"),
        ("you ca n't miss it .", "you can't miss it."),
        ("it wo n't , and it does n't .", "it won't, and it doesn't."),
        ("it 's the film 's strength", "it's the film's strength"),
        ("i 'm sure they 're right , we 've seen it and you 'll see", "i'm sure they're right, we've seen it and you'll see"),
        ("i 'd care to count", "i'd care to count"),
        ("IT 'S NOT , IS N'T IT ?", "IT'S NOT, ISN'T IT?"),
        ("the final -lrb- restored -rrb- third", "the final (restored) third"),
        ("the final ( restored ) third", "the final (restored) third"),
        ("-LRB- sic -RRB- , -LSB- x -RSB- -LCB- y -RCB-", "(sic), [x] {y}"),
        ("`` a triumph , '' he said .", '"a triumph," he said.'),
        ("a `` new '' `` old '' idea", 'a "new" "old" idea'),
        ('he said " yes " and " no " .', 'he said "yes" and "no".'),
        ("the ` big ' one", "the 'big' one"),
        ("the actors ' faces", "the actors' faces"),
        ("( `` quoted '' )", '("quoted")'),
        ("sketches ... which leaves", "sketches... which leaves"),
        (". . . and then", "... and then"),
        ("great !!! really ?! yes", "great!!! really?! yes"),
        ("a treat -- a delight", "a treat -- a delight"),
        ("loud ; bright : new", "loud; bright: new"),
        ("$ 20 million and 50 % more", "$20 million and 50% more"),
        ("i can not say", "i cannot say"),
        ("you gon na wan na see it , got ta go", "you gonna wanna see it, gotta go"),
        ("in the '70s and '80s", "in the '70s and '80s"),
        (", the film has a charm", ", the film has a charm"),
        ("'s strength", "'s strength"),
        ("self-important , media-soaked fears", "self-important, media-soaked fears"),
        ("the café 's naïve charm", "the café's naïve charm"),
        ("black & white / colour", "black & white / colour"),
    ],
)
def test_treebank_tokens_are_written_as_people_write(tokenized: str, written: str) -> None:
    assert detokenize(tokenized) == written


@pytest.mark.parametrize(
    "text",
    [
        "She said \"I can't\", and left (early); it's 5% of $20.",
        "Great film :) loved it :-( not",
        "The dogs' bowls, the '90s, rock 'n' roll...",
        "Visit https://example.com/a?b=c or mail me@example.com!",
    ],
)
def test_a_text_that_people_wrote_stays(text: str) -> None:
    assert detokenize(text) == text
    assert detokenize(detokenize(text)) == text


def test_white_space_becomes_one_space() -> None:
    assert detokenize("  a \t b\n c ") == "a b c"


@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_slips_are_swaps_or_omissions_of_letters_within_words(rng: random.Random, times: int) -> None:
    text = " ".join([LONG] * times)

    typed = typos(text, rng)

    pairs = [(a, b) for a, b in zip(text.split(), typed.split(), strict=True) if a != b]
    assert len(pairs) == len(text.split()) // 10
    for word, slipped in pairs:
        omitted = slipped in {word[:i] + word[i + 1 :] for i in range(len(word))}
        swapped = slipped in {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)}
        assert omitted or swapped, (word, slipped)


@pytest.mark.parametrize(
    ("text", "slips"),
    [
        ("", 0),
        ("good film", 0),
        ("not a good film", 0),
        ("not a very good film", 1),
        ("a b c d e", 0),
        ("1 2 3 4 5 6", 0),
        ("aa bb cc dd ee", 1),
    ],
)
def test_a_text_of_five_words_gets_a_slip_and_a_shorter_one_none(text: str, slips: int) -> None:
    typed = typos(text, random.Random(3))

    assert sum(a != b for a, b in zip(text.split(), typed.split(), strict=True)) == slips


def test_both_kinds_of_slips_happen_about_equally_often_and_anywhere_in_a_word() -> None:
    rng = random.Random(1)
    lengths = [len(typos("abcdefgh ijklmnop qrstuvwx abcdefgh ijklmnop", rng)) for _ in range(400)]
    typed = [only(rng) for _ in range(400)]
    omitted = {next(i for i in range(8) if word[i : i + 1] != "abcdefgh"[i]) for word in typed if len(word) == 7}

    assert 150 < lengths.count(44) < 250
    assert set(lengths) == {43, 44}
    assert omitted == set(range(8))


def only(rng: random.Random) -> str:
    """One word of letters that all differ, with its slip."""
    return typos("abcdefgh 1 2 3 4", rng).split()[0]


def test_slips_change_letters_only() -> None:
    text = "It cost $1,204.50 (really!) at 9:30 - see https://example.com/x?y=1 \u2014 naïve, café."

    typed = typos(text, random.Random(5))

    assert re.findall(r"[\W\d_]", typed) == re.findall(r"[\W\d_]", text)
    assert SequenceMatcher(None, text, typed).ratio() > 0.95


def test_the_same_seed_makes_the_same_slips_and_another_one_others() -> None:
    made = [typos(LONG, random.Random(seed)) for seed in (1, 1, 2)]

    assert made[0] == made[1] != made[2]


def test_casing_is_drawn_from_three_kinds() -> None:
    rng = random.Random(0)
    made = {recase("I saw It. it was GOOD", rng) for _ in range(50)}

    assert made == {"i saw it. it was good", "I SAW IT. IT WAS GOOD", "I saw it. It was good"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ""),
        ("THE BEST. EVER!", "The best. Ever!"),
        ("so i said i'm in, i.e. Italy", "So I said I'm in, i.e. Italy"),
        ('"really?" (yes) 5 stars', '"Really?" (Yes) 5 stars'),
        ("éclair. über", "Éclair. Über"),
    ],
)
def test_sentence_case(text: str, wanted: str) -> None:
    assert sentence_case(text) == wanted
