"""Make a classifier deeper, shallower or wider."""

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment_models.errors import BadCheckpoint, ModelsError
from sentiment_models.export.checkpoint import load_classifier
from sentiment_models.study.resize import resize
from tests.models.tiny_bert import save_tiny_bert, sentences
from tests.models.tiny_families import TINY, save_tiny

TEXTS = [text for _, text in sentences(20)]


def _logits(folder: Path) -> torch.Tensor:
    model, tokenizer = load_classifier(folder)
    with torch.no_grad():
        logits: torch.Tensor = model(**tokenizer(TEXTS, return_tensors="pt", padding=True)).logits
    return logits


def test_a_vocabulary_with_spellings_loads_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    # transformers warns of vocabularies of more than 100,000 pieces only.
    library = logging.getLogger("transformers")
    library.addHandler(caplog.handler)

    try:
        load_classifier(find_bundle("english", bundle_roots([])))
    finally:
        library.removeHandler(caplog.handler)

    assert caplog.text == ""


def test_twice_the_width_answers_the_same_and_its_copies_are_read_in_different_parts(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base")

    resize(base, tmp_path / "wide", width=64)

    assert torch.allclose(_logits(tmp_path / "wide"), _logits(base), atol=1e-4)
    weights = load_file(tmp_path / "wide" / "model.safetensors")
    inner, classifier = weights["bert.encoder.layer.0.intermediate.dense.weight"], weights["classifier.weight"]
    assert inner.shape == (128, 64)
    assert (classifier[:, :32] - classifier[:, 32:]).abs().min() > 0


def test_layers_are_repeated_or_skipped_where_they_stand(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base")
    before = load_file(base / "model.safetensors")

    resize(base, tmp_path / "deep", layers=4)
    resize(tmp_path / "deep", tmp_path / "back", layers=2)

    after = load_file(tmp_path / "deep" / "model.safetensors")
    for name, tensor in after.items():
        layer = next((number for number in range(4) if f"layer.{number}." in name), None)
        source = name if layer is None else name.replace(f"layer.{layer}.", f"layer.{layer // 2}.")
        assert torch.equal(tensor, before[source]), name
    assert torch.equal(_logits(tmp_path / "back"), _logits(base))


def test_the_record_names_the_base(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base")
    (base / "training.json").write_text('{"steps": 7}')

    resize(base, tmp_path / "deep", layers=3, seed=5)

    assert json.loads((tmp_path / "deep" / "training.json").read_text()) == {
        "resized": {"base": "base", "layers": 3, "width": 32, "seed": 5},
        "base_training": {"steps": 7},
    }


@pytest.mark.parametrize("width", [16, 36])
def test_a_width_that_cannot_be_made_is_refused(tmp_path: Path, width: int) -> None:
    base = save_tiny_bert(tmp_path / "base")

    with pytest.raises(ModelsError, match=f"width must be at least 32 and a multiple of 8, the size of a head, got {width}"):
        resize(base, tmp_path / "other", width=width)
    with pytest.raises(ModelsError, match="exists; use --overwrite to replace it"):
        resize(base, base)


def test_other_families_are_refused(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base", TINY["roberta"])

    with pytest.raises(BadCheckpoint, match="resize knows the layers of bert alone, this model is roberta"):
        resize(base, tmp_path / "other", layers=3)
