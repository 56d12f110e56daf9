"""Bundles: which one is found, the error of each kind of damage, and which graph is served."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sentiment.errors import BadBundle
from sentiment.model.bundle import (
    CARD_BYTES_MAX,
    CONFIG_BYTES_MAX,
    MANIFEST_BYTES_MAX,
    Calibration,
    bundle_roots,
    find_bundle,
    load_bundle,
)
from sentiment.model.check import check_bundle
from sentiment.model.classifier import load_classifier
from tests.tiny import LABELS, make_bundle, make_graph, read_manifest, write_manifest

Manifest = dict[str, Any]  # plain JSON


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A good bundle, which a test may damage."""
    return make_bundle(tmp_path)


def rewrite(path: Path, change: Callable[[Manifest], object]) -> None:
    """Change the manifest and nothing else."""
    manifest: Manifest = read_manifest(path)
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def add_graph(path: Path, graph: onnx.ModelProto, precision: str = "int8", first: bool = True) -> None:
    """Put a graph into the bundle before, or after, those that it has."""
    onnx.save(graph, path / f"{precision}.onnx")
    manifest: Manifest = read_manifest(path)
    graphs = manifest["graphs"]["classify"]
    graphs.insert(0 if first else len(graphs), {**graphs[0], "file": f"{precision}.onnx", "precision": precision})
    write_manifest(path, manifest)


def only_graph(path: Path, graph: onnx.ModelProto) -> None:
    """Replace the bundle's graph by another."""
    onnx.save(graph, path / "fp32.onnx")
    write_manifest(path, read_manifest(path))


def changed_graph(change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]], width: int = 2) -> onnx.ModelProto:
    """The tiny graph with another table of weights [tokens, labels]."""
    graph = make_graph()
    table = graph.graph.initializer[0]
    table.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(table)).astype(np.float32), "table"))
    graph.graph.output[0].type.tensor_type.shape.dim[1].dim_value = width
    return graph


def one_number_a_row() -> onnx.ModelProto:
    graph = make_graph()
    graph.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.array([1, 2], np.int64), "axes"))
    del graph.graph.output[0].type.tensor_type.shape.dim[1]
    return graph


def with_input(name: str) -> onnx.ModelProto:
    graph = make_graph()
    graph.graph.input[0].name = name
    graph.graph.node[0].input[1] = name
    return graph


def why_not(path: Path, load: Callable[[Path], object] = load_bundle) -> str:
    with pytest.raises(BadBundle) as caught:
        load(path)
    return str(caught.value)


def test_a_good_bundle_knows_its_name_heads_and_card(bundle: Path) -> None:
    loaded = load_bundle(bundle)

    assert (loaded.id, loaded.attention_heads, loaded.card) == ("tiny/1", 2, "# Tiny\n")


def test_two_bundles_have_different_digests(tmp_path: Path) -> None:
    first, second = (load_bundle(make_bundle(tmp_path, version=version)).digest for version in (1, 2))

    assert re.fullmatch("[0-9a-f]{64}", first)
    assert first != second


def test_without_a_config_the_number_of_heads_is_the_largest_usual_one(bundle: Path) -> None:
    (bundle / "config.json").write_text("{}")
    write_manifest(bundle, read_manifest(bundle))
    assert load_bundle(bundle).attention_heads == 16

    (bundle / "config.json").unlink()
    write_manifest(bundle, read_manifest(bundle))
    assert load_bundle(bundle).attention_heads == 16


def test_a_config_that_no_manifest_lists_is_not_read(bundle: Path) -> None:
    rewrite(bundle, lambda manifest: manifest["files"].pop("config.json"))
    (bundle / "config.json").write_text("[" * 200_000)

    assert load_bundle(bundle).attention_heads == 16


@pytest.mark.parametrize("content", [b"not JSON", b"[]", b"\xff{}", b"[" * 200_000, b'{"a":' * 200_000, b" " * (CONFIG_BYTES_MAX + 1)])
def test_a_config_that_is_not_a_json_object_is_an_error(bundle: Path, content: bytes) -> None:
    (bundle / "config.json").write_bytes(content)
    write_manifest(bundle, read_manifest(bundle))

    assert why_not(bundle).startswith(f"{bundle}/config.json: ")


