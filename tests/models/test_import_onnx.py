"""Own ONNX files: a bundle of one, what is refused in words, and answers that depend on batch mates."""

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from optimum.exporters.onnx import main_export

from sentiment.batch_limits import EXACT
from sentiment.errors import BadBundle
from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import load_classifier
from sentiment.model.tokenizer import Row
from sentiment_models.cli import BAD_BUNDLE, DONE, main
from sentiment_models.errors import ModelsError
from sentiment_models.evaluation.metrics import Logits
from sentiment_models.export import examine, import_onnx, verify
from sentiment_models.export.checkpoint import from_pretrained
from sentiment_models.export.folders import new_bundle, temporary_folder
from sentiment_models.export.inference import Graph
from sentiment_models.export.own_graph import OwnGraph, read_own
from sentiment_models.export.verify import Movement, movement
from sentiment_models.reports import card
from tests.conftest import RunningServer
from tests.models.conftest import once
from tests.models.test_extras import without
from tests.models.tiny_families import THREE, TINY, save_tiny
from tests.tiny import read_manifest, write_manifest

TEXTS = ["good", "THE WORST CUSTOMER SERVICE I HAVE EVER SEEN. NEVER AGAIN!!!", "a warm, funny and beautifully acted film", "so so", "?"]


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as optimum exports a tiny RoBERTa, with the same after quantize_dynamic as quantized.onnx."""

    def make(folder: Path) -> Path:
        checkpoint = save_tiny(folder / "checkpoint", TINY["roberta"])
        main_export(str(checkpoint), folder / "own", task="text-classification", do_validation=False)
        # One scale for a batch, as by default, and no reduced range.
        quantize_dynamic(folder / "own/model.onnx", folder / "own/quantized.onnx", weight_type=QuantType.QInt8)
        return folder / "own"

    return once(tmp_path_factory, "own", make)


@pytest.fixture(scope="session")
def imported(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundles of both: plain/1 and quick/1."""

    def make(folder: Path) -> Path:
        for name, file in (("plain", "model.onnx"), ("quick", "quantized.onnx")):
            assert main(["import-onnx", str(own / file), "--output", str(folder / name / "1")]) == DONE
        return folder

    return once(tmp_path_factory, "imported", make)


def _changed(own: Path, tmp_path: Path, change: Callable[[onnx.ModelProto], object]) -> Path:
    """The folder with another graph."""
    folder = Path(shutil.copytree(own, tmp_path / "own"))
    model = onnx.load(folder / "model.onnx")
    change(model)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def _configure(file: Path, **more: str | None) -> None:
    """Add to config.json beside the file."""
    config = file.with_name("config.json")
    config.write_text(json.dumps({**json.loads(config.read_text()), **more}))


def _import(file: Path, *more: str) -> int:
    return main(["import-onnx", str(file), "--output", str(file.parent / "out/mine/1"), *more])


def _lie(imported: Path, tmp_path: Path, invariance: float) -> Path:
    """A copy of quick/1 whose manifest says so."""
    bundle = Path(shutil.copytree(imported / "quick/1", tmp_path / "quick/1"))
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["graphs"]["classify"][0]["invariance"] = invariance
    write_manifest(bundle, manifest)
    return bundle


def test_a_bundle_has_the_file_itself_and_its_own_answers(own: Path, imported: Path) -> None:
    bundle = load_bundle(imported / "plain/1")
    (graph,) = bundle.manifest.graphs.classify

    assert (bundle.path / graph.file).read_bytes() == (own / "model.onnx").read_bytes()
    assert (graph.precision, graph.invariance, bundle.manifest.labels, bundle.manifest.max_tokens) == ("fp32", EXACT, THREE, 64)
    model = from_pretrained(own.parent / "checkpoint").eval()
    classifier = load_classifier(imported / "plain/1")
    for golden in bundle.manifest.golden:
        with torch.no_grad():
            wanted = model(torch.tensor([list(classifier.tokenizer.encode(golden.text, golden.text_pair).ids)])).logits[0].numpy()
        assert np.abs(wanted - golden.logits).max() < 1e-4


