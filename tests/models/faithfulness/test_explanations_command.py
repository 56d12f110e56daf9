"""``evaluate --explanations`` from the command line: all its outputs, going on, recording, and what it refuses at once."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sentiment.model.bundle import load_bundle
from sentiment_models.cli import main
from sentiment_models.commands import explanations
from sentiment_models.explanations import plausibility
from sentiment_models.explanations import study as studying
from sentiment_models.explanations.findings import Findings
from sentiment_models.explanations.training_findings import TrainingFindings
from sentiment_models.study import adversarial
from tests.models.faithfulness.made_up import findings
from tests.models.faithfulness.test_plausibility import LINES, write


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "dev.tsv"
    path.write_text("1\ta very good film\n0\ti did not like it at all\n1\tthe end was good\n0\tbad , bad film\n")
    return path


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quality of the search has tests of its own."""
    monkeypatch.setattr(adversarial, "STEPS", 5)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["evaluate", *argv]) == 1
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.usefixtures("undrawn")
def test_a_study_is_shown_written_gone_on_with_and_recorded(
    bundle: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_bundle(bundle).digest
    rationales, resume = write(tmp_path / "r.jsonl.gz", LINES), tmp_path / "journal"
    results, figures, page = tmp_path / "results.json", tmp_path / "f.json", tmp_path / "f.html"
    counts = {"train_texts": 80, "heldout_texts": 40, "vocabulary": 100, "parameters": 9000}
    trained = TrainingFindings(files={"made.tsv": "0" * 64}, fingerprint="f", words=9.5, majority=0.5, settings={}, **counts)
    results.write_text(trained.model_dump_json())
    files = ["--rationales", str(rationales), "--resume", str(resume), "--json", str(figures), "--html", str(page)]
    argv = ["evaluate", "--explanations", str(bundle), f"tiny={data}", "--texts", "3", "--documents", "2", "--threads", "1", *files]

    assert main([*argv, "--attention-tests", str(results)]) == 0
    found = Findings.model_validate_json(figures.read_bytes())
    shown = capsys.readouterr().out
    with monkeypatch.context() as patched:
        patched.setattr(plausibility, "_scores", lambda *given: pytest.fail("a document was scored again"))
        assert main([*argv, "--record", "--default", "occlusion"]) == 0

    recorded = Findings.model_validate_json(figures.read_bytes())
    said = capsys.readouterr().out
    assert (found.default_method, recorded.default_method) == ("integrated_gradients", "occlusion")
    assert "occlusion, the default," in said
    assert "integrated_gradients, the default," not in said
    better = {one.better for one in recorded.datasets["tiny"].comparisons}
    assert better == {"occlusion", "default_unsigned"}
    # What is of the file alone is as it was, though the bundle's digest has changed since.
    assert recorded.plausibility == found.plausibility
    assert recorded.datasets["tiny"].methods["shapley"] == found.datasets["tiny"].methods["shapley"]
    with monkeypatch.context() as patched:
        patched.setattr(plausibility, "_scores", lambda *given: pytest.fail("a document was scored again"))
        patched.setattr(studying, "study_text", lambda *given: pytest.fail("a text was studied again"))
        assert main([*argv, "--record", "--default", "occlusion"]) == 0
    monkeypatch.setattr(explanations, "study", lambda *given: pytest.fail("the study began"))
    assert main([*argv[:-8], *files, "--documents", "1"]) == 2
    assert "journal.rationales: belongs to a study with other settings (documents)" in capsys.readouterr().err
    assert (found.datasets["tiny"].texts, found.seed) == (3, 20)
    assert found.plausibility is not None
    assert found.plausibility.documents == 2
    assert {path.name for path in tmp_path.glob("journal*")} == {"journal", "journal.rationales"}
    assert "tiny: 3 of 4 texts" in shown
    assert "Agreement with people" in shown
    assert "<h2>Does attention explain?</h2>" in page.read_text(encoding="utf-8")
    after = load_bundle(bundle)
    assert after.digest != before
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    assert manifest["explanations"]["default_method"] == "occlusion"


@pytest.fixture
def no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanations, "study", lambda *given: pytest.fail("the study began"))


@pytest.mark.usefixtures("no_study")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--texts", "5"], "--texts needs --explanations"),
        (["--train", "x.tsv", "--resume", "j"], "--train, --resume need --explanations"),
        (["--default", "occlusion"], "--default needs --explanations"),
        (["--explanations", "--truncation", "head"], "--truncation cannot be used with --explanations"),
        (["--explanations", "--undecided", "u.tsv"], "--undecided cannot be used with --explanations"),
        (["--explanations", "--documents", "5"], "--documents needs --rationales"),
        (["--explanations", "--default", "occlusion"], "--default needs --record"),
        (["--explanations", "--html", "nowhere/f.html"], "nowhere/f.html: the folder does not exist; create it first"),
        (["--explanations", "--resume", "-"], "--resume -: must be a regular file"),
        (["--explanations", "--train", "nowhere.tsv"], "nowhere.tsv: no such file"),
        (
            ["--explanations", "--record", "--precision", "fp32"],
            "--record cannot be used with --precision: only the served graph, int8.onnx",
        ),
        (["--explanations", "--record", "--default", "rollout"], "--default must be one of integrated_gradients, "),
        (["--explanations", "--attention-tests", "nowhere.json"], "nowhere.json: cannot be read"),
    ],
)
def test_invalid_flags_are_refused_before_the_study(
    flags: list[str], said: str, make_bundle: Callable[[str], Path], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, str(make_bundle("bert")), str(data), *flags)


@pytest.mark.usefixtures("no_study")
def test_rationales_that_cannot_be_used_are_refused_before_the_study(
    make_bundle: Callable[[str], Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = write(tmp_path / "r.jsonl.gz", [LINES[0], {"label": 1}])

    said = refused(capsys, "--explanations", str(make_bundle("bert")), str(data), "--rationales", str(broken))

    assert "r.jsonl.gz: line 2: tokens: Field required" in said


def test_options_reach_the_study(
    make_bundle: Callable[[str], Path], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[tuple[object, ...]] = []
    monkeypatch.setattr(explanations, "study", lambda *all_of_them: given.append(all_of_them) or findings())
    bundle = make_bundle("bert")

    assert main(["evaluate", "--explanations", str(bundle), f"x={data}", "--train", str(data), "--train", str(data), "--seed", "3"]) == 0
    few = ["--texts", "9", "--precision", "fp32", "--threads", "2", "--methods", "occlusion,shapley"]
    assert main(["evaluate", "--explanations", str(bundle), f"x={data}", *few]) == 0

    assert given[0][0] == bundle
    assert given[0][2:] == (500, 3, [data, data], None, 0, None, None, [])
    assert given[1][2:] == (9, 20, [], None, 2, "fp32", None, ["occlusion", "shapley"])
    assert "made/dev: 40 of 120 texts" in capsys.readouterr().out