def test_the_card_is_read_when_the_bundle_is_loaded(bundle: Path) -> None:
    loaded = load_bundle(bundle)
    (bundle / "MODEL_CARD.md").write_text("another")

    assert loaded.card == "# Tiny\n"


def list_card(path: Path) -> None:
    """Make the card one of the manifest's files, as ``sentiment-models card`` does."""
    content = (path / "MODEL_CARD.md").read_bytes()
    spec = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    rewrite(path, lambda manifest: manifest["files"].update({"MODEL_CARD.md": spec}))


def test_a_card_that_the_manifest_lists_must_be_the_one_that_it_lists(bundle: Path) -> None:
    list_card(bundle)
    assert load_bundle(bundle).card == "# Tiny\n"
    (bundle / "MODEL_CARD.md").write_text("# Tony\n")
    assert "MODEL_CARD.md: SHA-256 is" in why_not(bundle)
    (bundle / "MODEL_CARD.md").unlink()

    assert why_not(bundle) == f"{bundle}/MODEL_CARD.md: No such file or directory"


@pytest.mark.parametrize("listed", [True, False])
def test_a_card_that_is_too_long_or_no_text_is_an_error(bundle: Path, listed: bool) -> None:
    for content, says in ((b"#" * (CARD_BYTES_MAX + 1), f"the limit is {CARD_BYTES_MAX}"), (b"\xff", "not UTF-8")):
        (bundle / "MODEL_CARD.md").write_bytes(content)
        if listed:
            list_card(bundle)
        assert why_not(bundle).startswith(f"{bundle}/MODEL_CARD.md: ")
        assert says in why_not(bundle)


