"""What ranks words: the service's attributions, attention of the token that is read, and baselines that can be counted by hand."""

import math
from pathlib import Path

import numpy as np
import pytest

from sentiment.explain.methods.attention import rollout
from sentiment.explain.methods.target import Target
from sentiment_models.data.labelled import Example
from sentiment_models.errors import ModelsError
from sentiment_models.explanations.findings import BASELINE, KINDS
from sentiment_models.explanations.rankings import WordCounts, attributions, lexicon_of, order, scores, token_read
from sentiment_models.explanations.subject import EXPLAIN_ROWS, Subject
from tests.models.faithfulness.conftest import MakeSubject

TEXT = "the film was not good at all , but i liked the end"
COUNTED = [("a good film", 1), ("a good good end", 1), ("a bad film", 0), ("It's bad, bad", 0)]


def test_every_method_scores_every_word_but_those_that_are_orders_alone(subject: Subject) -> None:
    reading, counts = subject.read(TEXT), WordCounts.of(COUNTED, 2)

    found = scores(subject, reading, reading.target(), counts, counts)

    assert list(found) == [name for name in KINDS if name not in ("random", "greedy", "default_unsigned")]
    for name, one in found.items():
        assert one.values.shape == (reading.count,)
        assert np.isfinite(one.values).all()
        assert (one.rows > 0) == (KINDS[name] != BASELINE)
        assert (one.residual is not None) == (name == "integrated_gradients")


def test_rows_are_those_that_a_method_needs(subject: Subject) -> None:
    reading = subject.read(TEXT)
    n = reading.count

    found = attributions(subject, reading, reading.target(), seed=1)

    # The whole text is served once each time.
    assert found["occlusion"].rows == 1 + n
    assert found["gradient_x_input"].rows == 1 + EXPLAIN_ROWS
    assert found["integrated_gradients"].rows >= 1 + EXPLAIN_ROWS * (1 + 17)
    # Twenty orders may meet in the same sets of few or nearly all words.
    assert 0.8 * 20 * (n - 1) < found["shapley"].rows <= 2 + 20 * (n - 1)


def test_scores_depend_on_the_label(subject: Subject) -> None:
    reading = subject.read(TEXT)

    both = [attributions(subject, reading, Target(label), ["occlusion"])["occlusion"].values for label in (0, 1)]

    assert not np.allclose(both[0], both[1])


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert"])
def test_the_token_that_is_read_is_found_in_the_graph(make_subject: MakeSubject, family: str) -> None:
    subject = make_subject(family)
    reading = subject.read(TEXT)

    assert token_read(subject.attention(reading, reading.target())) == 0


def test_attention_of_a_word_is_that_of_its_pieces(subject: Subject) -> None:
    reading = subject.read("unwatchable film")
    assert max(len(word.tokens) for word in reading.encoded.words) > 1
    arrays = subject.attention(reading, reading.target())

    found = scores(subject, reading, reading.target())

    last = arrays["attention"][-1, :, 0].mean(axis=0)
    rolled = rollout(arrays["attention"])[0]
    for index, word in enumerate(reading.encoded.words):
        assert found["attention_last_cls"].values[index] == pytest.approx(sum(float(last[piece]) for piece in word.tokens), rel=1e-5)
        assert found["rollout"].values[index] == pytest.approx(sum(float(rolled[piece]) for piece in word.tokens), rel=1e-5)


def test_without_an_explain_graph_there_is_neither_gradient_nor_attention(make_subject: MakeSubject) -> None:
    subject = make_subject("xlnet")
    reading = subject.read("good film")

    found = scores(subject, reading, Target(0))

    assert subject.session is None
    assert list(found) == ["occlusion", "shapley", "two_step_shapley", "uniform", "position_first", "position_last"]
    with pytest.raises(ModelsError, match="no explain graph"):
        subject.attention(reading, Target(0))


def test_position_and_uniform_know_only_the_place_and_without_counts_there_is_no_lexicon(subject: Subject) -> None:
    reading = subject.read("good film , bad end")
    rng = np.random.default_rng(1)

    found = scores(subject, reading, Target(0))

    assert found.keys() & {"lexicon", "inverse_frequency"} == set()
    assert order(found["position_first"].values, rng).tolist() == [0, 1, 2, 3, 4]
    assert order(found["position_last"].values, rng).tolist() == [4, 3, 2, 1, 0]
    assert len({tuple(order(found["uniform"].values, rng)) for _ in range(50)}) > 20


def test_ties_alone_are_broken_at_random_and_by_the_seed() -> None:
    values = np.array([1.0, 5.0, 1.0, 0.0, 1.0])

    drawn = [tuple(order(values, np.random.default_rng(seed)).tolist()) for seed in range(60)]

    assert {(one[0], one[4]) for one in drawn} == {(1, 3)}
    assert len(set(drawn)) == 6
    assert drawn[7] == tuple(order(values, np.random.default_rng(7)).tolist())


def test_words_are_counted_once_a_text_and_in_lower_case() -> None:
    counts = WordCounts.of(COUNTED, 2)

    assert counts.texts.tolist() == [2, 2]
    assert counts.words["good"].tolist() == [0, 2]
    assert counts.words["bad"].tolist() == [2, 0]
    assert counts.words["it's"].tolist() == [1, 0]
    assert counts.inverse_frequency(["a", "Film", "unheard"]) == pytest.approx([math.log(5 / 4), math.log(5 / 3), math.log(5)])


def test_the_lexicon_is_the_smoothed_log_odds_without_the_text_itself() -> None:
    counts = WordCounts.of(COUNTED, 2)

    found = counts.log_odds(["good", "bad", "unheard"], Target(1))
    own = counts.log_odds(["good"], Target(1), own=1)

    assert found == pytest.approx([math.log((3 / 4) / (1 / 4)), -math.log((3 / 4) / (1 / 4)), 0])
    assert counts.log_odds(["good"], Target(0)) == pytest.approx(-found[:1])
    # Of texts of the label one is left, which has the word.
    assert own == pytest.approx([math.log((2 / 3) / (1 / 4))])
    # Of three labels, one is compared with the label that it is explained against, or with both others.
    three = WordCounts.of([("good", 2), ("so so", 1), ("bad", 0), (("bad", "end"), 0)], 3)
    assert three.log_odds(["good"], Target(2)) == pytest.approx([math.log((2 / 3) / (1 / 5))])
    assert three.log_odds(["good"], Target(2, against=1)) == pytest.approx([math.log((2 / 3) / (1 / 3))])
    assert three.log_odds(["end"], Target(0)) == pytest.approx([math.log((2 / 4) / (1 / 4))])
    # A label without texts says nothing of the words.
    assert (found == WordCounts.of(COUNTED, 3).log_odds(["good", "bad", "unheard"], Target(1, against=2))).all()


def test_the_lexicon_is_counted_without_what_is_drawn_its_phrases_and_its_sentence(tmp_path: Path) -> None:
    train = tmp_path / "train.tsv"
    train.write_text("1\tA good film!\n1\tgood\n0\tthis is a good film , not\n0\tbad film\n1\tthe end\n")

    counts = lexicon_of([train], ("negative", "positive"), [Example("a good film", 1), Example("the end", 1)])

    # Of "bad film" alone nothing was drawn.
    assert counts.texts.tolist() == [1, 0]
    assert sorted(counts.words) == ["bad", "film"]