def test_an_import_needs_no_torch_and_the_bundle_is_measured_and_described_like_others(own: Path, tmp_path: Path) -> None:
    bundle, data = str(tmp_path / "mine/1"), tmp_path / "data.tsv"
    data.write_text("".join(f"{label}\ta good film {label}\n" for label in THREE * 10))

    found = without(
        ["optimum", "torch", "transformers"],
        ["import-onnx", str(own / "quantized.onnx"), "--output", bundle],
        ["evaluate", bundle, str(data)],
        ["card", bundle],
        ["verify", bundle],
    )

    assert [code for code, _, _ in found] == [0, 0, 0, 0], found
    card = (tmp_path / "mine/1/MODEL_CARD.md").read_text()
    assert "Answers of int8.onnx depend on the other texts of a batch, by up to 0." in card
    assert "Made of the file quantized.onnx (SHA-256 `" in card


def test_how_far_batch_mates_move_answers_is_measured_and_in_the_manifest(imported: Path) -> None:
    manifest = load_bundle(imported / "quick/1").manifest

    assert manifest.graphs.classify[0].precision == "int8"
    assert 1e-3 < manifest.graphs.classify[0].invariance <= 1


def test_what_a_load_measures_is_in_the_manifest_too(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_onnx, "movement", lambda graph, rows, *_, **__: Movement(len(rows), 0.0, 0))

    assert main(["import-onnx", str(own / "quantized.onnx"), "--output", str(tmp_path / "mine/1")]) == DONE

    assert load_classifier(tmp_path / "mine/1", inexact="batch").graph.invariance > 1e-3


def test_texts_of_an_inexact_model_run_alone_by_default_so_batch_mates_change_no_bit(imported: Path) -> None:
    alone, batched = (load_classifier(imported / "quick/1", inexact=how) for how in ("alone", "batch"))
    rows = [alone.tokenizer.encode(text) for text in TEXTS]
    singles = [alone.run([row])[0] for row in rows]

    assert alone.run(rows) == singles
    assert alone.graph.invariance == 0
    # Without that they differ, or the test would show nothing.
    assert batched.run([rows[0]])[0] == singles[0]
    assert np.abs(np.subtract(batched.run(rows), singles)).max() > 1e-3
    assert batched.graph.invariance > EXACT


def test_the_setting_refuses_an_inexact_model_and_takes_an_exact_one(imported: Path) -> None:
    with pytest.raises(BadBundle, match=r"int8\.onnx: batch mates may change a probability by .*; inexact_models = refuse"):
        load_classifier(imported / "quick/1", inexact="refuse")

    assert load_classifier(imported / "plain/1", inexact="refuse").graph.invariance == EXACT


def test_a_manifest_that_claims_more_than_is_measured_is_refused_with_both_numbers(imported: Path, tmp_path: Path) -> None:
    bundle = _lie(imported, tmp_path, 1e-4)

    with pytest.raises(BadBundle, match=r"batch mates change a probability by 0\.\d+; the manifest says by 0\.0001 at most"):
        load_classifier(bundle)


def test_verify_checks_an_imported_bundle_without_weights(imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(imported / "quick/1")]) == DONE
    assert "weights: none to compare with" in capsys.readouterr().out

    assert main(["verify", str(_lie(imported, tmp_path, 1e-4))]) == BAD_BUNDLE
    assert "int8.onnx batch mates" in capsys.readouterr().out


def test_verify_fails_a_bundle_that_batch_mates_move_further_than_was_recorded(imported: Path, tmp_path: Path) -> None:
    recorded = load_bundle(imported / "quick/1").manifest.graphs.classify[0].invariance
    # The manifest has 1.5 times what was measured.
    bundle = _lie(imported, tmp_path, recorded / 2)

    assert "int8.onnx batch mates" in [check.name for check in examine.examine(bundle) if check.good is False]


