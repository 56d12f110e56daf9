"""A whole study of tiny bundles: drawn fairly, killed and gone on with, and the same on one thread and on two."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sentiment.explain.methods import evidence as judging
from sentiment.explain.methods.deciding import DecidingWords
from sentiment.explain.methods.erasure import ranked
from sentiment.explain.parts import ExplanationRequest
from sentiment_models.data.labelled import Example
from sentiment_models.errors import BadData, ModelsError
from sentiment_models.evaluation.evaluate import Dataset
from sentiment_models.explanations import one_text, rankings
from sentiment_models.explanations import study as studying
from sentiment_models.explanations.findings import ATTENTION, ATTRIBUTION, BASELINE, KINDS, Findings
from sentiment_models.explanations.measures import Model
from sentiment_models.explanations.one_text import study_text, study_unsigned
from sentiment_models.explanations.rankings import WordCounts
from sentiment_models.explanations.study import balanced, study
from sentiment_models.explanations.subject import Subject
from sentiment_models.study import adversarial
from tests.models.tiny_families import TEXTS

COUNT = 4


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quality of the search has tests of its own."""
    monkeypatch.setattr(adversarial, "STEPS", 5)


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    path = tmp_path / "dev.tsv"
    ends = ("good", "not good", "bad at all", "a good idea .")
    texts = [f"the {what} was {end}" for what in ("film", "end", "book") for end in ends]
    path.write_text("".join(f"{number % 2}\t{text}\n" for number, text in enumerate(texts)))
    return Dataset("tiny/dev", path)


def without_times(found: Findings) -> str:
    """What does not depend on the machine's load."""
    whole = json.loads(found.model_dump_json())
    for dataset in whole["datasets"].values():
        dataset["seconds"] = 0
        for method in dataset["methods"].values():
            method["ms"] = 0
    return json.dumps(whole)


def test_a_draw_has_equal_numbers_of_each_label_and_depends_on_the_seed() -> None:
    examples = [Example(str(number), int(number < 30)) for number in range(100)]

    drawn = balanced(examples, 20, 2, seed=1)
    many = balanced(examples, 90, 2, seed=1)

    assert sum(example.label for example in drawn) == 10
    assert drawn == balanced(examples, 20, 2, seed=1)
    assert drawn != balanced(examples, 20, 2, seed=2)
    assert len({example.text for example in drawn}) == 20
    # 30 are all that there are of one label.
    assert (len(many), sum(example.label for example in many)) == (90, 30)
    assert len(balanced(examples, 500, 2, seed=1)) == 100


