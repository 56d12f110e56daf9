"""``sentiment-models import``: checkpoints as people have them. What is typed, what is answered, and that what is served is exact."""

import importlib.util
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import tokenizers
import torch
from huggingface_hub.hf_api import RepoSibling
from safetensors.torch import load_file, save_file
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import Metaspace
from transformers import AutoModelForSequenceClassification, LlamaConfig, PreTrainedTokenizerFast

from sentiment.model.bundle import load_bundle
from sentiment.settings import Settings
from sentiment_models.cli import main
from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.adapters import ADAPTER_FILE, parts_of
from sentiment_models.export.checkpoint import Checkpoint, base_tokenizer
from sentiment_models.export.kinds import Parts, recognise
from sentiment_models.training import bases
from tests.conftest import RunningServer
from tests.models.tiny_bert import save_tiny_bert, sentences

GENERIC = ("LABEL_0", "LABEL_1", "LABEL_2")
NAMED = ("negative", "neutral", "positive")


def _config(**settings: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **settings}))

    return change


def _renamed(old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / old).rename(folder / new)


def _with(*names: str, **settings: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).write_text("[]")
        _config(**settings)(folder)

    return change


def _without_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink()


def _in_shards(folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="60KB")


def _pipe(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def _without_a_shard(folder: Path) -> None:
    _in_shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def _named_by_index(folder: Path, index: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)


def _in_bin(folder: Path, *others: object) -> None:
    torch.save({**load_file(folder / "model.safetensors"), **{f"other.{place}": one for place, one in enumerate(others)}}, folder / "b")
    (folder / "model.safetensors").unlink()
    (folder / "b").rename(folder / "pytorch_model.bin")


def _adapter(**settings: object) -> Callable[[Path], object]:
    """Instead of the checkpoint: an adapter."""

    def change(folder: Path) -> None:
        (folder / "config.json").unlink()
        (folder / ADAPTER_FILE).write_text(json.dumps({"task_type": "SEQ_CLS", "base_model_name_or_path": "org/base", **settings}))
        (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")

    return change


TRAIN = "sentiment-models train --base {} --labels NAME,NAME --data FILE --output OUT"


@pytest.mark.parametrize(
    ("change", "options", "answer"),
    [
        (
            _config(id2label=dict(enumerate(GENERIC))),
            [],
            "/own/config.json: does not say what the model's 3 outputs mean (LABEL_0,LABEL_1,LABEL_2); name them in this order with "
            "--labels, such as --labels negative,neutral,positive (--labels LABEL_0,LABEL_1,LABEL_2 serves them under these names)",
        ),
        (
            _config(id2label=None),
            [],
            "/own/config.json: does not say what the model's 2 outputs mean (LABEL_0,LABEL_1); name them in this order with --labels, "
            "such as --labels negative,positive (--labels LABEL_0,LABEL_1 serves them under these names)",
        ),
        (
            _config(),
            ["--labels", "negative,neutral,positive"],
            "/own/config.json: the model has 2 outputs (negative,positive), --labels has 3 names",
        ),
        (
            _config(problem_type="multi_label_classification"),
            [],
            "/own/config.json: problem_type is multi_label_classification, in which a text may have several labels; the service answers "
            "one label of several; train --new-head makes such a classifier of its encoder",
        ),
        (
            _config(id2label={"0": "score"}),
            ["--labels", "bad,good"],
            "/own/config.json: id2label has one label ({'0': 'score'}), so this is a regression, which answers a number; the service "
            "answers one label of several; train --new-head makes such a classifier of its encoder",
        ),
        (
            _config(architectures=["BertForMaskedLM"]),
            [],
            "/own/config.json: architectures is BertForMaskedLM, which is not a classifier of texts (...ForSequenceClassification); "
            f"train one from it on labelled texts: {TRAIN.format('/own')}",
        ),
        (
            _with("model_head.pkl", "config_setfit.json", "modules.json"),
            [],
            "/own: a SetFit model (it has config_setfit.json, model_head.pkl): sentence embeddings with a head of scikit-learn, which "
            f"is not served; train a classifier of its encoder on the same labelled texts: {TRAIN.format('/own')}",
        ),
        (
            _with("modules.json", architectures=["BertModel"]),
            [],
            "/own: a model of sentence-transformers (it has modules.json): it gives embeddings and no labels; train a classifier of "
            f"its encoder on labelled texts: {TRAIN.format('/own')}",
        ),
        (
            _renamed("model.safetensors", "tf_model.h5"),
            [],
            "/own: has the weights for TensorFlow alone (tf_model.h5); convert them with transformers 4 and TensorFlow: "
            'AutoModelForSequenceClassification.from_pretrained("/own", from_tf=True).save_pretrained("/own")',
        ),
        (
            _renamed("model.safetensors", "flax_model.msgpack"),
            [],
            "/own: has the weights for Flax alone (flax_model.msgpack); convert them with transformers 4 and Flax: "
            'AutoModelForSequenceClassification.from_pretrained("/own", from_flax=True).save_pretrained("/own")',
        ),
        (_renamed("model.safetensors", "x"), [], "/own: has no weights: neither model.safetensors nor pytorch_model.bin"),
        (
            _renamed("config.json", "bert_config.json"),
            [],
            "/own: a checkpoint of the original BERT in TensorFlow; convert it with sentiment-models import-tf",
        ),
        (
            lambda own: (own / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n"),
            [],
            "/own/model.safetensors: a pointer of Git LFS instead of the weights; run git lfs pull in /own",
        ),
        (
            _without_a_shard,
            [],
            "/own/model-00002-of-00002.safetensors: no such file, though model.safetensors.index.json names it; copy the checkpoint again",
        ),
        (
            lambda own: _named_by_index(own, "{}"),
            [],
            "/own/model.safetensors.index.json: weight_map names no file of weights; copy the checkpoint again",
        ),
        (
            lambda own: _named_by_index(own, '{"weight_map": {}}'),
            [],
            "/own/model.safetensors.index.json: weight_map names no file of weights; copy the checkpoint again",
        ),
        (
            lambda own: _in_bin(own, threading.Thread),
            [],
            "/own: pytorch_model.bin holds more than tensors, and reading it would run code; if you trust it, load the model where it was "
            "trained and save it again, as .safetensors: model.save_pretrained(DIR)",
        ),
        (
            _without_tokenizer,
            [],
            "/own: has no tokenizer (none of tokenizer.json, vocab.txt, vocab.json, *.model); give the folder of the model that it was "
            "trained from with --tokenizer, or copy that model's tokenizer files here",
        ),
        (
            _adapter(task_type="CAUSAL_LM"),
            [],
            "/own/adapter_config.json: an adapter of PEFT for CAUSAL_LM, not for a classifier of texts (SEQ_CLS)",
        ),
        (
            _adapter(),
            [],
            "/own: an adapter of PEFT (it has adapter_config.json), which peft merges into its base: pip install peft",
        ),
        (
            lambda folder: _named_by_index(folder, '{"weight_map": {"a": "../model.safetensors"}}'),
            [],
            "/own/model.safetensors.index.json: weight_map names ../model.safetensors, which is not a file of this folder",
        ),
        (
            _config(num_hidden_layers=10**9),
            [],
            "/own/config.json: num_hidden_layers must be a whole number from 1 to 512, got 1000000000",
        ),
        (_config(num_hidden_layers=0), [], "/own/config.json: num_hidden_layers must be a whole number from 1 to 512, got 0"),
        (_pipe, [], "/own/config.json: not a regular file"),
    ],
)
def test_what_is_not_served_is_called_what_it_is_with_the_way_on(
    change: Callable[[Path], object],
    options: list[str],
    answer: str,
    refused: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    change(save_tiny_bert(tmp_path / "own"))

    assert refused("import", tmp_path / "own", "--output", "OUT/1", *options) == f"error: {answer}"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("./model", "./model: no such folder"),
        ("/models/mine", "/models/mine: no such folder"),
        ("tests/model", "tests/model: no such folder"),
        ("org/model", "org/model: no such folder; a model of this name on the Hugging Face hub is written hub:org/model"),
        (
            "hub:org/model",
            "hub:org/model: not in the hub's cache and cannot be downloaded: the hub cannot be reached; where the hub can be reached, run "
            "hf download org/model --local-dir DIR, and give DIR",
        ),
        (
            "hub:org/unknown",
            "hub:org/unknown: not in the hub's cache and cannot be downloaded: it has no such model, or one that needs a token (HF_TOKEN); "
            "where the hub can be reached, run hf download org/unknown --local-dir DIR, and give DIR",
        ),
        (
            "hub:org/silent",
            "hub:org/silent: not in the hub's cache and cannot be downloaded: huggingface.co did not answer within 0.05 s; where the hub "
            "can be reached, run hf download org/silent --local-dir DIR, and give DIR",
        ),
    ],
)
def test_a_path_asks_no_hub_and_a_hub_that_does_not_answer_fails_at_once(
    typed: str, answer: str, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()

    def model_info(_: object, name: str, **__: Any) -> None:
        assert typed == f"hub:{name}"
        if name == "org/silent":
            never.wait(60)
        raise type("RepositoryNotFoundError", (Exception,), {})("401") if name == "org/unknown" else OSError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(bases, "HUB_WAIT_S", 0.05 if typed == "hub:org/silent" else 10.0)

    said = refused("import", typed, "--out", "OUT/1")

    never.set()
    assert said == f"error: {answer}"


@pytest.mark.parametrize(
    ("file", "library", "option"), [("tf_model.h5", "TensorFlow", "from_tf"), ("flax_model.msgpack", "Flax", "from_flax")]
)
def test_a_model_of_the_hub_for_another_library_alone_is_refused_with_the_line_that_converts_it(
    file: str, library: str, option: str, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [RepoSibling("config.json"), RepoSibling(file), RepoSibling("training_args.bin")]
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: SimpleNamespace(siblings=files))

    assert refused("import", f"hub:org/{library}", "--out", "OUT/1") == (
        f"error: org/{library}: has the weights for {library} alone ({file}); convert them with transformers 4 and {library}: "
        f'AutoModelForSequenceClassification.from_pretrained("org/{library}", {option}=True).save_pretrained("org/{library}")'
    )


def _in_type(dtype: torch.dtype) -> Callable[[Path], object]:
    return lambda folder: AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype).save_pretrained(folder)


def _vocabulary_alone(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)


def _without_padding(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        file = folder / name
        file.write_text(file.read_text().replace("[PAD]", "[unused0]"))
    _config(pad_token_id=None)(folder)


@pytest.mark.parametrize(
    ("change", "weights", "tokenizer"),
    [
        (_in_shards, "float32: model-00001-of-00002.safetensors and 1 more", "tokenizer.json, WordPiece"),
        (_in_bin, "float32: pytorch_model.bin", "tokenizer.json, WordPiece"),
        (_in_type(torch.float16), "float16: model.safetensors", "tokenizer.json, WordPiece"),
        (_in_type(torch.bfloat16), "bfloat16: model.safetensors", "tokenizer.json, WordPiece"),
        (_vocabulary_alone, "float32: model.safetensors", "converted from vocab.txt"),
        (_without_padding, "float32: model.safetensors", "tokenizer.json, WordPiece"),
        (_config(max_position_embeddings=64), "float32: model.safetensors", "tokenizer.json, WordPiece"),
    ],
    ids=["shards", ".bin", "half", "bfloat16", "vocab.txt", "no padding token", "as it is"],
)
def test_a_checkpoint_is_read_as_transformers_reads_it_however_it_is_stored(
    change: Callable[[Path], object], weights: str, tokenizer: str, tmp_path: Path
) -> None:
    own = save_tiny_bert(tmp_path / "own")
    plain = Checkpoint(own).tokenizer
    change(own)
    reference: Any = AutoModelForSequenceClassification.from_pretrained(own, dtype=torch.float32)
    reference.half().float().eval()

    found = recognise(Parts(own, own, own), ())
    read = Checkpoint(own)

    assert f"bert of 2 layers, 32 wide; weights in {weights}" in found.lines[0]
    assert found.lines[2].startswith(f"tokenizer: {tokenizer}")
    for _, text in sentences(5):
        ids = read.tokenizer.encode(text).ids
        assert ids == plain.encode(text).ids
        feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
        with torch.no_grad():
            wanted = reference(**{name: torch.from_numpy(array) for name, array in feeds.items()}).logits.numpy()
        assert read.logits(feeds) == pytest.approx(wanted, abs=1e-5)


def test_a_foreign_checkpoint_becomes_a_bundle_that_says_what_it_is_and_is_not(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """LABEL_0 and the like renamed, a tokenizer from elsewhere without a padding token, a licence, a note; nothing to calibrate on."""
    own = save_tiny_bert(tmp_path / "own", labels=GENERIC)
    (own / "README.md").write_text("---\ntags:\n- text\nlicense:\n- apache-2.0\n---\n# A model\n\nlicense: none\n")
    _without_padding(own)
    other = tmp_path / "tokenizer"
    other.mkdir()
    (own / "tokenizer.json").rename(other / "tokenizer.json")
    (own / "vocab.txt").unlink()
    out = tmp_path / "bundles" / "mine" / "1"

    options = ["--labels", "negative,neutral,positive", "--tokenizer", str(other), "--note", "For reviews."]
    code = main(["import", str(own), "--out", str(out), *options])

    told = capsys.readouterr()
    assert code == 0
    assert told.err.splitlines()[1:4] == [
        "labels: negative,neutral,positive (LABEL_0,LABEL_1,LABEL_2 in config.json)",
        f"tokenizer: tokenizer.json, WordPiece, {len(json.loads((out / 'tokenizer.json').read_bytes())['model']['vocab'])} tokens",
        "licence: apache-2.0 (README.md)",
    ]
    assert "not calibrated, and no answer is undecided; calibrate with --dev FILE, of 20 labelled texts or more" in told.out
    assert f"sentiment serve --bundles {tmp_path / 'bundles'} --model mine" in told.out
    bundle = load_bundle(out)
    assert bundle.manifest.labels == NAMED
    assert bundle.manifest.calibration.uncalibrated
    assert bundle.config["id2label"] == dict(zip("012", NAMED, strict=True))
    for text in ("imported from `own`", "For reviews.", "**Not calibrated**", "by its own card: apache-2.0."):
        assert text in bundle.card
    assert str(tmp_path) not in (out / "manifest.json").read_text() + bundle.card
    assert main(["verify", str(out)]) == 0

    running = RunningServer(settings.model_copy(update={"bundles": (tmp_path / "bundles",), "model": "mine"}))
    with running.client(timeout_s=30) as client:
        (listed,) = client.list_models().models
        answer = client.classify("the film was good")
    running.stop()
    assert (list(listed.labels), listed.calibration.uncalibrated) == (list(NAMED), True)
    assert list(answer.scores) == list(NAMED)
    assert not answer.abstain


def test_who_insists_gets_the_names_of_config_json_and_the_bundle_is_sound(tmp_path: Path) -> None:
    own, out = save_tiny_bert(tmp_path / "own", labels=GENERIC), tmp_path / "own" / "1"

    assert main(["export", str(own), "--output", str(out), "--labels", "LABEL_0,LABEL_1,LABEL_2"]) == 0

    assert load_bundle(out).manifest.labels == GENERIC
    assert Checkpoint.of_bundle(out).labels == list(GENERIC)


@pytest.mark.parametrize(
    ("front", "licence"),
    [
        ("license: mit", "mit"),
        ('license: "cc-by-nc-4.0"  # see below', "cc-by-nc-4.0"),
        ("license: other\nlicense_name: llama 3", "llama 3"),
        ("license:\n  - bsd-3-clause\n  - mit", "bsd-3-clause"),
        ("tags: [x]", ""),
    ],
)
def test_the_licence_is_the_one_in_the_front_matter_of_the_models_card(front: str, licence: str, tmp_path: Path) -> None:
    own = save_tiny_bert(tmp_path / "own")
    (own / "README.md").write_text(f"---\n{front}\n---\n# A model\n\nlicense: gpl\n")

    found = recognise(Parts(own, own, own), ())

    assert found.licence == licence
    assert found.lines[3] == (
        f"licence: {licence} (README.md)" if licence else "licence: not known, as no README.md names it; --note TEXT can say it"
    )


RANK, ALPHA = 2, 4
QUERY = "bert.encoder.layer.0.attention.self.query"


def save_adapter(folder: Path, base: str, head: dict[str, torch.Tensor]) -> Path:
    """Save LoRA on one layer, and ``head``, as PEFT does."""
    torch.manual_seed(3)
    folder.mkdir()
    config = {"peft_type": "LORA", "task_type": "SEQ_CLS", "base_model_name_or_path": base, "r": RANK, "lora_alpha": ALPHA}
    (folder / ADAPTER_FILE).write_text(json.dumps({**config, "target_modules": ["query"], "modules_to_save": ["classifier"]}))
    low = {f"{QUERY}.lora_A.weight": torch.randn(RANK, 32), f"{QUERY}.lora_B.weight": torch.randn(32, RANK)}
    save_file({f"base_model.model.{name}": tensor for name, tensor in {**low, **head}.items()}, folder / "adapter_model.safetensors")
    return folder


class FakePeft:
    """The two calls of peft that are used, for LoRA."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @classmethod
    def from_pretrained(cls, model: Any, folder: str) -> "FakePeft":
        found = {name.removeprefix("base_model.model."): one for name, one in load_file(f"{folder}/adapter_model.safetensors").items()}
        state = model.state_dict()
        state[f"{QUERY}.weight"] += ALPHA / RANK * found[f"{QUERY}.lora_B.weight"] @ found[f"{QUERY}.lora_A.weight"]
        model.load_state_dict({**state, **{name: one for name, one in found.items() if "lora" not in name}})
        return cls(model)

    def merge_and_unload(self) -> Any:
        return self._model


@pytest.fixture
def peft(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library, or where it is not installed, a fake."""
    if importlib.util.find_spec("peft") is None:
        fake: Any = ModuleType("peft")
        fake.PeftModel, fake.__spec__ = FakePeft, object()
        monkeypatch.setitem(sys.modules, "peft", fake)


@pytest.mark.usefixtures("peft")
def test_an_adapter_is_merged_into_its_base_with_its_own_head_and_the_tokenizer_of_the_base(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base")
    head = {"classifier.weight": torch.randn(3, 32), "classifier.bias": torch.randn(3)}
    adapter, said = save_adapter(tmp_path / "adapter", str(base), head), list[str]()

    with parts_of(adapter, "", "", said.append) as parts:
        found = recognise(parts, NAMED)
        weights = load_file(parts.model / "model.safetensors")

    assert said == [f"merging the adapter into {base}"]
    assert (found.labels, parts.tokenizer, parts.card, parts.base) == (NAMED, base, adapter, "base")
    low = load_file(adapter / "adapter_model.safetensors")
    a, b = (low[f"base_model.model.{QUERY}.lora_{part}.weight"] for part in "AB")
    before = load_file(base / "model.safetensors")
    assert torch.allclose(weights[f"{QUERY}.weight"], before[f"{QUERY}.weight"] + ALPHA / RANK * b @ a, atol=1e-5)
    assert all(torch.equal(weights[name], tensor) for name, tensor in head.items())


@pytest.mark.usefixtures("peft")
@pytest.mark.parametrize(
    ("base", "head", "answer"),
    [
        ("./gone", 3, "/adapter/adapter_config.json: its base model ./gone is not here; give its folder, or hub:NAME, with --base"),
        ("", 3, "/adapter/adapter_config.json: its base model  is not here; give its folder, or hub:NAME, with --base"),
        (
            "BASE",
            0,
            "/adapter: neither the adapter nor its base /base has classifier.bias, classifier.weight; save the adapter with its head",
        ),
    ],
)
def test_an_adapter_without_its_base_or_a_head_is_refused(base: str, head: int, answer: str, tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path / "base")
    headless = load_file(folder / "model.safetensors")
    save_file({name: one for name, one in headless.items() if "classifier" not in name}, folder / "model.safetensors", {"format": "pt"})
    tensors = {"classifier.weight": torch.randn(head, 32), "classifier.bias": torch.randn(head)} if head else {}
    adapter = save_adapter(tmp_path / "adapter", str(folder) if base == "BASE" else base, tensors)

    with pytest.raises(BadCheckpoint) as caught, parts_of(adapter, "", "", print):
        pass

    assert str(caught.value).replace(str(tmp_path), "") == answer


@pytest.mark.usefixtures("peft")
def test_an_adapter_on_a_family_that_is_not_served_is_refused_before_the_weights_of_its_base_are_read(tmp_path: Path) -> None:
    base = tmp_path / "base"
    LlamaConfig(vocab_size=8, hidden_size=8).save_pretrained(base)
    adapter = save_adapter(tmp_path / "adapter", str(base), {"score.weight": torch.randn(3, 8)})

    with (
        pytest.raises(BadCheckpoint, match=rf"^{base}/config.json: model_type must be one of .*, got llama$"),
        parts_of(adapter, "", "", print),
    ):
        pass


@pytest.mark.usefixtures("peft")
def test_the_base_that_an_adapter_names_is_in_the_manifest_and_on_the_card(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base", labels=NAMED)
    head = {"classifier.weight": torch.randn(3, 32), "classifier.bias": torch.randn(3)}
    adapter, out = save_adapter(tmp_path / "adapter", str(base), head), tmp_path / "mine" / "1"

    assert main(["import", str(adapter), "--out", str(out), "--labels", ",".join(NAMED)]) == 0

    assert json.loads((out / "manifest.json").read_bytes())["provenance"]["base"] == "base"
    assert "fine-tuned from `base`" in load_bundle(out).card


def test_a_tokenizer_that_transformers_reads_otherwise_than_its_file_says_is_refused(tmp_path: Path) -> None:
    own = save_tiny_bert(tmp_path / "own")
    config = json.loads((own / "tokenizer_config.json").read_bytes())
    (own / "tokenizer_config.json").write_text(json.dumps({**config, "do_lower_case": False}))

    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json: gives 'Wonderful\.' other tokens than transformers does"):
        Checkpoint(own)


def test_a_tokenizer_that_only_transformers_can_convert_fails_with_what_it_may_lack(tmp_path: Path) -> None:
    own = save_tiny_bert(tmp_path / "own")
    _without_tokenizer(own)
    (own / "spiece.model").write_bytes(b"nothing")
    (own / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "AlbertTokenizer"}))

    with pytest.raises(
        BadCheckpoint, match=r"own: tokenizer\.json cannot be made from spiece\.model, .*packages sentencepiece and protobuf"
    ):
        Checkpoint(own)


def _tokenizer(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def changed(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_bytes())
        change(content)
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return changed


def _weight(value: float) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights["classifier.bias"][0] = value
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return change


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (
            _config(num_hidden_layers=1),
            r"own: the weights have bert\.encoder\.layer\.1\..* and 15 more, for which config\.json has no layer",
        ),
        (_tokenizer(lambda content: content.update(post_processor=None)), r"tokenizer\.json: adds no special token to a text"),
        (_tokenizer(lambda content: content["model"].update(unk_token="none")), r"tokenizer\.json: cannot tokenize a text: .*UNK"),
        (_weight(float("nan")), r"own: classifier\.bias has values that are not numbers \(NaN\)"),
        (_weight(1e5), r"own: classifier\.bias has numbers over 65504"),
    ],
)
def test_a_checkpoint_that_would_be_served_wrongly_is_refused(change: Callable[[Path], object], answer: str, tmp_path: Path) -> None:
    change(save_tiny_bert(tmp_path / "own"))
    # What transformers reads of both must not hide what is wrong.
    (tmp_path / "own" / "tokenizer_config.json").unlink()

    with pytest.raises(BadCheckpoint, match=answer):
        Checkpoint(tmp_path / "own")


def test_the_side_that_a_long_text_is_cut_at_is_named(tmp_path: Path) -> None:
    own = save_tiny_bert(tmp_path / "own")
    config = json.loads((own / "tokenizer_config.json").read_bytes())
    (own / "tokenizer_config.json").write_text(json.dumps({**config, "truncation_side": "left"}))

    with parts_of(own, "", None, print) as parts:
        lines = recognise(parts, ()).lines

    assert (
        "truncation_side of tokenizer_config.json is left, and a bundle reads the first tokens of a long text; ask for head_tail or windows"
        in lines
    )


def test_fewer_positions_than_tokens_are_the_limit(tmp_path: Path) -> None:
    own = save_tiny_bert(tmp_path / "own")
    config = json.loads((own / "tokenizer_config.json").read_bytes())
    (own / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": 512}))

    assert Checkpoint(own).max_tokens == 64
    assert isinstance(Checkpoint(own).tokenizer, tokenizers.Tokenizer)


def test_a_large_vocabulary_gives_no_warning_of_another_familys_regular_expression(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers warns of Mistral's whenever a vocabulary has over 100,000 entries."""
    own = save_tiny_bert(tmp_path / "own")
    known = json.loads((own / "tokenizer.json").read_bytes())["model"]["vocab"]
    tokenizer = tokenizers.Tokenizer(Unigram([(piece, -1.0) for piece in (*known, *(f"word{place}" for place in range(100_001)))], 1))
    tokenizer.pre_tokenizer = Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(own)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)

    loaded = base_tokenizer(str(own))

    assert len(loaded) > 100_000
    assert not loaded.fix_mistral_regex
    assert caplog.messages == []