def test_verify_measures_batches_that_the_import_measured(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may move a sound graph's answers further than its manifest says."""
    ran: list[list[tuple[int, ...]]] = []

    def note(graph: Graph, rows: Sequence[Row], *given: Any, **more: Any) -> Movement:
        ran.append([tuple(row.ids) for row in rows])
        return movement(graph, rows, *given, **more)

    for module in (import_onnx, examine):
        monkeypatch.setattr(module, "movement", note)
    dev = tmp_path / "dev.tsv"
    dev.write_text("".join(f"{label}\ta good film {label}\n" for label in THREE * 10))
    assert main(["import-onnx", str(own / "quantized.onnx"), "--output", str(tmp_path / "mine/1"), "--dev", str(dev)]) == DONE
    measured, ran = ran, []
    assert all(check.good is not False for check in examine.examine(tmp_path / "mine/1"))

    assert ran
    assert all(rows in measured for rows in ran)


def test_verify_knows_that_positions_begin_behind_the_paddings(imported: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(imported / "plain/1", tmp_path / "plain/1"))
    write_manifest(bundle, {**read_manifest(bundle), "max_tokens": 65})

    (failed,) = [check for check in examine.examine(bundle) if check.name == "configuration"]

    assert failed.found == "max_position_embeddings is 66, so the model reads 64 tokens, but max_tokens of the manifest is 65"


@pytest.mark.parametrize("how", ["alone", "batch"])
def test_a_server_answers_from_an_own_file_and_says_how_exact_it_is(imported: Path, start: Callable[..., RunningServer], how: str) -> None:
    server = start(bundles=(imported,), model="quick", inexact_models=how)
    classifier = load_classifier(imported / "quick/1")
    with server.client(timeout_s=30) as client:
        answers = client.classify_batch(TEXTS)
        (model,) = client.list_models().models

    wanted = [classifier.score(classifier.run([classifier.tokenizer.encode(text)])[0]) for text in TEXTS]
    apart = max(
        abs(one.score - other.scores[classifier.manifest.labels.index(one.label)]) for one, other in zip(answers, wanted, strict=True)
    )
    assert apart <= (1e-6 if how == "alone" else 1)
    assert (model.classify_graph.invariance > EXACT) == (how == "batch")


def _fixed(model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, (1, 64), strict=True):
            dim.dim_value = size


def _rename(model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        value.name = value.name.replace("input_ids", "ids")
    for node in model.graph.node:
        node.input[:] = [name.replace("input_ids", "ids") if name == "input_ids" else name for name in node.input]


def _typed(kind: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.input[1].type.tensor_type.elem_type = kind

    return change


def _shares(kind: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node.append(helper.make_node(kind, ["logits"], ["shares"]))
        model.graph.output[0].name = "shares"

    return change


def _random(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("RandomNormalLike", ["logits"], ["noise"]))
    model.graph.node.append(helper.make_node("Add", ["logits", "noise"], ["noisy"]))
    model.graph.output[0].name = "noisy"


def _second(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "answers"
    model.graph.node.extend(helper.make_node("Identity", ["logits"], [name]) for name in ("answers", "other"))
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, ["batch", 3]))


def _states(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Unsqueeze", ["logits", "one"], ["states"]))
    model.graph.initializer.append(helper.make_tensor("one", TensorProto.INT64, [1], [1]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "sequence", 3]))


def _foreign(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Odd", ["logits"], ["odd"], domain="some.where"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_fixed, "input input_ids must be [rows, tokens] of any number, got INT64 [1, 64]: export it with dynamic axes"),
        (_rename, "has inputs ids; the service feeds input_ids, attention_mask, token_type_ids alone"),
        (_typed(TensorProto.FLOAT), "input attention_mask must be INT64 or INT32, got FLOAT"),
        (_shares("Softmax"), "gives probabilities, all from 0 to 1, and not logits; remove its last node, Softmax or Sigmoid"),
        (_shares("Sigmoid"), "gives probabilities, all from 0 to 1, and not logits; remove its last node, Softmax or Sigmoid"),
        (_random, "answers the same text differently from run to run, by "),
        (_second, "must have one output, or one named logits, got answers, other"),
        (_states, "this is an encoder without a classification head"),
        (_foreign, "1 operators of the domain 'some.where', such as Odd"),
        (lambda model: setattr(model, "ir_version", 99), "install a newer onnxruntime"),
        (lambda model: setattr(model.opset_import[0], "version", 99), "install a newer onnxruntime"),
        (lambda model: model.graph.ClearField("node"), "not an ONNX file"),
    ],
)
def test_a_file_that_cannot_be_served_is_refused_in_words(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[onnx.ModelProto], object], says: str
) -> None:
    file = _changed(own, tmp_path, change)

    assert _import(file) == 1
    assert says in capsys.readouterr().err
    assert not (file.parent / "out/mine/1").exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--labels", "negative,positive"), "gives 3 logits a row, but 2 labels are named: negative,positive"),
        (("--max-tokens", "66"), "max_tokens must be from 8 to 64, got 66 (limited by the positions of config.json)"),
        (("--tokenizer", "/nowhere"), "/nowhere/config.json: no such file, so name the labels in the order of the logits"),
        (("--tokenizer", "/nowhere", "--labels", "a,b,c"), "/nowhere/tokenizer.json: no such file; name its folder with --tokenizer"),
    ],
)
def test_what_the_file_does_not_fit_is_refused(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], says: str
) -> None:
    file = _changed(own, tmp_path, lambda _: None)

    assert _import(file, *more) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ((), "own: nothing here says how many tokens the model reads; add --max-tokens N"),
        (("--max-tokens", "66"), "cannot run 1 row of up to 66 tokens: give --max-tokens N, fewer than 66"),
        (("--max-tokens", "8193"), "max_tokens must be from 8 to 8192, got 8193 (limited by the service)"),
    ],
)
def test_without_a_limit_in_its_files_the_user_says_how_many_tokens_a_model_reads_and_too_many_are_found(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], says: str
) -> None:
    file = _changed(own, tmp_path, lambda _: None)
    _configure(file, max_position_embeddings=None)

    assert _import(file, *more) == 1
    assert says in capsys.readouterr().err