FILES = ["MODEL_CARD.md", "config.json", "fp32.onnx", "manifest.json", "tokenizer.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("relative", [True, False])
def test_a_link_out_of_the_folder_is_not_followed_whatever_it_leads_to(bundle: Path, name: str, relative: bool) -> None:
    secret = bundle.parent / "secret"
    # With the right content: not even its hash is revealed.
    (bundle / name).rename(secret)
    (bundle / name).symlink_to(Path("..", "secret") if relative else secret)

    assert why_not(bundle) == f"{bundle / name}: is a link to {secret}, which is outside of the bundle's folder"


def test_a_link_by_way_of_another_folder_is_not_followed(bundle: Path) -> None:
    (bundle.parent / "elsewhere").mkdir()
    (bundle / "MODEL_CARD.md").rename(bundle.parent / "elsewhere" / "MODEL_CARD.md")
    (bundle / "data").symlink_to(bundle.parent / "elsewhere")
    (bundle / "MODEL_CARD.md").symlink_to("data/MODEL_CARD.md")

    assert "is outside of the bundle's folder" in why_not(bundle)


@pytest.mark.parametrize("name", FILES)
def test_a_bundle_entry_that_is_not_a_file_is_an_error_at_once(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    os.mkfifo(bundle / name)
    assert why_not(bundle) == f"{bundle / name}: is not a regular file"
    (bundle / name).unlink()
    (bundle / name).mkdir()
    assert why_not(bundle) == f"{bundle / name}: is not a regular file"
    (bundle / name).rmdir()
    (bundle / name).symlink_to(name)

    assert why_not(bundle) == f"{bundle / name}: Too many levels of symbolic links"


@pytest.mark.parametrize(("mount", "inside"), [("tiny/1", "."), ("tiny", "1"), (".", "tiny/1")])
def test_a_bundle_is_served_as_kubernetes_mounts_it(bundle: Path, tmp_path: Path, mount: str, inside: str) -> None:
    """Each name in the mount is a link by way of ``..data``, a link that is exchanged when the content changes."""
    list_card(bundle)
    root = tmp_path / "mounts"
    made = root / mount / "..2026_01_01_00_00_00.1"
    shutil.copytree(bundle, made / inside)
    (root / mount / "..data").symlink_to(made.name)
    for path in made.iterdir():
        (root / mount / path.name).symlink_to(Path("..data", path.name))

    loaded = load_classifier(find_bundle("tiny", [root])).bundle

    assert (loaded.id, loaded.card) == ("tiny/1", "# Tiny\n")


def test_unknown_fields_of_a_later_version_are_ignored(bundle: Path) -> None:
    rewrite(bundle, lambda manifest: manifest.update(later={"a": 1}))

    assert load_bundle(bundle).id == "tiny/1"


@pytest.mark.parametrize("name", ["fp32.onnx", "tokenizer.json", "config.json"])
def test_the_error_of_a_truncated_file_has_both_sizes(bundle: Path, name: str) -> None:
    size = (bundle / name).stat().st_size
    with (bundle / name).open("r+b") as stream:
        stream.truncate(size - 1)

    assert why_not(bundle) == f"{bundle / name}: has {size - 1} bytes; the manifest says {size}"


@pytest.mark.parametrize("name", ["fp32.onnx", "tokenizer.json", "config.json"])
def test_the_error_of_a_changed_byte_has_both_hashes(bundle: Path, name: str) -> None:
    content = bytearray((bundle / name).read_bytes())
    content[len(content) // 2] ^= 1
    (bundle / name).write_bytes(content)

    assert re.fullmatch(re.escape(f"{bundle / name}: SHA-256 is ") + "[0-9a-f]{64}; the manifest says [0-9a-f]{64}", why_not(bundle))


@pytest.mark.parametrize("name", ["fp32.onnx", "tokenizer.json", "config.json", "manifest.json"])
def test_the_error_of_a_missing_file_has_its_name(bundle: Path, name: str) -> None:
    (bundle / name).unlink()

    assert why_not(bundle) == f"{bundle / name}: No such file or directory"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b'{"format": 1', "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (MANIFEST_BYTES_MAX + 1), f"has {MANIFEST_BYTES_MAX + 1} bytes; the limit is {MANIFEST_BYTES_MAX}"),
        (b"[]", "Manifest, got []"),
        (b"{}", "format: Field required"),
    ],
    ids=["empty", "cut", "bytes", "deep", "huge", "array", "nothing"],
)
def test_a_file_that_is_not_a_manifest_is_an_error(bundle: Path, content: bytes, says: str) -> None:
    (bundle / "manifest.json").write_bytes(content)

    message = why_not(bundle)
    assert message.startswith(f"{bundle}/manifest.json: ")
    assert says in message


def graphs(manifest: Manifest) -> list[Manifest]:
    found: list[Manifest] = manifest["graphs"]["classify"]
    return found


def set_label(label: str) -> Callable[[Manifest], object]:
    """Give the first label another name, wherever it stands."""

    def change(manifest: Manifest) -> None:
        manifest["labels"][0] = manifest["golden"][1]["label"] = label
        counts = manifest["references"]["usual"]["label"]
        counts[label] = counts.pop("negative")

    return change


def three_labels(**more: Any) -> Callable[[Manifest], object]:
    """A change to the labels negative, positive and neutral, and more."""

    def change(manifest: Manifest) -> None:
        golden = [{**one, "logits": [*one["logits"], -3.0]} for one in manifest["golden"]]
        manifest.update(labels=["negative", "positive", "Neutral"], golden=golden, references={}, **more)

    return change


@pytest.mark.parametrize(
    ("change", "there", "wanted"),
    [
        (lambda m: m.update(format=2), "got 2", "format: Input should be less than or equal to 1"),
        (lambda m: m.update(format="1"), "got '1'", "format: Input should be a valid integer"),
        (lambda m: m.update(name="../up"), "got '../up'", "name: String should match"),
        (lambda m: m.update(version=0), "got 0", "version: Input should be greater than or equal to 1"),
        (lambda m: m.update(max_tokens=10**6), "got 1000000", "max_tokens: Input should be less than or equal to 8192"),
        (lambda m: m.update(padding_side="top"), "got 'top'", "padding_side: String should match"),
        (lambda m: m.update(default_truncation="tail"), "got 'tail'", "default_truncation: String should match"),
        (
            lambda m: m.update(windows={"size": 32, "stride": 16, "combine": "loudest"}),
            "got 'loudest'",
            "windows.combine: String should match",
        ),
        (
            lambda m: m.update(windows={"size": 32, "stride": 16, "combine": "ends", "count_max": 65}),
            "got 65",
            "windows.count_max: Input should be less than or equal to 64",
        ),
        (lambda m: m.update(windows={"size": 33, "stride": 16, "combine": "ends"}), "got stride 16 and size 33", "at most max_tokens (32)"),
        (lambda m: m.update(windows={"size": 16, "stride": 16, "combine": "ends"}), "windows.stride must be less than windows.size", ""),
        (lambda m: m.update(head_tail={"head": 0}), "got 0", "head_tail.head: Input should be greater than or equal to 1"),
        (lambda m: m.update(head_tail={"head": 32}), "head_tail.head must be less than max_tokens (32), got 32", ""),
        (lambda m: m["graphs"].update(classify=[]), "got []", "graphs.classify: Tuple should have at least 1 item"),
        (lambda m: m.update(golden=[]), "got []", "golden: Tuple should have at least 1 item"),
        (lambda m: m["calibration"].update(temperature=0), "got 0", "calibration.temperature: Input should be greater than 0"),
        (lambda m: m["calibration"].update(abstain_below=2), "got 2", "calibration.abstain_below: Input should be less than or equal to 1"),
        (lambda m: graphs(m)[0].update(tolerance=0), "got 0", "graphs.classify.0.tolerance: Input should be greater than 0"),
        (lambda m: graphs(m)[0].update(tolerance=float("inf")), "got inf", "graphs.classify.0.tolerance: Input should be a finite number"),
        *((set_label(label), "must have", repr(label)) for label in ("a\nb", "a\x1b[2J", "a\x9b2J", "\u202ea", " a", "a ", "\u200ba")),
        (set_label("x" * 201), "got 'xxx", "labels.0: String should have at most 200 characters"),
        (set_label(""), "got ''", "labels.0: String should have at least 1 character"),
        (lambda m: m.update(architecture="bert\nRequires-Dist: evil"), "got 'bert\\nRequires-Dist: evil'", "architecture: "),
        (lambda m: graphs(m)[0].update(precision="\x1b[31mfp32"), "got '\\x1b[31mfp32'", "graphs.classify.0.precision: "),
        (lambda m: m.update(accuracy={"a\nb": m["accuracy"]["made-up"]}), "got 'a\\nb'", "accuracy"),
        (lambda m: m.update(labels=["positive"]), "got ['positive']", "labels: Tuple should have at least 2 items"),
        (lambda m: m.update(labels=["positive", "positive"]), "a label is listed twice: ['positive', 'positive']", ""),
        (lambda m: m.update(labels=["a", "b", "c"]), "golden[0] has label 'positive' and 2 logits", "the labels are ['a', 'b', 'c']"),
        (
            lambda m: m["golden"][1].update(label="neutral"),
            "golden[1] has label 'neutral' and 2 logits",
            "the labels are ['negative', 'positive']",
        ),
        (
            lambda m: m["golden"][1].update(logits=[1.0]),
            "golden[1] has label 'negative' and 1 logits",
            "the labels are ['negative', 'positive']",
        ),
        (lambda m: m.update(mixed={"at": 2}), "got 2", "mixed.at: Input should be less than or equal to 1"),
        (lambda m: m.update(mixed={"at": 0.5}), "golden[0] has label 'positive' and 2 logits", "and mixed has a logit too"),
        (lambda m: m.update(targets={"tokens": 16}), "targets needs a label 'neutral'", "['negative', 'positive']"),
        (lambda m: m.update(targets={"tokens": 15}), "got 15", "targets.tokens: Input should be greater than or equal to 16"),
        (three_labels(targets={"tokens": 33}), "targets.tokens must be at most max_tokens (32), got 33", ""),
        (lambda m: m["files"].pop("tokenizer.json"), "files does not list tokenizer.json", ""),
        (lambda m: graphs(m)[0].update(file="nosuch.onnx"), "files does not list nosuch.onnx", ""),
        (lambda m: m["files"]["config.json"].update(bytes=1), "bytes; the manifest says 1", "config.json"),
        (lambda m: m["files"]["config.json"].update(sha256="00"), "; the manifest says 00", "config.json"),
    ],
)
def test_the_error_of_a_wrong_manifest_has_the_value_and_the_limit(
    bundle: Path, change: Callable[[Manifest], object], there: str, wanted: str
) -> None:
    rewrite(bundle, change)

    message = why_not(bundle)
    assert there in message
    assert wanted in message
    assert str(bundle) in message


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "sub/file", "..", ".", "", "a\\b", ".hidden", "new\nline", "config.json\n"])
def test_no_file_outside_the_bundles_own_folder_is_ever_read(bundle: Path, name: str) -> None:
    (bundle.parent / "secret").write_bytes(b"")
    rewrite(bundle, lambda manifest: manifest["files"].update({name: {"sha256": "0" * 64, "bytes": 0}}))

    message = why_not(bundle)
    assert f"files lists {name!r}; only plain file names in the bundle's own folder are allowed" in message
    assert "SHA-256" not in message


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (with_input("pixels"), "has unknown inputs: pixels; supported are input_ids, attention_mask, token_type_ids"),
        (changed_graph(lambda table: table.repeat([1, 2], axis=1), 3), "returns 3 logits per row; the manifest says 2"),
        (one_number_a_row(), "the first output must be logits [rows, labels], got the shape ['batch']"),
        (changed_graph(lambda table: -table), "golden[0]: expected positive, got negative"),
        (changed_graph(lambda table: table * 1.01), "golden[0]: the logit error is 0.0100; the tolerance is 0.001"),
        (changed_graph(lambda table: table * np.nan), "golden[0]: expected positive, got negative"),
        # The golden texts' tokens are not in the table: ONNX Runtime refuses the run.
        (changed_graph(lambda table: table[:4]), "cannot run the golden set"),
    ],
    ids=["inputs", "width", "shape", "label", "logits", "nan", "run"],
)
def test_the_error_of_a_graph_that_fails_the_golden_set_has_the_reason(bundle: Path, graph: onnx.ModelProto, says: str) -> None:
    only_graph(bundle, graph)

    message = why_not(bundle, load_classifier)

    assert f"{bundle}/fp32.onnx" in message
    assert says in message


