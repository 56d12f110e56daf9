"""The check of the explain graph: a wrong graph is not used, the reason is reported, and erasure still works."""

import errno
import hashlib
import os
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sentiment.cli.main import main
from sentiment.errors import CannotRead, Unsupported
from sentiment.explain.engine import Explainer
from sentiment.explain.methods.evidence import Evidence
from sentiment.explain.parts import Attribution, ExplanationRequest, Header, Reason
from sentiment.model.bundle import Bundle, FileSpec
from sentiment.model.classifier import load_classifier
from tests.core.explain.explained import TEXT, explained

Graph = onnx.GraphProto


def _after(graph: Graph, output: str, operator: str, by: float) -> None:
    """Change an output by a constant."""
    graph.initializer.append(numpy_helper.from_array(np.array(by, np.float32), f"{output}.by"))
    for node in graph.node:
        for place, name in enumerate(node.output):
            if name == output:
                node.output[place] = f"{output}.before"
        for place, name in enumerate(node.input):
            if name == output:
                node.input[place] = f"{output}.before"
    graph.node.append(helper.make_node(operator, [f"{output}.before", f"{output}.by"], [output]))


def _turned(graph: Graph) -> None:
    """Logits in the wrong order."""
    _after(graph, "logits", "Mul", -1.0)


DAMAGES: dict[str, tuple[Callable[[Graph], None], str]] = {
    "logits": (lambda graph: _after(graph, "logits", "Add", 2e-4), r"logits of golden\[\d+\] differ by 0.0002\d*; the tolerance is 0.0001"),
    "nan": (lambda graph: _after(graph, "logits", "Mul", float("nan")), r"differ by nan"),
    "turned": (_turned, "logits of golden"),
    "rows": (
        lambda graph: _after(graph, "attention.1", "Mul", 0.99),
        r"layer 1 of golden\[\d+\]: the sum of an attention row differs from 1 by 0.01",
    ),
    "padding": (lambda graph: _after(graph, "attention.0", "Add", 1e-6), "attention to padding must be 0, got 1e-06"),
    "gradient": (lambda graph: _after(graph, "attention_gradient.0", "Mul", float("inf")), "attention x gradient are not all finite"),
    "dots": (lambda graph: _after(graph, "embedding_dots", "Div", 0.0), "embedding_dots of golden"),
    "norms": (lambda graph: _after(graph, "value_norm.1", "Div", 0.0), "value norms are not all finite"),
    "states": (lambda graph: _after(graph, "hidden.2", "Div", 0.0), r"hidden.2 of golden\[\d+\] is not all finite"),
    "queries": (lambda graph: _after(graph, "query.1", "Mul", float("nan")), "queries are not all finite"),
}


def _copied(bundle: Path, folder: Path) -> tuple[Explainer, Path]:
    shutil.copytree(bundle, folder / "bundle")
    return Explainer(load_classifier(folder / "bundle", "fp32")), folder / "bundle/explain.onnx"


def _listed(explainer: Explainer, file: Path) -> None:
    """As if the bundle had been made with the file as it is now."""
    content = file.read_bytes()
    explainer.classifier.manifest.files[file.name] = FileSpec(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("name", DAMAGES)
def test_a_wrong_graph_fails_its_check_and_erasure_still_works(bundle: Path, tmp_path: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    explainer, file = _copied(bundle, tmp_path)
    model = onnx.load(file, load_external_data=False)
    damage(model.graph)
    onnx.save(model, file)
    _listed(explainer, file)

    assert explainer.methods[0] == "integrated_gradients"
    header, parts, summary = explained(explainer, ExplanationRequest(TEXT))

    assert isinstance(header, Header)
    assert header.logit_error is None
    assert [type(part) for part in parts] == [Attribution, Evidence, Reason]
    assert explainer.methods == ("occlusion", "shapley", "two_step_shapley")
    assert summary.explained_rows == 0
    with pytest.raises(Unsupported, match=r"heads needs an explain graph; that of bundle tiny/1 failed its check, see the server's log$"):
        next(explainer.explain(ExplanationRequest(TEXT, heads=True)))
    # Of which a client sees neither path nor runtime's words.
    assert re.search(message, explainer.failure)


def test_a_file_that_is_not_a_graph_fails_the_check(bundle: Path, tmp_path: Path) -> None:
    explainer, file = _copied(bundle, tmp_path)
    file.write_bytes(b"no graph")
    _listed(explainer, file)

    assert explainer.load() is None
    assert "ONNX Runtime cannot load it" in explainer.failure


@pytest.mark.parametrize("fault", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ENOMEM], ids=errno.errorcode.get)
def test_a_file_that_cannot_be_read_now_is_tried_again(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int) -> None:
    explainer, file = _copied(bundle, tmp_path)
    opened = os.open

    def fail(path: object, *arguments: Any, **options: Any) -> int:
        if str(path) == str(file.resolve()):
            raise OSError(fault, os.strerror(fault), str(path))
        return opened(path, *arguments, **options)

    with monkeypatch.context() as faulty:
        faulty.setattr(os, "open", fail)
        for _ in range(2):
            with pytest.raises(CannotRead, match=os.strerror(fault)):
                next(explainer.explain(ExplanationRequest(TEXT)))

    assert explainer.failure == ""
    assert explainer.load() is not None


def test_a_graph_that_cannot_be_opened_now_is_tried_again(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explainer, _ = _copied(bundle, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    outside = Bundle.outside

    def then_no_file_is_left(self: Bundle, graph: str) -> dict[str, bytes]:
        found = outside(self, graph)
        # Descriptors that are open stay so.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        return found

    with monkeypatch.context() as faulty:
        faulty.setattr(Bundle, "outside", then_no_file_is_left)
        try:
            with pytest.raises(CannotRead, match="system error number 24"):
                explainer.load()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert explainer.failure == ""
    assert explainer.load() is not None


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-1])], ids=["missing", "shorter"])
def test_a_damaged_graph_is_not_tried_again(bundle: Path, tmp_path: Path, damage: Callable[[Path], object]) -> None:
    explainer, file = _copied(bundle, tmp_path)
    content = file.read_bytes()
    damage(file)

    assert explainer.load() is None
    file.write_bytes(content)
    assert explainer.load() is None
    assert explainer.failure


def test_several_threads_load_the_graph_once(bundle: Path) -> None:
    explainer = Explainer(load_classifier(bundle, "int8"))
    found: list[object] = []
    threads = [Thread(target=lambda: found.append(explainer.load())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(found) == 4
    assert len(set(map(id, found))) == 1
    graph = explainer.load()
    assert graph is not None
    assert graph.width == 8
    assert explainer.failure == ""


def test_checking_a_bundle_checks_its_explain_graph(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(bundle)]) == 0

    *_, proved, methods = capsys.readouterr().out.splitlines()
    assert proved.startswith("ok    explain graph: ")
    assert methods == "explains by integrated_gradients, gradient_x_input, occlusion, shapley, two_step_shapley"


def test_an_explain_graph_is_unloaded_only_if_it_could_be_loaded_again(bundle: Path, tmp_path: Path) -> None:
    explainer, file = _copied(bundle, tmp_path)
    first = explainer.load()

    explainer.unload()
    second = explainer.load()
    file.unlink()
    explainer.unload()

    assert first is not None
    assert second is not first
    assert explainer.load() is second
    explainer.unload(for_good=True)
    assert explainer.load() is None
