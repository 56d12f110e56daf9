"""Find and identify the model that a run starts from or learns from: a checkpoint's folder, a bundle, or a model of the hub."""

import hashlib
import json
import re
import threading
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sentiment.model.bundle import Bundle, load_bundle
from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.manifest import MANIFEST_FILE, WEIGHTS_FILE, read_object, sha256
from sentiment_models.export.provenance import Json, facts

TRAINING_FILE = "training.json"
# The files of a checkpoint that transformers reads: configuration, weights and tokenizer.
READ = ("*.json", "*.safetensors", "*.bin", "*.txt", "*.model")
# In the order in which transformers looks for weights; an index names the files of weights in parts.
BIN_FILE = "pytorch_model.bin"
WEIGHTS = (WEIGHTS_FILE, f"{WEIGHTS_FILE}.index.json", BIN_FILE, f"{BIN_FILE}.index.json")
OTHER_WEIGHTS = {"tf_model.h5": ("TensorFlow", "from_tf=True"), "flax_model.msgpack": ("Flax", "from_flax=True")}
# A model's card on the hub, which names its licence.
CARD = "README.md"
HUB = "hub:"
"""Stands before the name of a model of the Hugging Face hub. Everything else is a folder: a mistyped one must not ask a network."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
HUB_WAIT_S = 10.0
"""For the hub's first answer."""
# The hub's errors for a model that it does not have or not show.
UNKNOWN = ("RepositoryNotFoundError", "GatedRepoError")


def folder_of(base: str) -> str:
    """Return the folder of a base, "" for "". A model of the hub is downloaded, unless it is in the hub's cache.

    Raises:
        BadCheckpoint: there is no such folder, or the hub has no such model, has weights for another library alone, or cannot be reached.
    """
    if base.startswith(HUB):
        return _downloaded(base.removeprefix(HUB))
    if base and not Path(base).is_dir():
        named = HUB_NAME.fullmatch(base) and not ("/" in base and Path(base).parent.is_dir())
        meant = f"; a model of this name on the Hugging Face hub is written {HUB}{base}" if named else ""
        raise BadCheckpoint(f"{base}: no such folder{meant}")
    return base


def check_library(names: Collection[str], model: str) -> None:
    """Check that weights are not for another library alone.

    Args:
        names: of the model's files.
        model: its folder or its name on the hub, as transformers takes it.

    Raises:
        BadCheckpoint: they are. Has the line that converts them.
    """
    if not any(name in WEIGHTS for name in names):
        for name, (library, option) in OTHER_WEIGHTS.items():
            if name in names:
                raise BadCheckpoint(
                    f"{model}: has the weights for {library} alone ({name}); convert them with transformers 4 and {library}: "
                    f'AutoModelForSequenceClassification.from_pretrained("{model}", {option}).save_pretrained("{model}")'
                )


@cache
def _downloaded(name: str) -> str:
    from huggingface_hub import snapshot_download  # noqa: PLC0415  # comes with tokenizers; only bases of the hub need it

    why, files = _asked(name)
    check_library(files, name)
    try:
        # Not what its folders hold: weights for other frameworks.
        given: dict[str, Any] = {"ignore_patterns": "*/*", "local_files_only": bool(why)}
        folder = Path(snapshot_download(name, allow_patterns=[kind for kind in (*READ, CARD) if kind != "*.bin"], **given))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns="*.bin", **given))
    except Exception as error:  # of requests or httpx, by the version of huggingface_hub, and of its own
        raise BadCheckpoint(
            f"{HUB}{name}: not in the hub's cache and cannot be downloaded: {why or str(error).splitlines()[0]}; where the hub can be "
            f"reached, run hf download {name} --local-dir DIR, and give DIR"
        ) from error
    return str(folder)


def _asked(name: str) -> tuple[str, list[str]]:
    """Why the hub gives nothing of a model, "" if it does; and the names of the model's files there.

    In a thread, because no timeout of the hub's client bounds look-ups of names and the addresses and retries after them: without a
    network the client may wait for minutes.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415  # as above

    found: list[tuple[str, list[str]]] = [(f"{urlsplit(HfApi().endpoint).netloc} did not answer within {HUB_WAIT_S:g} s", [])]

    def ask() -> None:
        try:
            files = HfApi().model_info(name, timeout=HUB_WAIT_S).siblings or []
            found[0] = "", [file.rfilename for file in files]
        except Exception as error:  # as above
            kind = type(error).__name__
            unknown = "it has no such model, or one that needs a token (HF_TOKEN)"
            asked = getattr(error, "response", None) is not None or isinstance(error, ValueError) or kind == "OfflineModeIsEnabled"
            found[0] = unknown if kind in UNKNOWN else str(error).splitlines()[0] if asked else "the hub cannot be reached", []

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_WAIT_S)
    return found[0]


def name_of(base: str) -> str:
    """Return a name for records that holds no path of this machine.

    Of a bundle it is name, version and digest, of another folder its last part, of a model of the hub its name there.

    Raises:
        sentiment.errors.BadBundle: a bundle is damaged.
    """
    if base.startswith(HUB):
        return base.removeprefix(HUB)
    folder = Path(base).resolve()
    if not base or not folder.is_dir():
        return base
    bundle = _bundle(folder)
    return f"{bundle.id}@{bundle.digest[:12]}" if bundle else folder.name


def content_of(base: str) -> str:
    """Return an identifier of a model's content: its name and a digest of the files that are read.

    It changes if the path later holds another model.

    Raises:
        sentiment.errors.BadBundle: a bundle is damaged.
    """
    name, folder = name_of(base), Path(base)
    if not base or not folder.is_dir() or (folder / MANIFEST_FILE).is_file():
        return name
    read = sorted(path for pattern in READ for path in folder.glob(pattern) if path.name != TRAINING_FILE)
    return f"{name}@{hashlib.sha256(json.dumps([(path.name, sha256(path)) for path in read]).encode()).hexdigest()[:12]}"


def teacher_name(folder: Path) -> str:
    """Return ``name_of`` plus, for a checkpoint, the SHA-256 of its weights: many folders of checkpoints are called best.

    Raises:
        sentiment.errors.BadBundle: a bundle is damaged.
    """
    name, weights = name_of(str(folder)), folder / WEIGHTS_FILE
    known = (folder / MANIFEST_FILE).is_file() or not weights.is_file()
    return name if known else f"{name}@{sha256(weights)[:12]}"


def training_of(base: str) -> Json:
    """Return the training record of the base, or None if it was not trained here.

    Raises:
        ModelsError: the record cannot be read.
    """
    if not base:
        return None
    record, manifest = Path(base) / TRAINING_FILE, Path(base) / MANIFEST_FILE
    if record.is_file():
        return read_object(record)
    return facts(read_object(manifest).get("provenance")).get("training") if manifest.is_file() else None


def temperature_of(teacher: Path) -> float:
    """Return the temperature that a bundle's logits are divided by; 1 for a checkpoint.

    Raises:
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    bundle = _bundle(teacher)
    return bundle.manifest.calibration.temperature if bundle else 1.0


def _bundle(folder: Path) -> Bundle | None:
    return load_bundle(folder) if (folder / MANIFEST_FILE).is_file() else None