def test_nan_logits_never_pass_the_golden_set(bundle: Path) -> None:
    onnx.save(changed_graph(lambda table: table * [1, np.nan]), bundle / "fp32.onnx")
    manifest: Manifest = read_manifest(bundle)
    # The label of the other golden text is the first one, whose logit is right. Only the NaN of the second logit is wrong.
    del manifest["golden"][0]
    write_manifest(bundle, manifest)

    assert why_not(bundle, load_classifier) == f"{bundle}/fp32.onnx: golden[0]: the logit error is nan; the tolerance is 0.001"


def test_wrong_golden_logits_are_an_error(bundle: Path) -> None:
    rewrite(bundle, lambda manifest: manifest["golden"][1].update(logits=[2.5, -2.0]))

    assert why_not(bundle, load_classifier) == f"{bundle}/fp32.onnx: golden[1]: the logit error is 0.5000; the tolerance is 0.001"


def test_a_graph_whose_names_are_not_utf8_is_an_error(bundle: Path) -> None:
    content = (bundle / "fp32.onnx").read_bytes()
    (bundle / "fp32.onnx").write_bytes(content.replace(b"input_ids", b"\xd6nput_ids"))
    write_manifest(bundle, read_manifest(bundle))

    assert "ONNX Runtime cannot load it: " in why_not(bundle, load_classifier)


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "link"])
def test_a_graph_reads_no_weights_from_outside_of_the_folder(bundle: Path, location: str) -> None:
    graph = make_graph()
    weights = graph.graph.initializer[0]
    (bundle.parent / "secret").write_bytes(weights.raw_data)
    (bundle / "link").symlink_to("../secret")
    weights.external_data.add(key="location", value=location)
    weights.external_data.add(key="length", value=str(len(weights.raw_data)))
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.ClearField("raw_data")
    (bundle / "fp32.onnx").write_bytes(graph.SerializeToString())
    manifest = read_manifest(bundle)
    manifest["files"]["fp32.onnx"] = {  # type: ignore[index]  # plain JSON
        "sha256": hashlib.sha256(graph.SerializeToString()).hexdigest(),
        "bytes": len(graph.SerializeToString()),
    }
    (bundle / "manifest.json").write_text(json.dumps(manifest))

    assert "ONNX Runtime cannot load it: " in why_not(bundle, load_classifier)


