"""The geometry of words against loops, and of a text against the states that the explain graph gives."""

import hashlib
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from sentiment.errors import Unsupported
from sentiment.explain.engine import Explainer
from sentiment.explain.engine.golden_words import GoldenWords
from sentiment.explain.methods.geometry import NEAREST, locate, plane_of, word_states
from sentiment.explain.parts import ExplanationRequest, Summary, WordGeometry
from sentiment.model.bundle import FileSpec
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.session import ExplainSession, Stop
from sentiment.model.words import Word
from tests.core.explain.explained import TEXT, all_of, explained

Floats = npt.NDArray[np.float32]
ASKED = ExplanationRequest(TEXT, attributions=False, geometry=True)


def drawn(seed: int, words: int, width: int = 12) -> Floats:
    return np.random.default_rng(seed).normal(3, 1, (words, width)).astype(np.float32) * np.arange(1, width + 1, dtype=np.float32)


def given(explainer: Explainer, text: str = TEXT) -> list[WordGeometry]:
    _, parts, summary = explained(explainer, ExplanationRequest(text, attributions=False, geometry=True))
    assert summary.notes == ()
    return all_of(parts, WordGeometry)


@pytest.mark.parametrize("seed", range(5))
def test_the_plane_is_that_of_the_largest_variance(seed: int) -> None:
    known = drawn(seed, 40)
    plane = plane_of(known)

    values, vectors = np.linalg.eigh(np.cov(known.astype(np.float64).T))
    for axis, (place, share) in enumerate(zip(plane.axes, plane.variance, strict=True)):
        assert abs(float(place @ vectors[:, -1 - axis])) == pytest.approx(1, abs=1e-5)
        assert share == pytest.approx(values[-1 - axis] / values.sum(), abs=1e-5)
    assert plane.points == pytest.approx((known - known.mean(0)) @ plane.axes.T, abs=1e-3)
    assert all(column[np.abs(column).argmax()] > 0 for column in plane.points.T)


@pytest.mark.parametrize("seed", range(5))
def test_neither_axis_is_mirrored_from_layer_to_layer(seed: int) -> None:
    known = drawn(seed, 30)
    before = plane_of(known)

    # Each its own mirror image, nearly.
    after = plane_of(-1.1 * known, before)

    assert after.points == pytest.approx(1.1 * before.points, rel=1e-3, abs=1e-2)


@pytest.mark.parametrize("seed", range(5))
def test_the_nearest_words_are_those_of_the_largest_cosines_each_spelling_once(seed: int) -> None:
    known, words = drawn(seed, 20), drawn(seed + 100, 6)
    spellings = [("good", "Good", "bad", "w")[number % 4] + ("" if number % 4 < 3 else str(number)) for number in range(20)]
    mean = [math.fsum(map(float, column)) / 20 for column in known.T]

    found = locate(words, plane_of(known), spellings)

    for number, word in enumerate(words):
        here = [float(value) - middle for value, middle in zip(word, mean, strict=True)]
        closest: dict[str, tuple[float, int]] = {}
        for index, other in enumerate(known):
            there = [float(value) - middle for value, middle in zip(other, mean, strict=True)]
            cosine = sum(a * b for a, b in zip(here, there, strict=True)) / math.hypot(*here) / math.hypot(*there)
            spelling = spellings[index].lower()
            closest[spelling] = max(closest.get(spelling, (-2.0, -1)), (cosine, index))
        wanted = sorted(closest.values(), reverse=True)[:NEAREST]
        assert found.nearest[number].tolist() == [index for _, index in wanted]
        assert found.cosines[number] == pytest.approx([cosine for cosine, _ in wanted], abs=1e-4)


def test_a_single_known_word_and_words_that_are_equal_have_places_at_the_origin() -> None:
    for known in (drawn(0, 1), np.repeat(drawn(0, 1), 4, axis=0)):
        plane = plane_of(known)
        found = locate(drawn(1, 2), plane, ["a"] * len(known))

        assert not plane.points.any()
        assert not plane.variance.any()
        assert found.nearest.tolist() == [[0], [0]]
        assert np.isfinite(found.points).all()
        assert not found.cosines.any()


def test_a_word_is_the_mean_of_its_tokens() -> None:
    hidden = drawn(0, 5)

    states = word_states(hidden, [Word(0, 1, 1, 2, False), Word(2, 5, 2, 4, False)])

    assert states == pytest.approx(np.stack([hidden[1], (hidden[2] + hidden[3]) / 2]))


def test_there_is_a_geometry_of_each_layer_and_of_the_embeddings(plain: Explainer) -> None:
    graph = plain.load()
    assert graph is not None
    encoded = plain.classifier.tokenizer.encode_explained(TEXT)
    found = graph.session.run(
        plain.classifier.feeds([plain.classifier.tokenizer.encode(TEXT)]), graph.session.outputs, np.zeros(1, np.int64)
    )

    parts = given(plain)

    assert [part.layer for part in parts] == [0, 1, 2]
    for part in parts:
        states = word_states(found[f"hidden.{part.layer}"][0], encoded.words)
        assert part.found.points == pytest.approx((states - part.plane.mean) @ part.plane.axes.T, abs=1e-4)
        assert len(part.golden) == len(part.plane.points) > 50
        assert not {".", ",", "!"} & set(part.golden)