def test_a_study_finds_every_method_and_goes_on_after_a_kill(
    make_bundle: Callable[[str], Path], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume, again, bundle = tmp_path / "journal", tmp_path / "other", make_bundle("bert")
    done: list[int] = []

    def killed(*given: object) -> object:
        done.append(1)
        if len(done) > 2:
            raise KeyboardInterrupt
        return study_text(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(studying, "study_text", killed)
        study(bundle, [data], texts=COUNT, seed=3, resume=resume, threads=1)
    left: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(studying, "study_text", lambda *given: left.append(1) or study_text(*given))
        found = study(bundle, [data], texts=COUNT, seed=3, resume=resume, threads=2)
    whole = study(bundle, [data], texts=COUNT, seed=3, resume=again, threads=1)

    assert len(left) == COUNT - 2
    assert without_times(found) == without_times(whole)
    dataset = found.datasets["tiny/dev"]
    assert (dataset.texts, dataset.rows) == (COUNT, 12)
    assert list(dataset.methods) == list(KINDS)
    assert found.operators == ("attention_mask", "mask_token", "deletion")
    assert all(list(method.operators) == list(found.operators) for method in dataset.methods.values())
    assert dataset.attention is not None
    assert dataset.heads is not None
    kinds = (ATTENTION, ATTRIBUTION, BASELINE)
    rivals = [name for name, kind in KINDS.items() if kind in kinds and name not in (found.default_method, "random", "uniform")]
    compared = [(found.default_method, name) for name in rivals]
    compared += [("default_unsigned", name) for name in rivals if KINDS[name] == ATTENTION]
    assert [(one.better, one.than) for one in dataset.comparisons] == compared
    assert dataset.unseen == {"case": COUNT, "space": COUNT}
    # Every order lies between the bounds that are searched for, and a greedy one of so few words is all but the best.
    for operator in found.operators:
        places = {name: method.operators[operator].naopc for name, method in dataset.methods.items()}
        assert all(place is not None and -1e-3 <= place <= 1 + 1e-3 for place in places.values())
        assert max(places.values()) == places["greedy"] > 0.9  # type: ignore[type-var]
    assert Findings.model_validate_json(found.model_dump_json()) == found

    # All is done: nothing is run again.
    with monkeypatch.context() as patched:
        patched.setattr(studying, "study_text", lambda *given: pytest.fail("a text was studied again"))
        patched.setattr(studying, "resolve_name", lambda *given: pytest.fail("attention was tested again"))
        assert study(bundle, [data], texts=COUNT, seed=3, resume=resume) == found
    with monkeypatch.context() as patched:
        patched.setattr(studying, "study_text", lambda *given: pytest.fail("a text was studied again"))
        shapley = study(bundle, [data], texts=COUNT, seed=3, resume=resume, threads=1, default="shapley")
    assert shapley.default_method == "shapley"
    assert {one.better for one in shapley.datasets["tiny/dev"].comparisons} == {"shapley", "default_unsigned"}
    control = [one.datasets["tiny/dev"].methods["default_unsigned"] for one in (found, shapley)]
    assert control[0] != control[1]
    with pytest.raises(ModelsError, match="the default method 'rollout' is not among the studied ones: integrated_gradients, "):
        study(bundle, [data], texts=COUNT, seed=3, default="rollout")
    with monkeypatch.context() as patched, pytest.raises(ModelsError, match=r"other settings \(code\);"):
        patched.setattr(studying, "code_of", lambda modules: "other")
        study(bundle, [data], texts=COUNT, seed=3, resume=resume)
    with pytest.raises(ModelsError, match=r"other settings \(seed\)"):
        study(bundle, [data], texts=COUNT, seed=4, resume=resume)


def test_without_an_explain_graph_the_rest_is_studied(make_bundle: Callable[[str], Path], data: Dataset) -> None:
    found = study(make_bundle("xlnet"), [data], texts=2, threads=1)

    dataset = found.datasets["tiny/dev"]
    assert found.default_method == "occlusion"
    assert dataset.attention is None
    assert dataset.heads is None
    assert "occlusion" in dataset.methods
    assert "rollout" not in dataset.methods


def test_the_lexicon_is_of_the_training_files_where_there_are_some(
    make_bundle: Callable[[str], Path], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = tmp_path / "train.tsv"
    # The last is a phrase of most texts of the file.
    train.write_text("1\tfine\n0\tpoor\n1\twas\n")
    given: list[tuple[WordCounts, bool]] = []

    def seen(*args: object) -> object:
        given.append((args[4], args[5]))  # type: ignore[arg-type]
        return study_text(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(studying, "study_text", seen)
    study(make_bundle("xlnet"), [data], texts=1, train=[train], threads=1)
    study(make_bundle("xlnet"), [data], texts=1, threads=1)

    assert sorted(given[0][0].words) == ["fine", "poor"]
    assert not given[0][1]
    assert len(given[1][0].words) > 2
    assert given[1][1]


@pytest.mark.parametrize(
    ("family", "name", "line", "said"),
    [
        (
            "bert-deep",
            "pairs.jsonl",
            '{"label": 1, "text": "good film", "text_pair": "bad film"}',
            r"pairs\.jsonl: line 1: text_pair is not supported here",
        ),
        ("bert", "dots.tsv", "1\t\u200b", "has a word that the model reads"),
    ],
)
def test_a_file_of_pairs_for_a_model_of_single_texts_and_a_file_without_words_are_refused(
    make_bundle: Callable[[str], Path], tmp_path: Path, family: str, name: str, line: str, said: str
) -> None:
    (tmp_path / name).write_text(f"{line}\n")

    with pytest.raises(BadData, match=said):
        study(make_bundle(family), [Dataset("x", tmp_path / name)], threads=1)


def test_verdicts_are_those_of_the_service(subject: Subject) -> None:
    from sentiment.explain.methods.evidence import Evidence
    from sentiment.explain.parts import ExplanationRequest

    text = next(text for text in TEXTS if len(text.split()) > 7)
    reading = subject.read(text)
    counts = WordCounts.of([(text, 0)], len(subject.labels))

    found = study_text(subject, reading, 0, counts, counts, True, (5, 0), False)

    for method in ("occlusion", "integrated_gradients"):
        parts = subject.explainer.explain(ExplanationRequest(text, methods=(method,), seed=5))
        (evidence,) = (part for part in parts if isinstance(part, Evidence))
        assert found.methods[method].verdict == int(evidence.verdict)
        assert found.methods[method].random_sets == evidence.random_sets
        fifth = found.operators["attention_mask"].orders[method]
        assert fifth.comprehensiveness[3] == pytest.approx(evidence.comprehensiveness, abs=1e-4)
        assert fifth.sufficiency[3] == pytest.approx(evidence.sufficiency, abs=1e-4)
    assert set(found.operators["attention_mask"].orders) == set(KINDS) - {"greedy", "default_unsigned"}


def test_equal_scores_are_not_judged_by_the_first_words(subject: Subject) -> None:
    counts = WordCounts.of([], len(subject.labels))
    judged = []
    real = one_text.evidence

    def kept(*given: object, **named: object) -> object:
        judged.append((named["method"], tuple(ranked(given[1]))))  # type: ignore[arg-type]
        return real(*given, **named)  # type: ignore[arg-type]

    for number in range(6):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(one_text, "evidence", kept)
            study_text(subject, subject.read("the film was not good at all"), 0, counts, counts, False, (5, number), False)

    assert len({order for name, order in judged if name == "uniform"}) > 3
    assert {order for name, order in judged if name == "position_first"} == {tuple(range(7))}


def test_the_size_of_scores_is_an_order_of_its_own(subject: Subject) -> None:
    reading = subject.read("the film was not good")
    counts = WordCounts.of([], len(subject.labels))
    text = study_text(subject, reading, 0, counts, counts, False, (5, 0), False)

    found = study_unsigned(subject, reading, [0.1, -5.0, 0.2, 1.0, 0.0], (5, 0))
    whole = found.added_to(text)

    assert found.orders.keys() == set(subject.operators)
    for operator in subject.operators:
        masks = np.ones((2, 5), np.bool_)
        # A fifth of five words is one: the second, whatever it speaks for.
        masks[1, 1] = False
        kept, erased = Model(reading.target(), subject.temperature).probability(reading.answers(operator).logits(masks))
        one = whole.operators[operator].orders["default_unsigned"]
        assert one.comprehensiveness[3] == pytest.approx(kept - erased, abs=1e-5)
    assert set(whole.operators["attention_mask"].orders) == set(KINDS) - {"greedy"}


def test_of_a_long_text_what_takes_a_row_a_word_is_shortened(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = subject.read("the film was not good at all , but i liked the end")
    counts = WordCounts.of([], len(subject.labels))
    short = study_text(subject, reading, 0, counts, counts, False, (5, 0), False)

    for module in (one_text, rankings):
        monkeypatch.setattr(module, "LONG_TOKENS", 8)
    long = study_text(subject, subject.read(reading.texts[0]), 0, counts, counts, False, (5, 0), False)

    assert long.methods["shapley"].rows < 2 + 2 * reading.count < short.methods["shapley"].rows
    first, *others = (long.operators[name].orders["rollout"].tau for name in subject.operators)
    assert first is not None
    assert others == [None, None]
    assert long.operators["attention_mask"].orders["occlusion"].tau == pytest.approx(1)
    assert long.methods["integrated_gradients"] == short.methods["integrated_gradients"].model_copy(
        update={"ms": long.methods["integrated_gradients"].ms}
    )


def test_only_the_methods_asked_for_are_studied_and_the_first_is_compared(make_bundle: Callable[[str], Path], data: Dataset) -> None:
    found = study(make_bundle("bert"), [data], texts=COUNT, seed=3, methods=("two_step_shapley", "gradient_x_input"))

    dataset = found.datasets["tiny/dev"]
    assert found.default_method == "two_step_shapley"
    assert [name for name, one in dataset.methods.items() if one.kind == ATTRIBUTION] == ["gradient_x_input", "two_step_shapley"]
    assert {one.better for one in dataset.comparisons} == {"two_step_shapley", "default_unsigned"}
    with pytest.raises(ModelsError, match="no method 'lime'; the bundle has integrated_gradients, "):
        study(make_bundle("bert"), [data], methods=("lime",))


@pytest.mark.parametrize(("text", "searched"), [("the film was not good at all , but i liked the end", True), ("the film was good", False)])
def test_deciding_words_are_judged_as_the_service_does(
    subject: Subject, text: str, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tiny model's answers hardly hang on their words.
    monkeypatch.setattr(judging, "EFFECT_MIN", -1.0)
    counts = WordCounts.of([], len(subject.labels))
    parts = subject.explainer.explain(ExplanationRequest(text, methods=("shapley",), seed=5))
    served = [part for part in parts if isinstance(part, DecidingWords)]

    found = study_text(subject, subject.read(text), 0, counts, counts, False, (5, 0), False, ("shapley",)).deciding

    assert found == (next(((one.verdict, one.random_sets) for one in served), None))
    assert (found is not None) == searched