@pytest.mark.parametrize("name", ["fp32.onnx", "tokenizer.json"])
def test_a_file_with_the_right_hash_and_the_wrong_content_is_an_error(bundle: Path, name: str) -> None:
    (bundle / name).write_bytes(b"nonsense")
    write_manifest(bundle, read_manifest(bundle))

    assert f"{bundle / name}: " in why_not(bundle, load_classifier)


@pytest.mark.parametrize(
    "change",
    [
        # It raises a bare Exception at the first word that it does not know, such as the letter that the service tries it with.
        lambda tokenizer: tokenizer["model"].update(unk_token="[NO]"),
        # It panics.
        lambda tokenizer: tokenizer["post_processor"]["special_tokens"].pop("[CLS]"),
        lambda tokenizer: tokenizer["post_processor"].update(special_tokens={}),
    ],
)
def test_a_tokenizer_that_fails_or_panics_is_an_error(bundle: Path, change: Callable[[Manifest], object]) -> None:
    tokenizer: Manifest = json.loads((bundle / "tokenizer.json").read_text())
    change(tokenizer)
    (bundle / "tokenizer.json").write_text(json.dumps(tokenizer))
    write_manifest(bundle, read_manifest(bundle))

    assert why_not(bundle, load_classifier).startswith(f"{bundle}/tokenizer.json: not a tokenizer: ")