def _as_int32(model: onnx.ModelProto) -> None:
    """As files whose inputs are int32 are: all of them, cast inside."""
    for value in model.graph.input:
        value.type.tensor_type.elem_type = TensorProto.INT32
    casts = [helper.make_node("Cast", [value.name], [f"{value.name}64"], to=TensorProto.INT64) for value in model.graph.input]
    names = {value.name: f"{value.name}64" for value in model.graph.input}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for place, cast in enumerate(casts):
        model.graph.node.insert(place, cast)


def _and_states(model: onnx.ModelProto) -> None:
    model.graph.output.insert(0, helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["batch", 3]))
    model.graph.node.append(helper.make_node("Identity", ["logits"], ["hidden"]))


@pytest.mark.parametrize(
    ("change", "says"), [(_as_int32, "input_ids, attention_mask in int64"), (_and_states, "without the outputs hidden")]
)
def test_simple_oddities_are_mended_and_the_answers_stay(
    own: Path, imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[onnx.ModelProto], object], says: str
) -> None:
    file = _changed(own, tmp_path, change)

    assert _import(file) == DONE

    assert f"changed: {says}" in capsys.readouterr().out
    plain, mended = (load_classifier(path) for path in (imported / "plain/1", file.parent / "out/mine/1"))
    rows = [plain.tokenizer.encode(text) for text in TEXTS]
    assert np.abs(np.subtract(plain.run(rows), mended.run(rows))).max() < 1e-5


