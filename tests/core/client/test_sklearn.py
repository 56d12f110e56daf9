"""The scikit-learn classifier over ``Local``, in scikit-learn's own pipelines, cross validation and checks."""

import doctest
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.exceptions import SkipTestWarning
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

from sentiment import Local
from sentiment import sklearn as module
from sentiment.sklearn import SentimentClassifier
from tests.tiny import make_bundle

TEXTS = ["a good film", "awful", "w9", "w-20", "great", "bad bad", "the good", "w-1 film", "w30", "awful good"]
LABELS = ["positive", "negative"] * 4 + ["positive", "positive"]


@pytest.fixture
def classifier(bundles: Path) -> SentimentClassifier:
    return SentimentClassifier("tiny", bundles=str(bundles), threads=1)


def test_predictions_are_those_of_local(classifier: SentimentClassifier, bundles: Path) -> None:
    with Local("tiny", bundles=bundles) as local:
        answers = [local.classify(text) for text in TEXTS]

    found = classifier.predict_proba(TEXTS)

    assert classifier.classes_.tolist() == ["negative", "positive"]
    assert found.tolist() == [[answer.scores["negative"], answer.scores["positive"]] for answer in answers]
    assert classifier.predict(TEXTS).tolist() == [answer.label for answer in answers]
    assert classifier.classes_[found.argmax(1)].tolist() == classifier.predict(TEXTS).tolist()
    assert classifier.score(TEXTS, LABELS) == 0.9
    assert classifier.score(TEXTS, LABELS, sample_weight=[0] * 9 + [1]) == 0


def test_decisions_of_two_labels_are_the_log_odds_of_the_second(classifier: SentimentClassifier) -> None:
    found = classifier.decision_function(TEXTS)

    odds = classifier.predict_proba(TEXTS)
    assert found == pytest.approx(np.log(odds[:, 1] / odds[:, 0]))
    assert classifier.classes_[(found > 0).astype(int)].tolist() == classifier.predict(TEXTS).tolist()
    assert classifier.decision_function([]).shape == (0,)


def test_decisions_of_three_labels_are_log_probabilities(tmp_path: Path) -> None:
    make_bundle(tmp_path, three=True)
    three = SentimentClassifier("tiny", bundles=str(tmp_path), threads=1)

    found = three.decision_function(TEXTS)

    assert found == pytest.approx(np.log(three.predict_proba(TEXTS)))
    assert three.classes_[found.argmax(1)].tolist() == three.predict(TEXTS).tolist()


def test_a_probability_that_is_rounded_to_zero_has_a_finite_decision() -> None:
    class Certain(SentimentClassifier):
        def predict_proba(self, X: Any) -> Any:  # noqa: N803  # scikit-learn's name
            return np.array([[0.0, 1.0]])

    assert Certain().decision_function(TEXTS) == pytest.approx([87.3], abs=0.1)


@pytest.mark.parametrize("column", [pd.Series, pl.Series, np.array, pa.array, iter, lambda texts: np.array(texts, object)])
def test_a_column_may_be_of_any_kind(column: Callable[[list[str]], object], classifier: SentimentClassifier) -> None:
    assert classifier.predict(column(TEXTS[:2])).tolist() == ["positive", "negative"]


def test_no_texts_have_no_predictions(classifier: SentimentClassifier) -> None:
    assert classifier.predict([]).shape == (0,)
    assert classifier.predict_proba([]).shape == (0, 2)


def test_the_truncation_is_the_models_or_the_given_one(classifier: SentimentClassifier) -> None:
    text = "good " * 40 + "awful " * 30

    assert classifier.predict([text]).tolist() == ["positive"]
    assert clone(classifier).set_params(truncation="refuse").get_params()["truncation"] == "refuse"
    with pytest.raises(ValueError, match=r"1 of 1 texts have no answer; text 0: text: has more tokens than the model reads"):
        clone(classifier).set_params(truncation="refuse").predict([text])


def test_fit_only_checks_labels(classifier: SentimentClassifier) -> None:
    before = dict(vars(classifier))

    assert classifier.fit(TEXTS, LABELS) is classifier
    assert classifier.fit(TEXTS) is classifier

    assert vars(classifier) == before
    check_is_fitted(SentimentClassifier())
    with pytest.raises(ValueError, match="y has 2 labels that the model does not have, such as 'neg'; it has negative, positive"):
        classifier.fit(TEXTS, ["neg", "pos"] * 5)


