"""A checkpoint of the original TensorFlow BERT as a base: TensorFlow itself writes it, NumPy says what it must answer."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForPreTraining, BertModel

from sentiment_models.cli import main
from sentiment_models.study.tensorflow_bert import _variables
from tests.environments import environment
from tests.models import original_bert
from tests.models.tiny_bert import sentences, write_tsv

ROOT = Path(__file__).parents[2]
# Beside the packages of this environment, which it does not change: 1.4 GB. Installation and tests take from two minutes, so the gate
# leaves them out: ``pytest -m thorough tests/models/test_import_tf.py``.
TENSORFLOW = "tensorflow-cpu==2.21.0"


@pytest.fixture(scope="module")
def tensorflow() -> Path:
    """The Python of an environment that has it and all of ours; made at the first run, and kept."""
    return environment("tensorflow", [TENSORFLOW], sees_ours=True)


@pytest.fixture(scope="module")
def originals(tensorflow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints that TensorFlow wrote: whole, headless, poolerless, short, classifier; and answers.npz of the first."""
    folder = tmp_path_factory.mktemp("originals")
    script = Path(__file__).with_name("original_bert.py")
    subprocess.run([tensorflow, script, folder], check=True, capture_output=True, timeout=120, env=ENVIRONMENT)
    return folder


ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "service", ROOT / "models"))),
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
}
# Several commands in one process: TensorFlow and torch take 10 s to start.
COMMANDS = """
import contextlib, io, json, sys
from sentiment_models.cli import main
found = []
for argv in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(["import-tf", *argv])
    found.append([code, said.getvalue()])
print("\\n" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def import_tf(tensorflow: Path) -> Callable[..., list[tuple[int, str]]]:
    """Run ``import-tf`` with each of several arguments; exit codes and what is said."""

    def run(*commands: list[str | Path]) -> list[tuple[int, str]]:
        given = json.dumps([[str(one) for one in argv] for argv in commands])
        ran = subprocess.run(
            [tensorflow, "-c", COMMANDS], input=given, capture_output=True, text=True, timeout=300, check=True, env=ENVIRONMENT
        )
        return [(code, said) for code, said in json.loads(ran.stdout.splitlines()[-1])]

    return run


@pytest.mark.thorough
def test_an_imported_model_answers_as_the_original_and_can_be_trained(
    import_tf: Callable[..., list[tuple[int, str]]], originals: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    uncased, cased = import_tf([originals / "whole", "--output", base], [originals / "headless", "--output", tmp_path / "cased", "--cased"])

    assert uncased == (0, f"{base}: the tokenizer lower-cases texts\nnext: sentiment-models train --base {base} --data ... --output ...\n")
    assert cased[0] == 0, cased[1]
    assert "keeps the case of texts; the checkpoint lacks all heads of pre-training" in cased[1]

    expected = np.load(originals / "answers.npz")
    inputs = {"input_ids": torch.from_numpy(expected["ids"]), "token_type_ids": torch.from_numpy(expected["segments"])}
    with torch.no_grad():
        heads = BertForPreTraining.from_pretrained(base).eval()(**inputs, output_hidden_states=True)
        encoder = BertModel.from_pretrained(tmp_path / "cased").eval()(**inputs, output_hidden_states=True)
    for found, name in (
        (torch.stack(heads.hidden_states), "hidden"),
        (heads.prediction_logits, "words"),
        (heads.seq_relationship_logits, "follows"),
        (torch.stack(encoder.hidden_states), "hidden"),
        (encoder.pooler_output, "pooled"),
    ):
        assert np.abs(found.numpy() - expected[name]).max() < 1e-5, name
    assert AutoTokenizer.from_pretrained(base).tokenize("The FILM was great") == ["the", "film", "was", "great"]
    assert AutoTokenizer.from_pretrained(tmp_path / "cased").tokenize("The film") == ["[UNK]", "film"]

    data = write_tsv(tmp_path / "data.tsv", sentences(60))
    assert main(["train", "--base", str(base), "--data", str(data), "--out", str(tmp_path / "run"), "--max-tokens", "32"]) == 0


@pytest.mark.thorough
def test_a_checkpoint_that_is_damaged_or_does_not_fit_is_named_with_what_is_wrong(
    import_tf: Callable[..., list[tuple[int, str]]], originals: Path, tmp_path: Path
) -> None:
    def damaged(name: str, damage: Callable[[Path], object]) -> Path:
        damage(shutil.copytree(originals / "whole", tmp_path / name))
        return tmp_path / name

    def config(**changed: object) -> Callable[[Path], object]:
        def change(folder: Path) -> None:
            path = folder / "bert_config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))

        return change

    def cut(name: str, size: int) -> Callable[[Path], object]:
        return lambda folder: os.truncate(folder / name, size)

    data = "bert_model.ckpt.data-00000-of-00001"
    cases = {
        damaged("data", cut(data, 20_000)): "bert_model.ckpt: cannot be read: ",
        damaged("nodata", lambda folder: (folder / data).unlink()): "bert_model.ckpt: cannot be read: ",
        damaged("index", cut("bert_model.ckpt.index", 200)): "bert_model.ckpt: cannot be read: ",
        damaged("wide", config(intermediate_size=128)): (
            "/intermediate/dense/bias has shape [64], but by bert_config.json it must have [128]"
        ),
        damaged("deep", config(num_hidden_layers=3)): "lacks bert/encoder/layer_2/attention/self/query/kernel and 15 more",
        damaged("shallow", config(num_hidden_layers=1)): "has bert/encoder/layer_1/attention/output/LayerNorm/beta and 15 more, which BERT",
        originals / "short": "lacks bert/encoder/layer_1/output/dense/kernel and 1 more, which bert_config.json implies",
        originals / "classifier": "has output_bias and 1 more, which BERT of bert_config.json does not have",
    }

    *found, poolerless = import_tf(
        *([folder, "--output", tmp_path / "out"] for folder in cases), [originals / "poolerless", "--output", tmp_path / "base"]
    )

    for (folder, message), (code, said) in zip(cases.items(), found, strict=True):
        assert (code, said.count("\n")) == (1, 1), (folder, said)
        assert said.startswith("error: ")
        assert message in said, folder
    assert not list(tmp_path.glob("out*"))
    assert poolerless[0] == 0
    assert "lacks pooler: training begins with random ones" in poolerless[1]


def test_the_names_and_shapes_that_are_looked_for_are_those_that_the_original_writes() -> None:
    config = BertConfig(
        vocab_size=len(original_bert.PIECES),
        hidden_size=original_bert.WIDTH,
        num_hidden_layers=original_bert.LAYERS,
        num_attention_heads=original_bert.HEADS,
        intermediate_size=original_bert.INNER,
        max_position_embeddings=original_bert.TOKENS,
    )

    assert _variables(BertForPreTraining(config)) == {name: tuple(shape) for name, shape in original_bert.shapes().items()}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "vocab.txt",
            None,
            "vocab.txt: no such file; expected bert_config.json, vocab.txt, bert_model.ckpt.index and bert_model.ckpt.data-*",
        ),
        ("bert_model.ckpt.index", None, "bert_model.ckpt.index: no such file; expected "),
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n", "vocab.txt: lacks [MASK]; it must have "),
        ("vocab.txt", "a\n" * 11, "vocab.txt: has 11 pieces, but vocab_size of bert_config.json is 10"),
        ("bert_config.json", "{", "bert_config.json: cannot be read as JSON: "),
        ("bert_config.json", '{"vocab_size": 0}', "bert_config.json: vocab_size must be a whole number from 1, got 0"),
        ("", "", "import-tf reads checkpoints with TensorFlow: module tensorflow is missing: run pip install 'sentiment-service["),
    ],
)
def test_what_needs_no_tensorflow_is_checked_without(
    name: str, text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {"vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    numbers |= {"intermediate_size": 8, "max_position_embeddings": 8, "type_vocab_size": 2}
    (tmp_path / "bert_config.json").write_text(json.dumps(numbers))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"")
    if text is None:
        (tmp_path / name).unlink()
    elif name:
        (tmp_path / name).write_text(text)

    assert main(["import-tf", str(tmp_path), "--output", str(tmp_path / "out")]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()
