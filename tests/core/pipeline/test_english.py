"""The default bundle on real sentences: right labels, and answers that do not depend on the batch."""

import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import sentiment_models
from sentiment.client import Classification
from sentiment.model.classifier import Classifier, load_classifier, use_threads
from sentiment_models.data.labelled import read_examples
from sentiment_models.evaluation.judging import judge, present
from sentiment_models.export.inference import serve
from sentiment_tools.traffic.lengths import SHORT
from tests.bench.texts import make_texts
from tests.conftest import RunningServer
from tests.english import ENGLISH

PLAIN = Path(sentiment_models.__file__).parent / "texts" / "plain_test.tsv"

# Written for this test; the first word of each line is its label.
SENTENCES = """
positive a gripping, beautifully shot film
negative two hours of my life I will never get back
positive The acting is superb and the ending moved me to tears.
negative The plot makes no sense and the jokes fall flat.
positive One of the best books I have read this year; I could not put it down.
negative Dull, predictable and far too long.
positive An honest, funny and surprisingly warm portrait of a family.
negative I walked out after thirty minutes and asked for my money back.
positive What a wonderful surprise!
negative What a mess.
positive Great value, it works perfectly and my kids love it.
negative It broke after two days and nobody answered my calls.
positive Not a single dull moment.
negative Not worth the price of a ticket.
positive The slow first half pays off in a thrilling, unforgettable finale.
negative A talented cast is wasted on a lazy script.
positive I laughed from beginning to end.
negative I have rarely been so bored in a cinema.
positive Her best performance in years.
negative His worst performance in years.
positive WOW! ABSOLUTELY BRILLIANT!!!
negative AWFUL. JUST AWFUL. AVOID.
positive A charming little film with a big heart.
negative The sound is terrible, the picture is worse.
neutral The train leaves at nine from platform two.
neutral Does it come in blue, and how long does delivery take?
neutral The meeting was moved to Thursday at ten o'clock.
neutral She plays a clerk who finds a letter in an old desk.
""".strip().splitlines()


@pytest.fixture(scope="module", params=["int8", "fp32"])
def classifier(request: pytest.FixtureRequest) -> Classifier:
    return load_classifier(ENGLISH, request.param)


@pytest.fixture(scope="module")
def texts(classifier: Classifier) -> list[str]:
    tokenizer = classifier.tokenizer._tokenizer
    return [line.partition(" ")[2] for line in SENTENCES] + make_texts(SHORT, 60, tokenizer) + ["great", "\U0001f600", "word " * 200]


def test_neutral_stands_behind_the_labels_of_earlier_versions(classifier: Classifier) -> None:
    """Who reads ``scores`` by place keeps the first two."""
    assert classifier.manifest.labels == ("negative", "positive", "neutral")


def test_plain_sentences_get_the_right_label(classifier: Classifier) -> None:
    wrong = []
    for label, _, text in (line.partition(" ") for line in SENTENCES):
        scored = classifier.score(classifier.run([classifier.tokenizer.encode(text)])[0])
        if scored.label != label:
            wrong.append(text)

    assert wrong == []


def test_plain_texts_of_everyday_life_are_not_taken_for_hard_ones(classifier: Classifier) -> None:
    """An earlier bundle had 0.921 here: it had learned from hard texts, and took plain ones for ironic or negated ones.

    All are praise or blame, so neutral does not count.
    """
    names = classifier.manifest.labels
    examples = list(read_examples(PLAIN, names, pairs=False))
    labels = np.array([example.label for example in examples])
    served = serve(classifier, [example.text for example in examples], "plain texts")

    judged = judge(served.stated, served.abstain, names, names, present(labels, len(names)))

    assert np.mean(judged.answers == labels) >= 0.97


def test_a_texts_answer_does_not_depend_on_its_batch_mates(classifier: Classifier, texts: list[str]) -> None:
    """Alone against shuffled batches of 2 to 32, padded to the longest of them."""
    rows = [classifier.tokenizer.encode(text) for text in texts]
    alone = [classifier.score(classifier.run([row])[0]) for row in rows]
    rng = random.Random(7)
    moved, flips = 0.0, 0

    for size in (2, 8, 32):
        order = rng.sample(range(len(rows)), len(rows))
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            for index, logits in zip(batch, classifier.run([rows[index] for index in batch]), strict=True):
                before, after = alone[index], classifier.score(logits)
                moved = max(moved, np.abs(np.subtract(before.scores, after.scores)).max())
                flips += before.label != after.label

    assert flips == 0
    assert moved <= classifier.graph.invariance == 1e-4


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no niceness of its own, and no batch is wide")
@pytest.mark.parametrize("threads", [2, 4])
def test_a_wide_run_returns_the_same_bits(classifier: Classifier, texts: list[str], threads: int) -> None:
    assert use_threads(classifier, threads) == ""
    assert classifier.session.width == threads
    rows = [classifier.tokenizer.encode(text) for text in texts]
    rng = random.Random(threads)

    for batch in ([classifier.tokenizer.encode("word " * 600)], *(rng.sample(rows, size) for size in (1, 1, 1, 1, 3, 8))):
        feeds = classifier.feeds(batch)
        assert np.array_equal(classifier.session.run_wide(feeds), classifier.session.run(feeds))

    classifier.session.use_one_thread()
    assert classifier.session.width == 1
    assert np.array_equal(classifier.session.run_wide(feeds), classifier.session.run(feeds))


def test_single_calls_and_batch_calls_get_the_same_answers(start: Callable[..., RunningServer]) -> None:
    server = start(bundles=(), model="english")
    sentences = [line.partition(" ")[2] for line in SENTENCES]
    with server.client(timeout_s=30) as client:
        alone = [client.classify(text) for text in sentences]
        mixed = [text for pair in itertools.product(sentences, ("", " " + "and so on " * 20)) for text in ["".join(pair)]]
        batch = client.classify_batch(mixed, timeout_s=60)

    for one, many in zip(alone, batch[::2], strict=True):
        assert isinstance(many, Classification)
        assert (one.label, one.model) == (many.label, many.model)
        assert abs(one.score - many.score) <= 1e-4


def test_int8_stays_close_to_fp32() -> None:
    int8, fp32 = load_classifier(ENGLISH, "int8"), load_classifier(ENGLISH, "fp32")
    distances = []
    for line in SENTENCES:
        row = int8.tokenizer.encode(line.partition(" ")[2])
        first, second = (each.score(each.run([row])[0]).scores for each in (int8, fp32))
        distances.append(np.abs(np.subtract(first, second)).max())

    assert max(distances) < 0.1
    assert sum(distances) / len(distances) < 0.01
