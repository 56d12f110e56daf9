"""Explanations of one classifier, on a tiny random BERT with its real explain graph."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sentiment.errors import InvalidInput, Unsupported
from sentiment.explain.evidence import Evidence, Verdict
from sentiment.explainer import Asked, Attribution, Counterfactuals, Explainer, Header, Part
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.session import ExplainSession, Stop
from sentiment.model.tokenizer import Row
from sentiment_models.export import export
from tests.models.tiny_families import MAX_TOKENS, TINY, save_tiny

TEXT = "the film was not good at all , but i liked the end"
ALL = ("integrated_gradients", "gradient_x_input", "occlusion", "shapley")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    export(save_tiny(folder / "checkpoint", TINY["bert"]), folder / "bundle", name="tiny", version=1, pairs=True, max_tokens=MAX_TOKENS)
    return folder / "bundle"


@pytest.fixture(scope="module", params=["fp32", "int8"])
def explainer(request: pytest.FixtureRequest, bundle: Path) -> Iterator[Explainer]:
    yield Explainer(load_classifier(bundle, request.param), ExplainSession(bundle / "explain.onnx"))


def _parts(explainer: Explainer, asked: Asked) -> tuple[Header, list[Part]]:
    header, *parts = explainer.explain(asked)
    assert isinstance(header, Header)
    return header, parts


def _logit(classifier: Classifier, row: Row, label: int, without: range | None = None) -> float:
    feeds = classifier.feeds([row])
    if without is not None:
        feeds["attention_mask"][0, without.start : without.stop] = 0
    return float(classifier.session.run(feeds)[0, label])


@pytest.mark.parametrize("label", [None, "negative", "positive"])
def test_the_header_gives_the_served_answer_and_the_explained_label(explainer: Explainer, label: str | None) -> None:
    header, _ = _parts(explainer, Asked(TEXT, label=label))

    classifier = explainer.classifier
    row = classifier.tokenizer.encode(TEXT)
    assert header.scored == classifier.score(classifier.run([row])[0])
    assert classifier.manifest.labels[header.label] == (label or header.scored.label)
    assert header.agrees
    assert [TEXT[word.start : word.end] for word in header.encoded.words] == TEXT.split()


def test_each_method_gives_its_attribution_and_then_its_evidence(explainer: Explainer) -> None:
    _, parts = _parts(explainer, Asked(TEXT, methods=ALL))

    assert [type(part) for part in parts] == [Attribution, Evidence] * 4
    assert [part.method for part in parts if isinstance(part, Attribution | Evidence)] == [name for name in ALL for _ in range(2)]
    for part in parts:
        if isinstance(part, Evidence):
            assert part.random_sets == 19
            assert part.verdict in Verdict
            assert -1 <= part.agreement <= 1


def test_integrated_gradients_conserve_the_difference_to_the_baseline(explainer: Explainer) -> None:
    _, (found, *_) = _parts(explainer, Asked(TEXT, methods=("integrated_gradients",), steps=64, evidence=False))

    assert isinstance(found, Attribution)
    assert found.tokens is not None
    assert abs(found.residual) < 0.02
    assert found.words.sum() + found.special_total == pytest.approx(found.tokens.sum())
    # The special tokens are the same in text and baseline.
    assert found.special_total == pytest.approx(0, abs=1e-6)
    assert np.abs(found.words).max() > 0.01


def test_occlusion_is_what_the_served_graph_says_without_each_word(explainer: Explainer) -> None:
    header, (found, *_) = _parts(explainer, Asked(TEXT, methods=("occlusion",), evidence=False))

    assert isinstance(found, Attribution)
    row = explainer.classifier.tokenizer.encode(TEXT)
    whole = _logit(explainer.classifier, row, header.label)
    for word, value in zip(header.encoded.words, found.words, strict=True):
        assert whole - _logit(explainer.classifier, row, header.label, word.tokens) == pytest.approx(value, abs=1e-5)


def test_shapley_values_sum_to_what_all_words_do_and_depend_on_the_seed_alone(explainer: Explainer) -> None:
    def found(seed: int) -> Attribution:
        _, (part, *_) = _parts(explainer, Asked(TEXT, methods=("shapley",), steps=8, seed=seed, evidence=False))
        assert isinstance(part, Attribution)
        return part

    assert found(1).residual == pytest.approx(0, abs=1e-6)
    assert found(1).words.tolist() == found(1).words.tolist() != found(2).words.tolist()
    assert (found(1).standard_errors > 0).all()


def test_a_counterfactual_is_a_fact_about_the_served_model(explainer: Explainer) -> None:
    header, parts = _parts(explainer, Asked(TEXT, counterfactuals=True, evidence=False))

    found = parts[-1]
    assert isinstance(found, Counterfactuals)
    assert found.keep.words is not None
    tokenizer = explainer.classifier.tokenizer
    row = tokenizer.encode(TEXT)
    feeds = explainer.classifier.feeds([row])
    kept = [header.encoded.words[word] for word in found.keep.words]
    for index, token in enumerate(header.encoded.tokens):
        feeds["attention_mask"][0, index] = token.special or any(index in word.tokens for word in kept)
    assert int(explainer.classifier.session.run(feeds)[0].argmax()) == header.label == found.keep.label


def test_a_pair_is_explained_in_the_words_of_both_texts(explainer: Explainer) -> None:
    header, (found, *_) = _parts(explainer, Asked("good film", "bad end", evidence=False))

    assert isinstance(found, Attribution)
    assert [word.pair for word in header.encoded.words] == [False, False, True, True]
    assert len(found.words) == 4


def test_a_truncated_text_is_explained_as_far_as_it_is_read(explainer: Explainer) -> None:
    header, (found, *_) = _parts(explainer, Asked(TEXT * 20, methods=("occlusion",), evidence=False))

    assert isinstance(found, Attribution)
    assert header.encoded.truncated
    assert len(header.encoded.tokens) == MAX_TOKENS
    assert len(found.words) == len(header.encoded.words)


def test_without_an_explain_graph_there_is_erasure_alone(bundle: Path) -> None:
    explainer = Explainer(load_classifier(bundle, "int8"), None)

    assert explainer.methods == ("occlusion", "shapley")
    header, parts = _parts(explainer, Asked(TEXT))
    assert header.agrees
    assert [type(part) for part in parts] == [Attribution, Evidence]
    with pytest.raises(Unsupported, match="integrated_gradients needs an explain graph"):
        _parts(explainer, Asked(TEXT, methods=("integrated_gradients",)))


@pytest.mark.parametrize(
    ("asked", "field", "message"),
    [
        (Asked(TEXT, label="meh"), "label", "is 'meh'; the model's labels are negative, positive"),
        (Asked(TEXT, methods=("occlusion", "magic")), r"options.methods\[1\]", "is 'magic'; known are integrated_gradients, "),
        (Asked(TEXT, steps=257), "options.attribution.steps", "is 257; the limits are 0, for the default, and 256"),
        (Asked(TEXT, steps=-1), "options.attribution.steps", "is -1"),
    ],
)
def test_what_there_is_not_is_refused_by_field(explainer: Explainer, asked: Asked, field: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"{field}: {message}"):
        _parts(explainer, asked)


@pytest.mark.parametrize("batches", [0, 1, 2, 5])
def test_when_time_is_up_it_ends_with_what_there_is(explainer: Explainer, batches: int) -> None:
    left = [True] * batches

    def time_left() -> bool:
        return bool(left) and left.pop()

    header, *parts = explainer.explain(Asked(TEXT, methods=("shapley", "occlusion"), steps=200), time_left)

    assert isinstance(header, Header)
    assert len(parts) < 4
    assert (not parts) == (batches == 0)


def test_a_run_that_is_stopped_ends_with_an_error(explainer: Explainer) -> None:
    stop = Stop()
    stop.ask()

    with pytest.raises(Exception, match="terminate"):
        list(explainer.explain(Asked(TEXT), stop=stop))