def test_texts_without_an_answer_are_named(classifier: SentimentClassifier) -> None:
    with pytest.raises(ValueError, match=r"2 of 3 texts have no answer; text 1: text: is missing \(nan\)"):
        classifier.predict(pd.Series(["good", None, " "]))
    with pytest.raises(TypeError, match="must be one column"):
        classifier.predict(pd.DataFrame({"text": TEXTS}))
    for predict in (classifier.predict, classifier.predict_proba):
        with pytest.raises(TypeError, match="got one str"):
            predict("a good film")


def test_it_works_in_pipelines_and_cross_validation(classifier: SentimentClassifier) -> None:
    frame = pd.DataFrame({"text": TEXTS, "label": LABELS}, index=range(5, 15))
    pipeline = make_pipeline(FunctionTransformer(lambda texts: texts.str.lower()), classifier)

    assert isinstance(pipeline, Pipeline)
    assert pipeline.fit(frame["text"].str.upper(), frame["label"]).score(frame["text"], frame["label"]) == 0.9
    scores = cross_val_score(classifier, frame["text"], frame["label"], cv=2, scoring="accuracy")
    assert scores.mean() == pytest.approx(0.9)
    for scoring in ("roc_auc", "neg_log_loss", "f1_macro"):
        assert np.isfinite(cross_val_score(classifier, frame["text"], frame["label"], cv=2, scoring=scoring)).all()
    assert np.isfinite(cross_val_score(classifier, TEXTS, LABELS, cv=2)).all()
    search = GridSearchCV(pipeline, {"sentimentclassifier__truncation": ["head", "windows"]}, cv=2).fit(frame["text"], frame["label"])
    assert search.best_score_ == pytest.approx(0.9)


NUMBERS = {0: "negative", 1: "positive"}


def test_labels_may_have_the_names_of_the_file(classifier: SentimentClassifier) -> None:
    stars = clone(classifier).set_params(labels={"down": "positive", "up": "negative"})  # the other way round than sorted

    assert stars.classes_.tolist() == ["down", "up"]
    assert stars.predict(TEXTS[:2]).tolist() == ["down", "up"]
    assert (stars.predict_proba(TEXTS) == classifier.predict_proba(TEXTS)[:, ::-1]).all()
    assert stars.classes_[stars.predict_proba(TEXTS).argmax(1)].tolist() == stars.predict(TEXTS).tolist()


def test_labels_may_be_numbers_as_in_most_files(classifier: SentimentClassifier) -> None:
    numbers = [NUMBERS[1] == label for label in LABELS]

    for kind in (int, bool, float):
        mapped = clone(classifier).set_params(labels={kind(number): label for number, label in NUMBERS.items()})
        y = pd.Series(numbers).astype(kind)
        assert mapped.fit(TEXTS, y).predict(TEXTS).dtype == y.dtype
        assert mapped.score(TEXTS, y) == 0.9
        assert cross_val_score(mapped, TEXTS, y, cv=2, scoring="roc_auc").mean() > 0.8
    mapped = clone(classifier).set_params(labels=NUMBERS)
    search = GridSearchCV(mapped, {"truncation": ["head", "windows"]}, scoring="f1", cv=2).fit(TEXTS, np.array(numbers, int))
    assert search.best_estimator_.labels == NUMBERS
    assert search.predict(["good"]).tolist() == [1]
    assert pickle.loads(pickle.dumps(mapped)).predict(["bad"]).tolist() == [0]
    with pytest.raises(ValueError, match="y has 1 labels that the model does not have, such as 2; it has 0, 1"):
        mapped.fit(TEXTS, [0, 2] * 5)


@pytest.mark.parametrize("voting", ["hard", "soft"])
def test_it_votes_beside_other_classifiers(voting: str, classifier: SentimentClassifier) -> None:
    bag = make_pipeline(CountVectorizer(), LogisticRegression())
    ours = clone(classifier).set_params(labels=NUMBERS)

    vote = VotingClassifier([("bag", bag), ("ours", ours), ("again", clone(ours))], voting=voting).fit(TEXTS, LABELS)

    assert vote.predict(["good film", "bad film"]).tolist() == ["positive", "negative"]
    stacked = StackingClassifier([("bag", bag), ("ours", ours)], cv=2).fit(TEXTS, [label == "positive" for label in LABELS])
    assert stacked.predict(["great good film", "awful bad"]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("labels", "wrong"),
    [
        ({0: "negative"}, "labels gives positive 0 names"),
        ({0: "negative", 1: "positive", 2: "positive"}, "labels gives positive 2 names"),
        ({0: "neg", 1: "pos"}, "labels names 'neg', which the model does not have"),
        ({0: "negative", "1": "positive"}, "labels has names of several kinds"),
    ],
)
def test_names_that_are_not_one_for_each_label_are_refused(labels: dict[Any, str], wrong: str, classifier: SentimentClassifier) -> None:
    for call in (lambda one: one.fit(TEXTS), lambda one: one.predict(TEXTS), lambda one: one.predict_proba(TEXTS)):
        with pytest.raises(ValueError, match=f"{wrong}.*; the model's labels are negative, positive"):
            call(clone(classifier).set_params(labels=labels))