@pytest.mark.parametrize("more", [(), ("--labels", "bad,so-so,good")])
def test_a_model_of_several_labels_a_text_is_refused_with_given_labels_too(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    file = _changed(own, tmp_path, lambda _: None)
    _configure(file, problem_type="multi_label_classification")

    assert _import(file, *more) == 1
    assert "config.json: problem_type is multi_label_classification" in capsys.readouterr().err


def test_the_makers_path_stays_with_the_maker(own: Path, tmp_path: Path) -> None:
    file = _changed(own, tmp_path, lambda _: None)
    _configure(file, _name_or_path="/home/maker/best")

    assert _import(file) == DONE
    assert "/home/maker" not in (file.parent / "out/mine/1/config.json").read_text()


def test_only_one_long_row_runs_at_a_time_and_the_command_names_its_memory_before(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs: list[int] = []
    run = Graph.logits

    def note(graph: Graph, rows: Sequence[Row], length: int = 0) -> Logits:
        # Only the check of shapes runs two.
        if len(rows) == 2:
            pairs.append(max(row.tokens for row in rows))
        return run(graph, rows, length)

    monkeypatch.setattr(Graph, "logits", note)
    monkeypatch.setattr(import_onnx, "movement", lambda _, rows, *__, **___: Movement(len(rows), 0.0, 0))
    monkeypatch.setattr(import_onnx, "COMPARED_TOKENS_MAX", 16)
    monkeypatch.setattr(verify, "ATTENTION_GIB_TOLD", 0)

    assert main(["import-onnx", str(own / "model.onnx"), "--output", str(tmp_path / "mine/1")]) == DONE

    assert pairs == [16]
    assert "a text may have 64 tokens. A server runs one of that length when it starts" in capsys.readouterr().err


def test_too_few_texts_calibrate_nothing_and_the_command_says_so_and_how_to_serve(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = tmp_path / "dev.tsv"
    dev.write_text("".join(f"{label}\ta good film {label}\n" for label in THREE * 3))

    assert main(["import-onnx", str(own / "model.onnx"), "--output", str(tmp_path / "all/mine/1"), "--dev", str(dev)]) == DONE

    said = capsys.readouterr().out
    assert "not calibrated, and no answer is undecided; calibrate with --dev FILE, of 20 labelled texts or more" in said
    assert said.endswith(f"serve it: sentiment serve --bundles {tmp_path / 'all'} --model mine\n")


def test_a_bundle_that_was_made_meanwhile_is_not_replaced(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "mine/1"

    def meanwhile(file: Path) -> OwnGraph:
        bundle.mkdir(parents=True)
        return read_own(file)

    monkeypatch.setattr(import_onnx, "read_own", meanwhile)

    assert main(["import-onnx", str(own / "model.onnx"), "--output", str(bundle)]) == 1
    assert "mine/1: exists; use --overwrite to replace it" in capsys.readouterr().err
    assert [path.name for path in bundle.parent.iterdir()] == ["1"]


def test_a_full_disk_is_named_whatever_library_finds_it(tmp_path: Path) -> None:
    with pytest.raises(ModelsError, match=r"1\.part or .*: cannot be written: No space left"), new_bundle(tmp_path / "1", force=False):
        raise Exception("No space left on device (os error 28)")

    assert list(tmp_path.iterdir()) == []


def test_the_tables_of_a_bundle_say_what_it_is_made_of(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["card", str(imported / "quick/1"), "--tables"]) == DONE

    said = capsys.readouterr().out
    assert "Made of the file quantized.onnx (SHA-256 " in said
    assert "The graph is the file's own; changed: nothing." in said
    assert "Embeddings" not in said
    assert "None" not in said


def test_external_data_are_taken_along_and_missing_ones_are_named(
    own: Path, imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(own, tmp_path / "own"))
    onnx.save(onnx.load(own / "model.onnx"), folder / "model.onnx", save_as_external_data=True, location="model.onnx_data")

    assert _import(folder / "model.onnx") == DONE

    plain, beside = (load_classifier(path) for path in (imported / "plain/1", folder / "out/mine/1"))
    assert "weights.data" in read_manifest(folder / "out/mine/1")["files"]  # type: ignore[operator]  # plain JSON
    row = plain.tokenizer.encode(TEXTS[1])
    assert plain.run([row]) == beside.run([row])
    assert len({file.stat().st_mode for file in (folder / "out/mine/1").iterdir()}) == 1
    assert main(["card", str(folder / "out/mine/1"), "--tables"]) == DONE
    assert "Its weights are in weights.data (" in capsys.readouterr().out

    (folder / "model.onnx_data").unlink()
    assert _import(folder / "model.onnx", "--overwrite") == 1
    assert "stands in 'model.onnx_data', which is not there" in capsys.readouterr().err


def test_an_own_file_keeps_its_licence_and_note_and_counts_texts_for_drift(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, texts = _changed(own, tmp_path, lambda _: None), tmp_path / "texts.txt"
    (file.parent / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    texts.write_text("\n".join(TEXTS))

    assert _import(file, "--note", "For reviews.", "--texts", str(texts)) == DONE

    assert "licence: mit (README.md)" in capsys.readouterr().err.splitlines()
    bundle = load_bundle(file.parent / "out/mine/1")
    assert bundle.manifest.references["training"].texts == len(TEXTS)
    origin = read_manifest(bundle.path)["provenance"]["origin"]  # type: ignore[index]  # plain JSON
    assert (origin["file"], origin["licence"], origin["note"]) == ("model.onnx", "mit", "For reviews.")
    for text in ("imported from `model.onnx`", "For reviews.", "by its own card: mit.", "Made of the file model.onnx (SHA-256 `"):
        assert text in bundle.card
    assert main(["verify", str(bundle.path)]) == DONE


def test_the_licence_stands_beside_the_file_or_else_beside_its_tokenizer(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _changed(own, tmp_path, lambda _: None)
    inner = file.parent / "onnx" / "model.onnx"
    inner.parent.mkdir()
    file.rename(inner)
    (file.parent / "README.md").write_text("---\nlicense: mit\n---\n")

    assert _import(inner, "--tokenizer", str(file.parent)) == DONE

    assert "by its own card: mit." in load_bundle(inner.parent / "out/mine/1").card


def test_texts_that_cannot_be_read_leave_no_bundle(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _changed(own, tmp_path, lambda _: None)

    assert _import(file, "--texts", str(tmp_path / "none.txt")) == 1

    assert "none.txt: " in capsys.readouterr().err
    assert not (file.parent / "out").exists()


@pytest.mark.parametrize("command", ["import-onnx", "import"])
@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("my model", (), "--output {out}: a bundle's name, and its folder's above that of the version, must match ^[a-z0-9]"),
        ("UPPER", (), "got 'UPPER'"),
        ("größe", (), "got 'größe'"),
        ("new\nline", (), "got 'new\\nline'"),
        ("n" * 200, (), "must match ^[a-z0-9]"),
        ("n" * 300, (), "must match ^[a-z0-9]"),
        ("mine", ("--name", "UPPER"), "--name: a bundle's name"),
        ("n" * 300 + "/mine", (), "/mine/1: cannot be made: File name too long"),
    ],
)
def test_names_that_no_server_takes_are_refused_before_any_work(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str, more: tuple[str, ...], says: str
) -> None:
    model = own / "model.onnx" if command == "import-onnx" else own.parent / "checkpoint"
    out = tmp_path / name / "1"

    assert main([command, str(model), "--output", str(out), *more]) == 1

    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert says.format(out=out) in said
    assert "manifest.json" not in said
    assert list(tmp_path.iterdir()) == []


BAD_LABELS = [
    (("good\nbad", "so-so", "bad"), "must be of 1 to 200 printable characters, without a space at an end, got 'good\\nbad'"),
    (("\x1b[31mgood", "so-so", "bad"), "must be of 1 to 200 printable characters, without a space at an end, got '\\x1b[31mgood'"),
    (("g" * 201, "so-so", "bad"), "must be of 1 to 200 printable characters"),
    (("good", "good", "bad"), "labels must differ, got good twice"),
]


@pytest.mark.parametrize("command", ["import-onnx", "import"])
@pytest.mark.parametrize(("labels", "says"), [*BAD_LABELS, (("", "so-so", "bad"), "id2label must name two or more labels")])
def test_labels_of_a_config_that_no_manifest_holds_are_refused_before_any_work(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, labels: tuple[str, ...], says: str
) -> None:
    folder = Path(shutil.copytree(own if command == "import-onnx" else own.parent / "checkpoint", tmp_path / "own"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "id2label": dict(enumerate(labels))}))
    model = folder / "model.onnx" if command == "import-onnx" else folder

    assert main([command, str(model), "--output", str(tmp_path / "mine/1")]) == 1

    said = capsys.readouterr().err
    assert "config.json: id2label" in said
    assert says in said
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(("labels", "says"), [*BAD_LABELS, (("", "so-so", "bad"), "labels must have a name each")])
def test_given_labels_that_no_manifest_holds_are_refused_before_any_work(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], labels: tuple[str, ...], says: str
) -> None:
    given = ",".join(f'"{label}"' for label in labels)

    assert main(["import-onnx", str(own / "model.onnx"), "--labels", given, "--output", str(tmp_path / "mine/1")]) == 2

    said = capsys.readouterr().err
    assert "argument --labels: " in said
    assert says in said
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("name", "says"), [("nope.onnx", "nope.onnx: no such file"), (".", "is a folder; name one of its ONNX files (none)")]
)
def test_a_file_that_is_not_there_is_named_before_its_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    assert main(["import-onnx", str(tmp_path / name), "--output", str(tmp_path / "mine/1")]) == 1

    said = capsys.readouterr().err
    assert says in said
    assert "config.json" not in said


@pytest.mark.parametrize("command", ["import-onnx", "import"])
def test_a_folder_that_is_not_a_bundle_is_not_replaced(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    model = own / "model.onnx" if command == "import-onnx" else own.parent / "checkpoint"
    kept = tmp_path / "mine/1/thesis.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")

    assert main([command, str(model), "--output", str(kept.parent), "--overwrite"]) == 1

    assert "mine/1: exists and is not a bundle (it has no manifest.json), so --overwrite does not replace it" in capsys.readouterr().err
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("command", ["import-onnx", "import"])
def test_a_disk_that_is_full_when_the_card_is_written_leaves_nothing(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    def fill(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(card, "replace_file", fill)
    model = own / "model.onnx" if command == "import-onnx" else own.parent / "checkpoint"

    assert main([command, str(model), "--output", str(tmp_path / "mine/1")]) == 1

    assert "MODEL_CARD.md: cannot be written: No space left on device; make room" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_again_while_a_folder_is_removed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink, folder, sent = os.unlink, tmp_path / "mine/1.part", []

    def again(*given: Any, **more: Any) -> None:
        unlink(*given, **more)
        if not sent:
            sent.append(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(os, "unlink", again)

    with pytest.raises(KeyboardInterrupt), temporary_folder(folder):
        (folder / "fp32.onnx").write_bytes(b"")
        raise KeyboardInterrupt

    assert sent
    assert list(tmp_path.iterdir()) == []
