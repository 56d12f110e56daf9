"""Records are of the code that made them, and no more than that."""

import shutil
from pathlib import Path

import pytest

from sentiment_models.explanations import sources
from sentiment_models.explanations.sources import FOLDER, OF_RATIONALES, OF_STUDY, OF_TRAINING, code_of

# Lay out, or put together, what has been kept.
TELLING = {
    *("__init__", "aggregate", "journal", "page", "pictures", "record", "sources"),
    *("tables", "conclusions", "training_findings", "training_page", "attention_tables"),
}
# Of the study: these, and all but the tests of attention.
STUDY = {
    *("__init__", "documents", "experiment", "experiment_page", "language_model", "masking", "pretrain", "recipes", "resize"),
    "tensorflow_bert",
}


def test_every_module_either_makes_records_or_reports_them() -> None:
    making = {*OF_STUDY, *OF_RATIONALES, *OF_TRAINING}

    telling = {*(f"explanations/{name}" for name in TELLING), *(f"study/{name}" for name in STUDY)}

    assert not making & telling
    there = [*(FOLDER / "explanations").glob("*.py"), *(FOLDER / "study").glob("*.py")]
    assert making | telling == {f"{path.parent.name}/{path.stem}" for path in there}


def test_only_modules_that_make_records_change_the_code_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Path(shutil.copytree(FOLDER, tmp_path / "sentiment_models"))
    monkeypatch.setattr(sources, "FOLDER", copy)
    kinds = (OF_STUDY, OF_RATIONALES, OF_TRAINING)
    before = [code_of(kind) for kind in kinds]

    def changed(name: str) -> list[bool]:
        path = copy / f"{name}.py"
        kept = path.read_bytes()
        path.write_bytes(kept + b"# another\n")
        after = [code_of(kind) for kind in kinds]
        path.write_bytes(kept)
        return [one != other for one, other in zip(before, after, strict=True)]

    assert changed("explanations/conclusions") == [False, False, False]
    assert changed("explanations/measures") == [True, False, False]
    assert changed("explanations/rankings") == [True, True, False]
    assert changed("study/bag") == [False, False, True]


def test_the_services_code_of_explanations_is_part_of_the_code_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_of(OF_STUDY), code_of(OF_TRAINING)
    other = tmp_path / "explain"
    shutil.copytree(Path(str(sources.explain.__file__)).parent, other)
    (other / "evidence.py").write_text("TIE = 1\n")

    monkeypatch.setattr(sources.explain, "__file__", str(other / "__init__.py"))

    assert code_of(OF_STUDY) != before[0]
    assert code_of(OF_TRAINING) == before[1]
