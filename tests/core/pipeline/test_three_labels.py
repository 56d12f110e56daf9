"""A model of negative, positive and neutral, beside one of two labels in the format of earlier bundles: every answer names its labels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from sentiment.client import Client, ExplainOptions
from sentiment.oip import inference_pb2 as oip
from sentiment.oip import inference_pb2_grpc as oip_grpc
from sentiment.sklearn import SentimentClassifier
from tests.conftest import RunningServer
from tests.core.http.http import call
from tests.core.observability.test_journal import rows
from tests.tiny import LABELS, THREE, make_bundle, read_manifest, write_manifest

TEXTS = {"a good film": "positive", "awful": "negative", "the film": "neutral"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("versions")
    make_bundle(folder, "english", 1)
    three = make_bundle(folder, "english", 2, three=True)
    manifest = read_manifest(three)
    manifest["accuracy"]["made-up"]["labels"] = list(LABELS)
    write_manifest(three, manifest)
    return folder


@pytest.fixture(scope="module")
def both(settings: Any, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of the newest version, and of version 1 by its number."""
    changes = {"bundles": (root,), "model": "english", "models": ("english/1",), "journal": str(tmp_path_factory.mktemp("journal"))}
    server = RunningServer(settings.model_copy(update=changes))
    yield server
    server.stop()


@pytest.fixture
def client(both: RunningServer) -> Iterator[Client]:
    with both.client() as opened:
        yield opened


def test_a_two_label_bundle_of_the_old_format_answers_beside_a_three_label_one(client: Client) -> None:
    new = {text: client.classify(text) for text in TEXTS}
    old = {text: client.classify(text, model="english/1") for text in TEXTS}

    assert {text: answer.label for text, answer in new.items()} == TEXTS
    assert {tuple(answer.scores) for answer in new.values()} == {THREE}
    assert {tuple(answer.scores) for answer in old.values()} == {LABELS}
    assert [old[text].label for text in list(TEXTS)[:2]] == ["positive", "negative"]
    assert old["the film"].abstain
    assert {answer.model.version for answer in old.values()} == {1}
    described = [client.get_model(name) for name in ("english", "english/1")]
    assert [(list(model.labels), model.mixed, model.targets) for model in described] == [
        (list(THREE), True, True),
        (list(LABELS), False, False),
    ]
    # Figures among the labels of a set say so.
    assert [list(found.labels) for model in described for found in model.accuracy] == [list(LABELS), []]


def test_predictions_are_counted_by_each_models_own_labels(both: RunningServer, client: Client) -> None:
    for text in TEXTS:
        client.classify(text)

    names = {
        model: {one.labels["label"] for one in both.samples() if one.name == "sentiment_predictions_total" and one.labels["model"] == model}
        for model in ("english/1", "english/2")
    }
    assert names == {"english/1": set(LABELS), "english/2": set(THREE)}


def test_an_answer_that_abstains_is_undecided_whatever_its_label(client: Client) -> None:
    answer = client.classify("film")

    assert (answer.label, answer.abstain) == ("neutral", True)


def test_feedback_takes_the_labels_of_the_model_that_answered(both: RunningServer, client: Client) -> None:
    right = client.feedback("neutral", "the film").right
    status, _, message = call(both, "/v1/feedback", {"text": "the film", "label": "neutral", "model": "english/1"}).error

    assert right
    assert (status, message) == (400, "label: must be one of negative, positive, got 'neutral'")
    journal = both.journal
    assert journal is not None
    journal.thread.wait_written()
    assert [row["label"] for row in rows(Path(both.app._settings.journal)) if row["journal"] == "feedback"] == ["neutral"]


def test_the_open_inference_protocol_gives_a_score_for_each_label(both: RunningServer) -> None:
    with grpc.insecure_channel(both.target) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        described = [stub.ModelMetadata(oip.ModelMetadataRequest(name="english", version=version)) for version in ("1", "2")]
        asked = oip.ModelInferRequest(model_name="english", outputs=[oip.ModelInferRequest.InferRequestedOutputTensor(name="scores")])
        asked.inputs.add(name="text", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"a good film", b"the film"])
        answer = stub.ModelInfer(asked)

    assert [list(one.shape) for model in described for one in model.outputs if one.name == "scores"] == [[-1, 2], [-1, 3]]
    assert list(answer.outputs[0].shape) == [2, 3]
    scores = np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(2, 3)
    assert [THREE[winner] for winner in scores.argmax(1)] == ["positive", "neutral"]


def test_scikit_learn_sees_the_labels_sorted_and_their_probabilities_in_this_order(root: Path) -> None:
    classifier = SentimentClassifier("english", bundles=str(root), threads=1)

    found = classifier.predict_proba(list(TEXTS))

    assert classifier.classes_.tolist() == ["negative", "neutral", "positive"]
    assert classifier.classes_[found.argmax(1)].tolist() == list(TEXTS.values())


@pytest.mark.parametrize(
    ("text", "label", "words", "answer"),
    [
        ("good film", "", ["good"], "neutral"),
        ("good bad bad film", "neutral", ["bad"], "neutral"),
        ("good bad great film", "negative", ["good", "great"], "negative"),
    ],
)
def test_words_whose_removal_gives_a_label_are_found_for_the_label_that_is_named(
    client: Client, text: str, label: str, words: list[str], answer: str
) -> None:
    options = ExplainOptions(counterfactuals=True, evidence=False, methods=("occlusion",))

    found = client.explain(text, label=label, options=options)

    flip = next(one for one in found.counterfactuals if one.kind == "flip")
    assert sorted(found.words[index].text for index in flip.words) == words
    assert flip.label == answer
