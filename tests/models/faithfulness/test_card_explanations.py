"""The card's section on explanations: measured figures in plain words, and no better than they are."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sentiment.model.bundle import load_bundle
from sentiment_models.cli import main
from sentiment_models.errors import ModelsError
from sentiment_models.explanations.findings import Difference
from sentiment_models.explanations.record import record_findings
from sentiment_models.explanations.training_findings import Accuracy, TrainingFindings, UniformFound
from sentiment_models.reports.card import write_card
from sentiment_models.reports.card_explanations import explanations
from tests.models.faithfulness.found import findings

TITLE = "## How far explanations can be trusted"


@pytest.fixture
def bundle(make_bundle: Callable[[str], Path], tmp_path: Path) -> Path:
    """A tiny BERT's bundle that a test may change."""
    return Path(shutil.copytree(make_bundle("bert"), tmp_path / "tiny" / "1"))


def trained(loss: float) -> TrainingFindings:
    """Of one test alone: attention frozen uniform in all layers costs so much accuracy."""
    accuracy = Accuracy(mean=0.8, low=0.75, high=0.85, seeds=(0.8,))
    lost = Difference(mean=loss, low=loss - 0.02, high=loss + 0.02, texts=40)
    uniform = UniformFound(learned=accuracy, last_layer=accuracy, all_layers=accuracy, last_loss=lost, all_loss=lost)
    counts = {"train_texts": 80, "heldout_texts": 40, "vocabulary": 9, "parameters": 9}
    return TrainingFindings(files={}, fingerprint="", words=9.0, majority=0.5, settings={}, uniform=uniform, **counts)


def test_the_command_writes_what_was_measured_into_the_card(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    studied, tested = tmp_path / "findings.json", tmp_path / "results.json"
    record_findings(bundle, findings(bundle))
    studied.write_text(findings(bundle).model_dump_json())
    tested.write_text(trained(0.1).model_dump_json())

    assert main(["card", str(bundle), "--explanations", str(studied), "--attention-tests", str(tested)]) == 0

    text = load_bundle(bundle).card
    assert str(bundle / "MODEL_CARD.md") in capsys.readouterr().out
    assert load_bundle(bundle).digest in text
    assert text.index(TITLE) < text.index("### Trust, on made/dev") < text.index("### Trust, on made/other") < text.index("## Weaknesses")
    row = "| **integrated_gradients** | attribution | +0.120 (+0.100 to +0.140) | +0.120 (+0.100 to +0.140) | 80.0% | 12 | 3.2 |"
    control = "| default_unsigned | control | +0.060 (+0.040 to +0.080) |"
    assert row in text
    assert control in text
    assert "They mark 20.0% of the words; a random ranking has an AUPRC of 0.270." in text
    assert "Measured on 80 of 100 texts" in text
    assert "### Agreement with people" in text
    assert "costs +0.100 (+0.080 to +0.120) of accuracy" in text


def test_it_says_plainly_where_the_default_does_not_win(bundle: Path) -> None:
    text = explanations(findings(bundle), "integrated_gradients")

    assert "`integrated_gradients`, the default, finds words that matter" in text
    assert "80.0% (75.0% to 85.0%) of the 50 tested texts. The target of 90% is **missed**. The verdict erases" in text
    assert "as occlusion and shapley do. 30 texts were flat" in text
    assert "compared with rankings by attention: it beats 2 of 2 in every way (attention_last_cls, rollout)." in text
    assert "compared with other attributions: it beats 1 of 2 in every way (gradient_x_input); **1 beat it** (occlusion)." in text
    assert "compared with baselines that do not use the model: it beats 1 of 1 in every way (position_first)." in text
    assert "default_unsigned ranks by the absolute values of the default" in text
    assert "`default_unsigned` compared with rankings by attention: it beats 1 of 2 in every way (rollout); 1 unclear" in text
    assert "The sum of its values is off by 1.0% in the median" in text


def test_a_default_that_is_as_good_as_random_is_called_so_and_a_good_one_reaches_the_aim(bundle: Path) -> None:
    weak = explanations(findings(bundle, "gradient_x_input"), "gradient_x_input")
    good = explanations(findings(bundle, "occlusion", better=0.96), "occlusion")
    near = explanations(findings(bundle, "occlusion", better=0.92), "occlusion")
    silent = explanations(findings(bundle, "occlusion", better=None), "occlusion")

    assert "`gradient_x_input`, the default, is **not** shown to be better than random" in weak
    assert "it beats 1 of 2 in every way (rollout); **1 beat it** (attention_last_cls)" in weak
    assert "The target of 90% is reached" in good
    assert "92.0% (87.0% to 97.0%) of the 50 tested texts. The target of 90% is within the interval, so **neither** is shown" in near
    assert "**1 beat it**" not in good
    assert "before and after changes without meaning: 0.97 (case)" in good
    assert "The target of" not in silent


def test_comparisons_of_another_default_are_not_its_own(bundle: Path) -> None:
    text = explanations(findings(bundle, "integrated_gradients"), "occlusion")

    assert "| **occlusion** |" in text
    assert "`occlusion` compared with" not in text
    assert "`integrated_gradients` compared with" not in text
    assert "`default_unsigned` compared with" not in text


def test_findings_of_another_default_than_the_bundle_s_are_refused(bundle: Path) -> None:
    record_findings(bundle, findings(bundle, "occlusion"))

    with pytest.raises(ModelsError, match="the findings have default method integrated_gradients; the bundle has occlusion"):
        write_card(bundle, [], findings(bundle, "integrated_gradients"))
    assert "`occlusion` compared with" in write_card(bundle, [], findings(bundle, "occlusion")).read_text(encoding="utf-8")


def test_what_the_tokenizer_does_not_see_is_told_apart_in_the_card(bundle: Path) -> None:
    found = findings(bundle, "occlusion")
    blind = {name: one.model_copy(update={"unseen": {"space": 70}}) for name, one in found.datasets.items()}

    text = explanations(found.model_copy(update={"datasets": blind}), "occlusion")

    assert "Left out there, because the tokens do not change: space in 70 texts." in text


def test_training_says_whether_attention_is_needed() -> None:
    assert "Such encoders need attention here: uniform attention" in explanations(None, "", trained(0.1))
    assert "Such encoders are **not** shown to need attention here: uniform attention" in explanations(None, "", trained(0.01))


def test_without_findings_the_card_says_that_nothing_was_measured(bundle: Path) -> None:
    text = write_card(bundle, []).read_text(encoding="utf-8")

    assert f"{TITLE}\n\nThe bundle's explanations were not measured." in text


def test_findings_of_another_bundle_are_refused(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = findings(bundle).model_copy(update={"graph_sha256": "0" * 64})
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")

    with pytest.raises(ModelsError, match="the bundle has one with SHA-256"):
        write_card(bundle, [], other)
    assert main(["card", str(bundle), "--explanations", str(wrong)]) == 1
    assert f"error: {wrong}: not written by evaluate --explanations --json of this version: bundle: " in capsys.readouterr().err