def test_the_error_of_a_missing_provider_lists_the_available_ones(bundle: Path) -> None:
    rewrite(bundle, lambda manifest: graphs(manifest)[0].update(providers=["NoSuchExecutionProvider"]))

    message = why_not(bundle, load_classifier)
    assert "needs NoSuchExecutionProvider; this ONNX Runtime has" in message
    assert "CPUExecutionProvider" in message


# One that cannot be loaded, and one that fails the golden set.
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (with_input("pixels"), "has unknown inputs: pixels"),
        (changed_graph(lambda table: -table), "golden[0]: expected positive, got negative"),
    ],
    ids=["inputs", "label"],
)
def test_a_preferred_graph_that_cannot_be_served_is_skipped_and_the_reason_kept(bundle: Path, wrong: onnx.ModelProto, reason: str) -> None:
    add_graph(bundle, wrong)

    classifier = load_classifier(bundle)

    assert classifier.graph.precision == "fp32"
    (kept,) = classifier.passed_over
    assert kept.startswith(f"{bundle}/int8.onnx: {reason}")


def test_the_first_graph_that_passes_is_served(bundle: Path) -> None:
    add_graph(bundle, make_graph())

    classifier = load_classifier(bundle)

    assert (classifier.graph.precision, classifier.passed_over) == ("int8", ())


def test_if_no_graph_passes_the_error_has_every_reason(bundle: Path) -> None:
    add_graph(bundle, changed_graph(lambda table: -table))
    only_graph(bundle, changed_graph(lambda table: table * 1.01))

    message = why_not(bundle, load_classifier)

    assert f"{bundle}/int8.onnx: golden[0]: expected positive" in message
    assert f"; {bundle}/fp32.onnx: golden[0]: the logit error" in message


def test_only_the_requested_precision_is_served(bundle: Path) -> None:
    add_graph(bundle, changed_graph(lambda table: -table))

    assert load_classifier(bundle, "fp32").graph.precision == "fp32"
    assert "int8.onnx: golden[0]" in why_not(bundle, lambda path: load_classifier(path, "int8"))
    assert why_not(bundle, lambda path: load_classifier(path, "fp16")) == f"{bundle}: has no fp16 graph; it has int8, fp32"


def test_a_check_reports_good_and_bad_graphs_and_the_served_one(bundle: Path) -> None:
    add_graph(bundle, changed_graph(lambda table: -table))
    add_graph(bundle, with_input("pixels"), "fp16", first=False)

    title, files, *verdicts, served = check_bundle(bundle)

    assert title.startswith("tiny/1  bag-of-words, negative, positive, 32 tokens, digest ")
    assert files.startswith("ok    5 files, ")
    assert [(line[:5].strip(), line[6:].split(":")[0]) for line in verdicts] == [
        ("BAD", "int8.onnx"),
        ("ok", "int8.onnx"),
        ("ok", "fp32.onnx"),
        ("ok", "fp32.onnx"),
        ("BAD", "fp16.onnx"),
    ]
    assert "0 of 2 golden labels" in verdicts[0]
    assert served == "serves fp32.onnx"


def test_a_check_in_which_no_graph_passes_fails(bundle: Path) -> None:
    only_graph(bundle, changed_graph(lambda table: -table))

    assert why_not(bundle, lambda path: list(check_bundle(path))) == f"{bundle}: no graph passes the golden set on this machine"