def test_names_that_are_not_a_mapping_are_refused(classifier: SentimentClassifier) -> None:
    with pytest.raises(TypeError, match=r"labels must map names to the model's labels, such as \{0: .*, got list"):
        clone(classifier).set_params(labels=["negative", "positive"]).predict(TEXTS)


def test_clones_and_copies_share_a_loaded_bundle(classifier: SentimentClassifier) -> None:
    classifier.predict(["good"])
    missed = module._opened.cache_info().misses
    threads = threading.active_count()

    for copy in (clone(classifier), pickle.loads(pickle.dumps(classifier))):
        assert copy.predict(TEXTS[:2]).tolist() == ["positive", "negative"]

    assert module._opened.cache_info().misses == missed
    assert threading.active_count() == threads


def test_threads_load_a_bundle_once(classifier: SentimentClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    module._opened.cache_clear()
    opened: list[object] = []
    together = threading.Barrier(4)

    class Counted(Local):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            opened.append(arguments)
            super().__init__(*arguments, **options)

    def predict(_: int) -> list[str]:
        together.wait(10)
        found: list[str] = clone(classifier).predict(["awful"]).tolist()
        return found

    monkeypatch.setattr("sentiment.local.Local", Counted)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(predict, range(4))) == [["negative"]] * 4

    assert len(opened) == 1


# Those of scikit-learn's checks that do not give numbers as X or as labels; it leaves out itself what reads no tables of numbers.
CHECKS = [
    estimator_checks.check_estimator_cloneable,
    estimator_checks.check_estimator_tags_renamed,
    estimator_checks.check_valid_tag_types,
    estimator_checks.check_estimator_repr,
    estimator_checks.check_no_attributes_set_in_init,
    estimator_checks.check_do_not_raise_errors_in_init_or_set_params,
    estimator_checks.check_mixin_order,
    estimator_checks.check_parameters_default_constructible,
    estimator_checks.check_get_params_invariance,
    estimator_checks.check_set_params,
    estimator_checks.check_classifiers_regression_target,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_passes_the_checks_of_scikit_learn(check: Callable[[str, object], None], classifier: SentimentClassifier) -> None:
    check("SentimentClassifier", classifier)


def test_scikit_learn_knows_that_it_reads_texts(classifier: SentimentClassifier) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results = estimator_checks.check_estimator(classifier)

    assert {result["status"] for result in results} == {"passed"}
    assert [warning for warning in said if issubclass(warning.category, SkipTestWarning) and "string=True" in str(warning.message)]


def test_the_order_and_the_company_of_texts_change_nothing(classifier: SentimentClassifier) -> None:
    """As scikit-learn's check_methods_sample_order_invariance and check_methods_subset_invariance."""
    order = np.random.default_rng(3).permutation(len(TEXTS))

    whole = classifier.predict_proba(TEXTS)

    assert (classifier.predict_proba([TEXTS[place] for place in order]) == whole[order]).all()
    assert (np.vstack([classifier.predict_proba([text]) for text in TEXTS]) == whole).all()


def test_the_example_gives_what_it_shows(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTIMENT_BUNDLES", str(bundles))
    monkeypatch.setenv("SENTIMENT_MODEL", "tiny")
    module._opened.cache_clear()
    said: list[str] = []

    (example,) = doctest.DocTestFinder(exclude_empty=True).find(SentimentClassifier, globs=vars(module), module=module)[:1]
    assert example.examples
    doctest.DocTestRunner().run(example, out=said.append)

    module._opened.cache_clear()
    assert not said, "".join(said)


@pytest.mark.parametrize(("module", "package"), [("sklearn", "scikit-learn"), ("numpy", "NumPy")])
def test_a_missing_package_is_said_by_name(module: str, package: str) -> None:
    script = f"""
import sys
sys.modules["{module}"] = None
try:
    import sentiment.sklearn
except ModuleNotFoundError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == (f"sentiment.sklearn needs {package}, which is not installed: pip install 'sentiment-service[sklearn]'")
