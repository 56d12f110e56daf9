"""``sentiment-models effort``: the rule is set on one half of the texts, and its bound is proved on the other."""

import random
from pathlib import Path

import pytest

from sentiment.model.classifier import load_classifier
from sentiment.model.effort import EffortSpec
from sentiment_models.cli import main
from sentiment_models.evaluation.effort import upper_bound
from tests.tiny import WEIGHTS, make_bundle, read_manifest, write_manifest

PART = ["--head", "4", "--tail", "4", "--from", "14"]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Texts whose ends say little of a third of them."""
    rng = random.Random(1)
    words = sorted(WEIGHTS)
    pools = [words, [word for word in words if WEIGHTS[word] > 0], [word for word in words if WEIGHTS[word] < 0]]
    lines = {" ".join(rng.choices(rng.choice(pools), k=rng.randint(3, 28))) for _ in range(4000)}
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(sorted(lines)) + "\n")
    return path


def measured(bundle: Path, *argv: str) -> EffortSpec:
    out = bundle / "../effort.json"
    assert main(["effort", str(bundle), *argv, *PART, "--json", str(out)]) == 0
    return EffortSpec.model_validate_json(out.read_bytes())


def test_the_rule_is_what_its_proof_says(bundle: Path, texts: Path) -> None:
    found = measured(bundle, f"made-up={texts}", "--differ", "0.003", "--record")

    (one,) = found.proven.values()
    classifier = load_classifier(bundle)
    assert classifier.manifest.effort == found
    lines = texts.read_text().splitlines()
    rows = classifier.tokenizer.encode_many(lines)
    early = [row for row in rows if (part := classifier.part_of(row)) is not None and classifier.suffices(classifier.run([part])[0])]
    differ = 0
    for row in early:
        part = classifier.part_of(row)
        assert part is not None
        whole, first = (classifier.score(classifier.run([one])[0]) for one in (row, part))
        differ += (whole.label, whole.abstain, whole.mixed) != (first.label, first.abstain, first.mixed)
    # Of both halves; those of the second are the proof's.
    assert 0 < one.early < len(early) < len(lines)
    assert one.texts == len(lines) - len(lines) // 2
    assert differ - 0.003 * (len(lines) // 2) <= one.differ <= differ
    assert upper_bound(one.differ, one.texts) <= one.bound < upper_bound(one.differ, one.texts) + 1e-5


def test_a_stricter_rule_reads_more(bundle: Path, texts: Path) -> None:
    strict, loose = (measured(bundle, f"made-up={texts}", "--differ", share) for share in ("0", "0.1"))

    assert strict.log_odds > loose.log_odds
    assert strict.proven["made-up"].cost > loose.proven["made-up"].cost
    assert strict.proven["made-up"].early < loose.proven["made-up"].early


def test_each_domain_holds_the_rule(bundle: Path, texts: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("good\nbad\ngreat film\n")

    found = measured(bundle, f"long={texts}", f"short={short}")

    assert list(found.proven) == ["long", "short"]
    assert (found.proven["short"].early, found.proven["short"].cost) == (0, 1.0)


def test_the_rule_may_be_proved_on_other_texts(bundle: Path, texts: Path, tmp_path: Path) -> None:
    lines = texts.read_text().splitlines()
    setting, proof = tmp_path / "setting.txt", tmp_path / "proof.txt"
    setting.write_text("\n".join(lines[:3000]) + "\n")
    # What set the rule proves nothing.
    proof.write_text("\n".join(lines[2900:]) + "\n")

    found = measured(bundle, f"made-up={setting}", "--proof", f"made-up={proof}", "--differ", "0.02")

    assert found.proven["made-up"].texts == len(lines) - 3000
    assert found.log_odds != measured(bundle, f"made-up={setting}", "--differ", "0.02").log_odds
    assert main(["effort", str(bundle), f"made-up={setting}", "--proof", f"other={proof}", *PART]) == 1


def test_no_text_sets_the_rule_in_one_domain_and_proves_it_in_another(bundle: Path, texts: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.txt"
    fresh.write_text("good\nbad\n")

    # All texts of the first set the rule.
    assert main(["effort", str(bundle), f"one={texts}", f"other={texts}", "--proof", f"one={fresh}", *PART]) == 1


def test_what_is_not_read_in_one_row_is_read_in_full(bundle: Path, texts: Path) -> None:
    long = texts.with_name("long.txt")
    long.write_text("\n".join(f"{line} {line} {line} {line}" for line in texts.read_text().splitlines() if len(line.split()) > 20) + "\n")
    write_manifest(bundle, read_manifest(bundle) | {"default_truncation": "windows"})

    found = measured(bundle, f"short={texts}", f"long={long}")

    assert found.proven["long"].early == 0 < found.proven["short"].early
    assert found.proven["long"].cost == 1.0


@pytest.mark.parametrize("differ", ["1", "nan", "-1", "some"])
def test_a_rule_that_is_not_proved_is_not_recorded(differ: str, bundle: Path, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_manifest(bundle)

    assert main(["effort", str(bundle), f"made-up={texts}", "--differ", differ, "--record", *PART]) != 0

    assert read_manifest(bundle) == before
    assert "above 1%: not recorded" in capsys.readouterr().err or differ != "1"


def test_too_few_texts_for_any_proof_are_named(bundle: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = tmp_path / "few.txt"
    few.write_text("".join(texts.read_text().splitlines(keepends=True)[:500]))

    assert main(["effort", str(bundle), f"made-up={few}", "--differ", "0", "--record", *PART]) != 0

    assert "250 texts prove it, and it takes at least 299" in capsys.readouterr().err


def test_a_rule_that_saves_nothing_is_not_recorded(bundle: Path, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_manifest(bundle)

    part = ["--head", "12", "--tail", "12", "--from", "25"]
    assert main(["effort", str(bundle), f"made-up={texts}", "--differ", "0", "--record", *part]) != 0

    assert read_manifest(bundle) == before
    assert "computes no fewer tokens than full readings: not recorded" in capsys.readouterr().err


def test_other_ways_of_reading_long_texts_end_a_rule(bundle: Path, texts: Path, tmp_path: Path) -> None:
    labelled = tmp_path / "labelled.tsv"
    labelled.write_text("".join(f"positive\tgood {line} {line}\n" for line in texts.read_text().splitlines()[:200]))
    measured(bundle, f"made-up={texts}", "--differ", "0.001", "--record")

    assert main(["long-texts", str(bundle), str(labelled), "--record"]) == 0

    assert "effort" not in read_manifest(bundle)


def test_a_rule_is_removed(bundle: Path, texts: Path) -> None:
    before = read_manifest(bundle)
    measured(bundle, f"made-up={texts}", "--differ", "0.001", "--record")
    assert "effort" in read_manifest(bundle)

    assert main(["effort", str(bundle), "--remove"]) == 0

    assert {**read_manifest(bundle), "provenance": None} == {**before, "provenance": None}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "give DOMAIN=FILE, or --remove alone"),
        (["a b=FILE", "made-up =FILE"], "must be DOMAIN=FILE, got"),
        (["made-up=FILE"], "made-up: has 0 texts to set the rule and 1 others to prove it; give more"),
        (["FILE"], "must be DOMAIN=FILE, got"),
        (["made-up=FILE", "--from", "12"], "effort.tokens_min must be more than the 96 tokens of head and tail"),
    ],
)
def test_what_cannot_be_is_refused(argv: list[str], said: str, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.txt"
    file.write_text("good\n")

    assert main(["effort", str(bundle), *(one.replace("FILE", str(file)) for one in argv), *([] if "--from" in argv else PART)]) != 0

    assert said in capsys.readouterr().err


def test_the_bound_is_the_exact_binomial_one() -> None:
    # Where none was seen, (1 - bound) ** texts is 5 %.
    assert upper_bound(0, 300) == pytest.approx(1 - 0.05 ** (1 / 300))
    assert upper_bound(8, 1500) < 0.01 < upper_bound(9, 1500)
    assert upper_bound(3, 3) == 1.0
    assert upper_bound(0, 1) == pytest.approx(0.95)
