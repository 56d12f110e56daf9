"""Measuring the ways of reading long texts on a real bundle, and writing the best into its manifest."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sentiment.model.bundle import WindowsSpec, load_bundle
from sentiment.model.classifier import load_classifier
from sentiment.model.scores import COMBINATIONS, combine
from sentiment_models.cli import main
from sentiment_models.errors import BadData, ModelsError
from sentiment_models.evaluation.long_texts import Choice, LongTexts, measure_long_texts, record_long_texts
from sentiment_models.export.export import Exported
from tests.models.tiny_bert import sentences, write_tsv


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 texts that fit the model's 64 tokens, and 30 that do not."""
    long = [
        (label, " ".join(text for _, text in sentences(8, seed=number, words_max=30))) for number, (label, _) in enumerate(sentences(30))
    ]
    return write_tsv(tmp_path_factory.mktemp("long") / "texts.tsv", [*sentences(20, seed=9), *long])


@pytest.fixture(scope="module")
def found(exported: tuple[Path, Exported], data: Path) -> LongTexts:
    return measure_long_texts(exported[0], [data], Choice(strides=(20, 62)), threads=1)


def long_lines(path: Path, data: Path) -> list[tuple[int, str]]:
    tokenizer = load_classifier(path).tokenizer
    lines = [line.split("\t") for line in data.read_text().splitlines()]
    return [(int(label), text) for label, text in lines if tokenizer.encode(text).truncated]


def test_every_way_is_measured_on_the_texts_that_do_not_fit(exported: tuple[Path, Exported], data: Path, found: LongTexts) -> None:
    names = [f"windows 64/{stride} {rule}" for stride in (20, 62) for rule in COMBINATIONS]

    assert [way.name for way in found.ways] == ["head", "head_tail 16", *names]
    assert 10 < found.texts == len(long_lines(exported[0], data)) <= 30
    assert all(way.core_ms_per_text > 0 for way in found.ways)
    assert [way.rows_per_text for way in found.ways[:2]] == [1, 1]
    assert found.ways[2].rows_per_text > found.ways[-1].rows_per_text > 1


def test_figures_are_those_of_the_services_answers(exported: tuple[Path, Exported], data: Path, found: LongTexts) -> None:
    classifier = load_classifier(exported[0])
    temperature = classifier.manifest.calibration.temperature

    def right(reading: Sequence[list[float]], rule: str, label: int) -> bool:
        scores = combine(reading, rule, temperature)
        return scores.index(max(scores)) == label

    lines = long_lines(exported[0], data)
    whole = [[classifier.run([row])[0] for row in classifier.tokenizer.encode_windows(text, 64, 20, 16).rows] for _, text in lines]
    tails = [classifier.run([classifier.tokenizer.encode_head_tail(text, 16)]) for _, text in lines]

    for way in found.ways[1:6]:
        readings, rule = (whole, way.windows.combine) if way.windows else (tails, "mean_logit")
        hits = [right(reading, rule, label) for reading, (label, _) in zip(readings, lines, strict=True)]
        assert way.accuracy == pytest.approx(sum(hits) / len(hits), abs=1e-5)
        assert way.gained - way.lost == sum(hits) - round(found.ways[0].accuracy * len(hits))


def test_the_best_has_the_likeliest_labels_among_those_as_accurate_and_of_equal_ones_costs_least(found: LongTexts) -> None:
    def made(*ways: tuple[float, float, float]) -> LongTexts:
        """100 texts read in windows with these accuracies, likelihoods and costs; the standard error of 0.9 is 0.03."""
        one = found.ways[2]
        changes = [{"accuracy": accuracy, "nll": nll, "core_ms_per_text": cost} for accuracy, nll, cost in ways]
        return found.model_copy(update={"texts": 100, "ways": (found.ways[0], *(one.model_copy(update=change) for change in changes))})

    def best(*ways: tuple[float, float, float]) -> int:
        measured = made(*ways)
        return measured.ways.index(measured.best("windows")) - 1

    assert best((0.9, 0.3, 1), (0.88, 0.2, 9)) == 1
    assert best((0.9, 0.3, 1), (0.86, 0.2, 1)) == 0
    assert best((0.9, 0.3, 2), (0.9, 0.3, 1)) == 1
    assert found.best("head") == found.ways[0]


def test_the_best_windows_stand_in_the_manifest_and_are_served(bundle: Path, found: LongTexts) -> None:
    before = load_bundle(bundle)

    record_long_texts(bundle, found)

    after = load_bundle(bundle)
    assert after.manifest.windows == found.best("windows").windows == load_classifier(bundle).windows
    assert after.manifest.head_tail is not None
    assert after.manifest.head_tail.head == 16
    assert after.manifest.default_truncation == "head"
    assert after.digest != before.digest
    provenance = json.loads((bundle / "manifest.json").read_bytes())["provenance"]
    assert provenance["long_texts"]["texts"] == found.texts
    assert provenance["long_texts"]["files"].keys() == {"texts.tsv"}
    assert provenance.keys() > {"long_texts"}
    # Only on request the default changes.
    record_long_texts(bundle, found, default="head_tail")
    assert load_bundle(bundle).manifest.default_truncation == "head_tail"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"graph_sha256": "0" * 64}, r"measured on int8\.onnx with SHA-256 000000000000; the bundle serves another graph first"),
        ({"temperature": 9.0}, "the figures were measured with temperature 9"),
    ],
)
def test_figures_of_another_bundle_are_not_recorded(bundle: Path, found: LongTexts, changes: dict[str, object], said: str) -> None:
    before = load_bundle(bundle).digest

    with pytest.raises(ModelsError, match=said):
        record_long_texts(bundle, found.model_copy(update=changes))

    assert load_bundle(bundle).digest == before


def test_only_the_texts_that_are_asked_for_are_measured(exported: tuple[Path, Exported], data: Path) -> None:
    few = measure_long_texts(exported[0], [data], Choice(texts_max=5, strides=(62,)), threads=1)
    dev = measure_long_texts(exported[0], [data], Choice(dev_fraction=0.5, strides=(62,)), threads=1)

    assert few.texts == 5
    assert 0 < dev.texts < len(long_lines(exported[0], data))


def test_texts_or_strides_that_cannot_be_measured_are_refused(exported: tuple[Path, Exported], tmp_path: Path) -> None:
    short = write_tsv(tmp_path / "short.tsv", sentences(5))

    with pytest.raises(BadData, match=r"short\.tsv: none of 5 texts has more than 64 tokens"):
        measure_long_texts(exported[0], [short], Choice())
    with pytest.raises(ModelsError, match=r"stride must be at most 62 \(the tokens of one window\), got 63"):
        measure_long_texts(exported[0], [short], Choice(strides=(63,)))


def test_the_command_prints_writes_and_records(bundle: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "figures.json"

    options = ["--stride", "62", "--threads", "1", "--json", str(figures)]
    assert main(["long-texts", str(bundle), str(data), *options, "--record", "--default"]) == 0

    found = LongTexts.model_validate_json(figures.read_bytes())
    shown = capsys.readouterr().out
    assert "core-ms/text" in shown
    assert f"best: {found.best().name}" in shown
    assert load_bundle(bundle).manifest.default_truncation == found.best().truncation
    assert isinstance(load_bundle(bundle).manifest.windows, WindowsSpec)
    assert main(["long-texts", str(bundle), str(data), *options, "--record", "--default", "head_tail"]) == 0
    assert load_bundle(bundle).manifest.default_truncation == "head_tail"
    assert main(["long-texts", str(bundle), str(data), "--default"]) == 1
    assert "--default needs --record" in capsys.readouterr().err