def test_each_word_of_a_golden_text_lies_where_that_golden_word_does(plain: Explainer) -> None:
    # "It is not good at all.": its words are golden ones that follow those of the texts before it.
    texts = [golden.text for golden in plain.classifier.manifest.golden if golden.text_pair is None]
    text = next(text for text in texts if text == "It is not good at all.")

    for part in given(plain, text):
        first = next(at for at in range(len(part.golden)) if part.golden[at : at + 6] == ("It", "is", "not", "good", "at", "all"))
        assert part.found.points[:6] == pytest.approx(part.plane.points[first : first + 6], abs=1e-3)
        assert [part.golden[index].lower() for index in part.found.nearest[:6, 0]] == ["it", "is", "not", "good", "at", "all"]
        assert part.found.cosines[:6, 0] == pytest.approx(np.ones(6), abs=1e-4)


def test_the_golden_texts_run_once(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explainer = Explainer(load_classifier(bundle, "fp32"))
    explainer.load()
    ran: list[int] = []
    run = ExplainSession.run
    monkeypatch.setattr(ExplainSession, "run", lambda *a, **k: ran.append(1) or run(*a, **k))

    first = given(explainer)
    counted = len(ran)
    second = given(explainer)

    assert counted == 1 + len(explainer.classifier.manifest.golden)
    assert len(ran) == counted + 1
    assert [part.found.points.tolist() for part in first] == [part.found.points.tolist() for part in second]


def test_without_time_for_all_golden_texts_a_note_says_so_and_the_next_explanation_goes_on(bundle: Path) -> None:
    explainer = Explainer(load_classifier(bundle, "fp32"))
    count = len(explainer.classifier.manifest.golden)
    left = iter([10.0] * 5 + [0.0] * 9)

    *parts, summary = explainer.explain(ASKED, left_s=lambda: next(left))
    again, rest = list(explainer.explain(ASKED)), Explainer(load_classifier(bundle, "fp32"))

    assert all_of(parts, WordGeometry) == []
    assert isinstance(summary, Summary)
    (note,) = summary.notes
    done = int(note.split()[4])
    assert 0 < done < count
    assert note == f"geometry was left out: {done} of {count} golden texts have run, and no time was left for more; ask again"
    assert summary.explained_rows == 1 + done
    assert isinstance(again[-1], Summary)
    assert again[-1].explained_rows == 1 + count - done
    for ours, whole in zip(all_of(again, WordGeometry), given(rest), strict=True):
        assert ours.found.points == pytest.approx(whole.found.points, abs=1e-5)


def test_a_stop_loses_no_golden_text_that_has_run(bundle: Path) -> None:
    explainer, stop = Explainer(load_classifier(bundle, "fp32")), Stop()
    graph = explainer.load()
    assert graph is not None
    calls = 0

    def left_s() -> float:
        nonlocal calls
        calls += 1
        if calls == 6:
            stop.ask()
        return 100.0

    with pytest.raises(Exception, match="terminate"):
        list(explainer.explain(ASKED, left_s, stop))

    done, count = graph.golden.progress
    assert 0 < done < count
    assert len(given(explainer)) == 3
    assert graph.golden.progress == (count, count)


def test_an_explanation_that_goes_on_amid_the_golden_texts_of_another_finishes_them(bundle: Path) -> None:
    explainer = Explainer(load_classifier(bundle, "fp32"))
    explainer.load()
    between: list[list[WordGeometry]] = []
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == 6:
            between.append(given(explainer))

    *parts, summary = explainer.explain(ASKED, turn=turn)

    assert [len(found) for found in (between[0], all_of(parts, WordGeometry))] == [3, 3]
    # The first had begun with the fourth golden text, and needed no other after that.
    assert isinstance(summary, Summary)
    assert summary.explained_rows == 1 + 4


def test_the_second_text_of_a_pair_has_places_of_its_own(plain: Explainer) -> None:
    encoded = plain.classifier.tokenizer.encode_explained("good film", "bad film")

    _, parts, _ = explained(plain, ExplanationRequest("good film", "bad film", attributions=False, geometry=True))

    found = all_of(parts, WordGeometry)
    assert [len(part.found.points) for part in found] == [len(encoded.words)] * 3
    assert np.abs(found[-1].found.points[1] - found[-1].found.points[3]).max() > 1e-4


def test_golden_texts_of_punctuation_alone_give_no_geometry(bundle: Path) -> None:
    found = load_classifier(bundle, "fp32")
    first = found.manifest.golden[0]
    manifest = found.manifest.model_copy(update={"golden": (first.model_copy(update={"text": "!!!", "text_pair": None}),)})
    silent = Classifier(replace(found.bundle, manifest=manifest), found.graph, found.tokenizer, found.session)
    explainer = Explainer(silent)
    graph = Explainer(found).load()
    assert graph is not None
    explainer._graph = replace(graph, golden=GoldenWords(silent))

    with pytest.raises(Unsupported, match="the golden texts of bundle tiny/1 are punctuation alone"):
        next(explainer.explain(ASKED))


def test_a_graph_without_hidden_states_explains_all_but_the_geometry(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "bundle")
    explainer, file = Explainer(load_classifier(tmp_path / "bundle", "fp32")), tmp_path / "bundle/explain.onnx"
    model = onnx.load(file, load_external_data=False)
    for output in [one for one in model.graph.output if one.name.startswith("hidden.")]:
        model.graph.output.remove(output)
    onnx.save(model, file)
    content = file.read_bytes()
    explainer.classifier.manifest.files[file.name] = FileSpec(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    _, parts, _ = explained(explainer, ExplanationRequest(TEXT, heads=True))

    assert len(parts) == 4
    with pytest.raises(Unsupported, match=r"hidden states; that of bundle tiny/1 has none; export it again with 0\.2\.0 or later"):
        next(explainer.explain(ASKED))


def test_golden_words_are_bounded(plain: Explainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentiment.explain.engine.golden_words.WORDS_MAX", 20)
    few = GoldenWords(plain.classifier)

    assert len(few.spellings) == 20
    assert few.progress[1] < len(plain.classifier.manifest.golden)