def depending() -> onnx.ModelProto:
    """A graph whose logits grow with the greatest of the batch, as activations that share one scale do."""
    model = make_graph()
    model.graph.output[0].name = "answers"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.1), "tenth"))
    model.graph.node.extend(
        [
            helper.make_node("ReduceMax", ["logits"], ["greatest"], keepdims=0),
            helper.make_node("Mul", ["greatest", "tenth"], ["some"]),
            helper.make_node("Mul", ["logits", "some"], ["more"]),
            helper.make_node("Add", ["logits", "more"], ["answers"]),
        ]
    )
    return model


def make_inexact(bundle: Path, invariance: float) -> None:
    """Make it the bundle's only graph, with this in the manifest."""
    only_graph(bundle, depending())
    answers = {"a good film": [-1.1, 1.1], "awful": [2.4, -2.4]}
    golden = [{"text": text, "label": LABELS[logits[1] > 0], "logits": logits} for text, logits in answers.items()]
    rewrite(bundle, lambda manifest: manifest.update(golden=golden))
    rewrite(bundle, lambda manifest: graphs(manifest)[0].update(invariance=invariance, outputs=["answers"]))


def test_a_manifest_that_claims_less_than_batch_mates_change_is_refused_with_both_numbers(bundle: Path) -> None:
    make_inexact(bundle, 1e-4)

    why = why_not(bundle, load_classifier)

    assert why.startswith(f"{bundle}/fp32.onnx: batch mates change a probability by 0.0")
    assert "; the manifest says by 0.0001 at most; sentiment-models import-onnx makes" in why


def test_what_another_cpu_measures_of_an_inexact_graph_counts_only_where_its_rows_have_batch_mates(bundle: Path) -> None:
    make_inexact(bundle, 2e-4)

    assert load_classifier(bundle).graph.invariance == 0
    assert list(check_bundle(bundle))[-1] == "serves fp32.onnx"
    why = why_not(bundle, lambda path: load_classifier(path, inexact="batch"))
    assert "batch mates change a probability by 0.0" in why
    assert "; the manifest says by 0.0002 at most" in why


def test_a_manifest_may_claim_less_than_rounding(bundle: Path) -> None:
    rewrite(bundle, lambda manifest: graphs(manifest)[0].update(invariance=0))

    assert load_classifier(bundle).graph.invariance == 0


def test_an_inexact_graph_runs_its_rows_alone_or_in_batches_or_is_refused(bundle: Path) -> None:
    make_inexact(bundle, 0.5)
    texts = ["awful", "a good film", "great great and a film"]

    alone, batched = (load_classifier(bundle, inexact=how) for how in ("alone", "batch"))
    rows = [alone.tokenizer.encode(text) for text in texts]
    singles = [alone.run([row])[0] for row in rows]

    assert alone.run(rows) == singles
    assert alone.session.run_wide(alone.feeds(rows)).tolist() == singles
    assert batched.run(rows) != singles
    assert (alone.graph.invariance, batched.graph.invariance) == (0, 0.5)
    assert "inexact_models = refuse takes graphs with 0.0001 at most" in why_not(
        bundle, lambda path: load_classifier(path, inexact="refuse")
    )


def test_a_check_says_what_batch_mates_change(bundle: Path) -> None:
    make_inexact(bundle, 0.5)
    assert any(line.startswith("ok    fp32.onnx: batch mates change a probability by 0.") for line in check_bundle(bundle))

    make_inexact(bundle, 1e-4)
    assert why_not(bundle, lambda path: list(check_bundle(path))).endswith("no graph passes the golden set on this machine")


def stub(root: Path, *ids: str) -> Path:
    """Folders that look like bundles to ``find_bundle``."""
    for found in ids:
        (root / found).mkdir(parents=True)
        (root / found / "manifest.json").write_text("{}")
    return root


def test_the_highest_version_wins_and_is_compared_as_a_number(tmp_path: Path) -> None:
    stub(tmp_path, "tiny/9", "tiny/10", "tiny/2", "other/11")

    assert find_bundle("tiny", [tmp_path]) == tmp_path / "tiny/10"
    assert find_bundle("tiny/2", [tmp_path]) == tmp_path / "tiny/2"


