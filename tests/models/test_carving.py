"""The split into training and development set: copies and phrases are never on both sides."""

import random
from collections import Counter

import pytest

from sentiment_models.data.carving import carve
from sentiment_models.data.labelled import Example, Made
from sentiment_models.errors import BadData


def test_copies_that_differ_in_case_spacing_or_punctuation_are_on_one_side() -> None:
    plain = [Example(f"sentence number {n}", n % 2) for n in range(400)]
    other = [Example(f"Sentence,  NUMBER {n}!!", n % 2) for n in range(400)]

    split = carve([(plain, 3), (other, 1)], 0.2, seed=1)

    def letters(examples: list[Example]) -> set[str]:
        return {"".join(filter(str.isalnum, example.text.lower())) for example in examples}

    assert not letters(split.train) & letters(split.dev)
    assert len(split.dev) == len(letters(split.dev))
    assert 0.1 < len(split.dev) / 400 < 0.3
    assert len(split.train) == 4 * (400 - len(split.dev))


def test_the_split_does_not_depend_on_the_order_of_files() -> None:
    one = [Example(f"one {n}", 0) for n in range(100)]
    two = [Example(f"two {n}", 1) for n in range(100)]

    forth, back = carve([(one, 1), (two, 1)], 0.2, seed=1), carve([(two, 1), (one, 1)], 0.2, seed=1)

    assert sorted(example.text for example in forth.dev) == sorted(example.text for example in back.dev)


def test_a_fraction_of_times_selects_that_share_of_the_texts_always_the_same_ones() -> None:
    examples = [Example(f"sentence number {n}", n % 2) for n in range(2000)]

    quarter, again, more = (carve([(examples, times)], 0.1, seed=1).train for times in (0.25, 0.25, 1.25))

    assert quarter == again
    assert 0.2 < len(quarter) / 1800 < 0.3
    assert {example.text for example in quarter} < {example.text for example in more}


def test_the_texts_of_a_generated_pair_stay_together() -> None:
    made = [Made("plain", "", str(number)) for number in range(1000)]
    examples = [Example(f"{word} {one.pair}", label, made=one) for one in made for label, word in enumerate(("bad", "good"))]

    split = carve([(examples, 0.5)], 0.2, seed=1)

    pairs = [[example.made.pair for example in side if example.made] for side in (split.train, split.dev)]
    assert all(0.8 * share < len(side) / 2000 < 1.2 * share for side, share in zip(pairs, (0.4, 0.2), strict=True))
    assert all(set(Counter(side).values()) == {2} for side in pairs)
    assert not set(pairs[0]) & set(pairs[1])


def test_a_copy_of_a_text_of_a_pair_is_on_the_side_of_the_pair() -> None:
    originals = [Example(f"review number {number} is good", 1) for number in range(400)]
    edited = [
        Example(f"review number {number} is {word}", label, made=Made("edited", "", str(number)))
        for number in range(400)
        for label, word in enumerate(("bad", "good"))
    ]

    split = carve([(originals, 1), (edited, 1)], 0.2, seed=1)

    train, dev = ({example.text for example in side} for side in (split.train, split.dev))
    assert 40 < len(dev) / 2 < 120
    assert not train & dev
    assert all(text.replace("good", "bad") in dev for text in dev)


def test_a_text_and_its_pairs_are_on_one_side_and_the_development_set_has_all_of_them() -> None:
    texts = [f"the food was fine and the waiter number {number} was slow" for number in range(60)]
    whole = [Example(text, 0) for text in texts]
    pairs = [Example(text, 1, text_pair=target) for text in texts for target in ("food", "waiter")]

    split = carve([(whole, 1.0), (pairs, 1.0)], 0.3, seed=1)

    dev, train = (Counter(example.text for example in side) for side in (split.dev, split.train))
    assert set(dev.values()) == set(train.values()) == {3}
    assert not set(dev) & set(train)


def test_a_generated_text_without_a_pair_stands_for_itself() -> None:
    examples = [Example(f"text {number}", number % 2, made=Made("plain", "", "")) for number in range(400)]

    assert 40 < len(carve([(examples, 1)], 0.2, seed=1).dev) < 120


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(BadData, match="the dev split is empty"):
        carve([([Example("x", 0)], 1)], 1e-9, seed=1)


def _treebank(sentences: int) -> tuple[list[Example], list[Example]]:
    """Sentences of ten own words and two shared ones, and phrases of each, as in a treebank."""
    rng = random.Random(1)
    whole, phrases = [], []
    for number in range(sentences):
        words = [f"w{number}x{place}" for place in range(10)] + ["the", "film"]
        rng.shuffle(words)
        whole.append(Example(" ".join(words).capitalize() + " .", number % 2))
        for _ in range(5):
            begin, length = rng.randrange(9), rng.randint(3, 11)
            phrases.append(Example(" ".join(words[begin : begin + length]), number % 2))
    return whole, phrases


def test_phrases_of_development_sentences_are_not_trained_on() -> None:
    whole, phrases = _treebank(300)

    split = carve([(phrases, 1), (whole, 1)], 0.2, seed=1)

    of_dev = {word for example in split.dev for word in example.text.lower().split() if word.startswith("w")}
    assert not of_dev & {word for example in split.train for word in example.text.lower().split()}
    assert {example.text for example in split.dev} <= {example.text for example in whole}
    assert 0.1 < len(split.dev) / len(whole) < 0.3


def test_a_part_of_a_word_is_not_a_phrase() -> None:
    texts = [f"art{n} is" for n in range(50)] + [f"this smart{n} island" for n in range(50)]

    split = carve([([Example(text, n % 2) for n, text in enumerate(texts)], 1)], 0.5, seed=1)

    assert len(split.train) + len(split.dev) == 100


def test_texts_without_labels_from_people_and_long_texts_contain_no_phrase() -> None:
    phrases = [Example(f"phrase number {n}", n % 2) for n in range(100)]
    sentences = [Example(f"this is phrase number {n} of many", 0, (0.5, 0.5), judged=False) for n in range(100)]
    reviews = [Example(f"phrase number {n}" + " and so on" * 30, n % 2) for n in range(100)]

    split = carve([(phrases, 1), (sentences, 1), (reviews, 1)], 0.3, seed=1)

    assert Counter([*split.train, *split.dev]) == Counter([*phrases, *sentences, *reviews])


def test_the_development_set_has_the_labels_in_their_shares() -> None:
    rare = [Example(f"rare {n}", 0) for n in range(20)]
    frequent = [Example(f"frequent {n}", 1) for n in range(980)]

    split = carve([(rare, 1), (frequent, 1)], 0.3, seed=1)

    assert Counter(example.label for example in split.dev) == {0: 6, 1: 294}


@pytest.mark.parametrize(("texts", "held_out"), [(20, 4), (156, 31), (1000, 200), (4000, 200), (10000, 300)])
def test_a_development_set_of_few_texts_is_at_least_200_or_a_fifth(texts: int, held_out: int) -> None:
    split = carve([([Example(f"text {n}", n % 2) for n in range(texts)], 1)], 0.03, seed=1)

    assert len(split.dev) == pytest.approx(held_out, abs=1)
    assert len(split.train) + len(split.dev) == texts


def test_no_text_that_only_a_teacher_labelled_is_lost_to_training() -> None:
    told = [Example(f"told {n}", 0, (0.9, 0.1), judged=False) for n in range(100)]
    judged = [Example(f"judged {n}", n % 2) for n in range(100)]

    split = carve([(told, 1), (judged, 1)], 0.2, seed=1)

    assert set(told) <= set(split.train)
