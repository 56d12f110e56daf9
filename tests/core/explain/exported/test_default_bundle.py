"""Explanations of the default bundle: plausible words, and a bounded peak of memory."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from sentiment.explain.engine import Explainer
from sentiment.explain.engine.prediction import predict
from sentiment.explain.engine.runs import EXPLAINED, SERVED, UsualPaces
from sentiment.explain.methods.evidence import Evidence, Verdict
from sentiment.explain.methods.registry import METHODS
from sentiment.explain.parts import Attribution, Counterfactuals, ExplanationRequest, Heads, Neuron, NeuronRequest
from sentiment.model.classifier import load_classifier
from tests.core.explain.explained import explained, one_of
from tests.english import ENGLISH

TEXT = "The acting is superb, but the story is so dull that I wanted to leave."
# The largest request: a text of 512 tokens, of which all attention, gradients, queries and keys are kept at once.
LARGEST = """
import json, resource, time
from sentiment.explain.parts import Aggregation, ExplanationRequest, AttentionRequest, NeuronRequest
from sentiment.explain.engine import Explainer
from sentiment.model.classifier import load_classifier
from tests.english import ENGLISH

def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

explainer = Explainer(load_classifier(ENGLISH))
served = peak_mb()
explainer.load()
loaded = peak_mb()
end = time.monotonic() + 2
asked = ExplanationRequest(
    "The film was not good at all, but I liked the end. " * 60, methods=explainer.methods, by_embedding=True, counterfactuals=True,
    heads=True, attention=AttentionRequest(aggregation=Aggregation.ROLLOUT_GRADIENT), neuron=NeuronRequest(3, 2, 5),
    geometry=True,
)
header, *_, summary = explainer.explain(asked, lambda: end - time.monotonic())
print(json.dumps([len(header.encoded.tokens), served, loaded, peak_mb(), list(summary.notes)]))
"""


@pytest.fixture(scope="module")
def english() -> Explainer:
    return Explainer(load_classifier(ENGLISH))


def test_words_for_and_against_an_answer_are_those_that_a_reader_expects(english: Explainer) -> None:
    # Neutral is nearly as likely as positive here, and a reader would be surprised by it.
    header, parts, summary = explained(
        english,
        ExplanationRequest(TEXT, against="positive", methods=METHODS, counterfactuals=True, heads=True, neuron=NeuronRequest(5, 0, 0)),
    )

    words = [TEXT[word.start : word.end] for word in header.encoded.words]
    assert header.agrees
    assert header.scored.label == "negative"
    for part in parts:
        if isinstance(part, Attribution) and part.method in ("integrated_gradients", "shapley"):
            assert words[int(np.argmax(part.words))] == "dull"
            assert part.words[words.index("superb")] < 0
            if part.method == "shapley":
                assert words[int(np.argmin(part.words))] == "superb"
        if isinstance(part, Evidence) and part.method == "shapley":
            assert part.verdict == Verdict.BETTER_THAN_RANDOM
    assert one_of(parts, Counterfactuals).flip.words
    assert one_of(parts, Neuron).view.max_abs_error < 1e-5
    assert one_of(parts, Heads).effects is not None
    assert summary.complete


@pytest.mark.parametrize(("sentences", "method"), [(1, "shapley"), (6, "two_step_shapley")])
def test_what_an_explanation_takes_is_predicted_to_a_third(
    english: Explainer, monkeypatch: pytest.MonkeyPatch, sentences: int, method: str
) -> None:
    """In tokens that the served graph runs."""
    asked = ExplanationRequest(" ".join([TEXT] * sentences), methods=(method,))
    tokens = english.classifier.tokenizer.encode(asked.text).tokens
    run, ran = english.classifier.session.run, 0

    def count(feeds: Any, stop: Any = None) -> Any:
        nonlocal ran
        ran += feeds["input_ids"].size
        return run(feeds, stop)

    monkeypatch.setattr(english.classifier.session, "run", count)
    explained(english, asked)
    usual = UsualPaces()
    usual.tell(SERVED, tokens, tokens)
    usual.tell(EXPLAINED, tokens, 0.0)

    assert predict(asked, tokens, 6, 12, usual).work_s == pytest.approx(ran, rel=1 / 3)


def test_the_largest_request_needs_a_bounded_peak_of_memory() -> None:
    done = subprocess.run([sys.executable, "-c", LARGEST], capture_output=True, text=True, timeout=120, check=True)
    tokens, served, loaded, peak, notes = json.loads(done.stdout)

    assert tokens == 512
    assert loaded - served < 350
    # The graph's 236 MB of outputs, what it computes with, and a second copy of two kinds of maps.
    assert peak - loaded < 700
    # Two seconds are not enough for everything.
    assert notes