def test_the_first_root_that_has_the_model_wins(tmp_path: Path) -> None:
    first, second = stub(tmp_path / "first", "tiny/1"), stub(tmp_path / "second", "tiny/2", "other/1")

    assert find_bundle("tiny", [first, second]) == first / "tiny/1"
    assert find_bundle("tiny/2", [first, second]) == second / "tiny/2"
    assert find_bundle("other", [tmp_path / "nosuch", first, second]) == second / "other/1"


def test_a_folder_without_a_manifest_or_a_number_is_not_a_version(tmp_path: Path) -> None:
    stub(tmp_path, "tiny/1", "tiny/latest", "tiny/3-draft", "tiny/007", "tiny/\u0664", "tiny/\u00b2")
    (tmp_path / "tiny/8").mkdir()

    assert find_bundle("tiny", [tmp_path]) == tmp_path / "tiny/1"


@pytest.mark.parametrize("model", ["nosuch", "tiny/7", "tiny/x", "tiny/01", "tiny/\u00b2", "tiny/-1", "tiny/1/1", "", "/"])
def test_the_error_of_a_missing_bundle_lists_the_existing_ones(tmp_path: Path, model: str) -> None:
    roots = [stub(tmp_path / "first", "tiny/1"), stub(tmp_path / "second", "other/3"), tmp_path / "nosuch"]

    message = why_not(tmp_path, lambda _: find_bundle(model, roots))

    looked = ", ".join(map(str, roots))
    assert message == f"no bundle {model!r} in {looked}; the bundles there are: other/3, tiny/1"


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = stub(tmp_path, "tiny/1", "other/1")
    monkeypatch.setattr(os, "access", lambda path, _: path != root / "tiny")

    said = why_not(tmp_path, lambda _: find_bundle("tiny/2", [root]))
    assert said.endswith(f": other/1, tiny/1; the server's user cannot read {root}/tiny")


def test_a_version_that_cannot_be_read_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = stub(tmp_path, "tiny/1")
    (root / "tiny/2").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: path != root / "tiny/2")

    assert find_bundle("tiny", [root]) == root / "tiny/2"


def test_the_error_of_a_missing_bundle_in_an_empty_root_says_none(tmp_path: Path) -> None:
    assert "the bundles there are: none; install the wheel of a bundle, or " in why_not(tmp_path, lambda path: find_bundle("tiny", [path]))


def test_configured_roots_come_first(tmp_path: Path) -> None:
    roots = bundle_roots([tmp_path])

    assert roots[:2] == [tmp_path, Path("/models")]
    assert roots[2].parts[-2:] == ("models", "bundles")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"windows": {"size": 20, "stride": 19, "combine": "ends"}},
            "windows.stride must be at most 18 (the text tokens of a window), got 19",
        ),
        ({"head_tail": {"head": 30}}, "head_tail.head must be less than 30 (the text tokens of a row), got 30"),
    ],
)
def test_limits_that_leave_no_room_beside_the_special_tokens_are_an_error(bundle: Path, change: Manifest, says: str) -> None:
    rewrite(bundle, lambda manifest: manifest.update(change))

    assert why_not(bundle, load_classifier) == f"{bundle}: {says}"


def test_a_manifest_without_long_text_settings_has_the_defaults(bundle: Path) -> None:
    classifier = load_classifier(bundle)

    assert classifier.head_tail.head == 8
    assert classifier.windows.model_dump() == {"size": 32, "stride": 16, "combine": "most_confident", "count_max": 16}


@pytest.mark.parametrize("truncation", ["refuse", "head", "head_tail", "windows"])
def test_every_truncation_may_be_a_bundles_default(bundle: Path, truncation: str) -> None:
    rewrite(bundle, lambda manifest: manifest.update(default_truncation=truncation))

    assert load_classifier(bundle).manifest.default_truncation == truncation


@pytest.mark.parametrize(("temperature", "abstain_below", "uncalibrated"), [(1.0, 0.0, True), (1.0, 0.6, False), (1.041, 0.0, False)])
def test_a_bundle_without_temperature_and_threshold_is_not_calibrated(temperature: float, abstain_below: float, uncalibrated: bool) -> None:
    assert Calibration(temperature=temperature, abstain_below=abstain_below).uncalibrated is uncalibrated
