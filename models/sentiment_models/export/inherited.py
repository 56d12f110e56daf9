"""What a bundle made of another bundle's fine-tune keeps of it: how long texts are read, spellings, its temperature, its study.

A checkpoint that was trained from a bundle carries these in a file of its own, because its other files are those of transformers.
"""

from pathlib import Path

from pydantic import ValidationError

from sentiment.model.bundle import Calibration, HeadTail, Mixed, TargetsSpec, WindowsSpec, load_bundle
from sentiment.model.trust import ExplanationsMeasured
from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.manifest import MANIFEST_FILE, TOKENIZER_FILE
from sentiment_models.export.provenance import Json
from sentiment_models.export.spellings import spellings_of
from sentiment_models.stored import Stored

INHERITED_FILE = "base_bundle.json"


class Inherited(Stored):
    """A base bundle as its fine-tunes need it. Fields are those of a manifest but for these.

    ``bundle``: its name, version and digest. ``references``: the names of its references, which count its own answers. ``spellings``: by
    spelling, the word that the tokenizer reads.
    """

    bundle: str
    labels: tuple[str, ...]
    max_tokens: int
    pairs: bool
    default_truncation: str
    head_tail: HeadTail | None
    windows: WindowsSpec | None
    calibration: Calibration
    explanations: ExplanationsMeasured | None
    references: tuple[str, ...]
    spellings: dict[str, str]
    # None too in a checkpoint that an earlier version trained.
    mixed: Mixed | None = None
    targets: TargetsSpec | None = None

    def truncation(self, max_tokens: int) -> dict[str, Json]:
        """Return the fields of a manifest that say how long texts are read. Lengths in tokens hold only for the base's limit."""
        holds = max_tokens == self.max_tokens
        return {
            "default_truncation": self.default_truncation,
            **({"head_tail": self.head_tail.model_dump()} if holds and self.head_tail else {}),
            "windows": self.windows.model_dump() if holds and self.windows else None,
        }

    def study(self) -> dict[str, Json]:
        """Return the manifest's study of explanations, marked as the base's; empty if there is none."""
        if self.explanations is None:
            return {}
        marked = self.explanations.model_copy(update={"bundle": self.explanations.bundle or self.bundle.partition("@")[0]})
        return {"explanations": marked.model_dump(mode="json", exclude_none=True)}


def inherited_of(folder: Path) -> Inherited | None:
    """Read what a bundle, or a checkpoint that was trained from one, hands on; None for another folder or a name.

    Raises:
        BadCheckpoint: the checkpoint's file is damaged.
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    if (folder / MANIFEST_FILE).is_file():
        bundle = load_bundle(folder)
        own = {"bundle", "references", "spellings"}
        return Inherited(
            bundle=f"{bundle.id}@{bundle.digest[:12]}",
            **{name: getattr(bundle.manifest, name) for name in Inherited.model_fields.keys() - own},
            references=tuple(sorted(bundle.manifest.references)),
            spellings=spellings_of(folder / TOKENIZER_FILE),
        )
    file = folder / INHERITED_FILE
    if not file.is_file():
        return None
    try:
        return Inherited.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise BadCheckpoint(f"{file}: damaged; train again, or delete it to export without what the base bundle set: {error}") from error


def hand_on(inherited: Inherited | None, folder: Path) -> None:
    """Write what a base hands on into the folder of a checkpoint."""
    if inherited is not None:
        (folder / INHERITED_FILE).write_text(inherited.model_dump_json(indent=1), encoding="utf-8")
