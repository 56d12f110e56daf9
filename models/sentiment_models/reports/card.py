"""The model card: two pages for people. Figures come from measurements, the rest from the manifest and from what its author wrote.

How the model was trained, and every table, are in the record beside the bundle, see ``card_record``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sentiment.model.bundle import Bundle, Manifest, WindowsSpec, load_bundle
from sentiment_models.errors import ModelsError
from sentiment_models.evaluation.findings import Evaluation
from sentiment_models.explanations.findings import Findings
from sentiment_models.explanations.record import check_of
from sentiment_models.explanations.training_findings import TrainingFindings
from sentiment_models.export.manifest import (
    CARD_FILE,
    MANIFEST_FILE,
    digest_without_card,
    file_entry,
    read_object,
    replace_file,
    write_manifest,
)
from sentiment_models.export.provenance import Json
from sentiment_models.reports import card_figures
from sentiment_models.reports.about import AuthorFacts
from sentiment_models.reports.card_explanations import explanations_in_short
from sentiment_models.reports.card_record import record
from sentiment_models.reports.report import write_text

Facts = Mapping[str, Json]
NO_FACTS = AuthorFacts()


def record_path(bundle: Path) -> Path:
    """Return the path of a bundle's record: next to its folder, never in it."""
    whole = bundle.resolve()
    return whole.with_name(whole.name + ".record.md")


def write_card(
    bundle: Path,
    evaluations: Sequence[Evaluation],
    findings: Findings | None = None,
    training: TrainingFindings | None = None,
    author: AuthorFacts = NO_FACTS,
) -> Path:
    """Write MODEL_CARD.md into a bundle, list it in the manifest, whose digest changes, and write the record beside the bundle.

    Args:
        bundle: the bundle's directory.
        evaluations: results of ``evaluate`` on this bundle.
        findings: results of ``evaluate --explanations``.
        training: results of ``attention-tests``.
        author: facts that cannot be measured.

    Raises:
        ModelsError: an evaluation or the findings belong to another bundle, or the findings have another default method.
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    # Whatever became of an earlier card.
    loaded = load_bundle(bundle, card=False)
    manifest = read_object(bundle / MANIFEST_FILE)
    for evaluation in evaluations:
        evaluation.check_of(loaded.manifest)
    if findings is not None:
        check_of(findings, loaded.manifest)
        served = loaded.manifest.explanations
        if served is not None and findings.default_method != served.default_method:
            raise ModelsError(
                f"the findings have default method {findings.default_method}; the bundle has {served.default_method}. Run evaluate "
                f"--explanations again with --record --default {served.default_method}; with the same --resume file this is quick"
            )
    path = bundle / CARD_FILE
    described = digest_without_card(manifest)
    provenance = _facts(manifest.get("provenance"))
    replace_file(path, card(loaded, described, provenance, evaluations, findings, author).encode())
    write_text(record_path(bundle), record(loaded, described, provenance, evaluations, findings, training))
    write_manifest(bundle, {**manifest, "files": {**_facts(manifest["files"]), CARD_FILE: file_entry(path)}})
    return path


def card(
    bundle: Bundle,
    digest: str,
    provenance: Facts,
    evaluations: Sequence[Evaluation],
    findings: Findings | None = None,
    author: AuthorFacts = NO_FACTS,
) -> str:
    """Compose the card's text. ``digest``: of the manifest without the card."""
    manifest = bundle.manifest
    shown = [{author.name(name): found for name, found in one.datasets.items() if name not in author.omit} for one in evaluations]
    named = [one.model_copy(update={"datasets": datasets}) for one, datasets in zip(evaluations, shown, strict=True) if datasets]
    sections = (
        _head(bundle, digest, provenance, author),
        _use(manifest, author),
        card_figures.summary(manifest, named),
        *([f"## How it was chosen\n\n{author.selection.strip()}"] if author.selection else ()),
        card_figures.weaknesses(manifest, named),
        explanations_in_short(manifest, findings, author),
        _data(provenance, author),
    )
    return "\n\n".join(sections) + "\n"


def _head(bundle: Bundle, digest: str, provenance: Facts, author: AuthorFacts) -> str:
    manifest = bundle.manifest
    base = provenance.get("base")
    return (
        f"# {bundle.id}\n\n"
        f"Classifies {_text(manifest, author)} as {' or '.join(manifest.labels)}: "
        f"a {manifest.architecture} encoder with a classification head"
        f"{f', fine-tuned from `{base}`' if base else ''}. It reads at most {manifest.max_tokens} tokens at once.\n\n"
        f'```\nSENTIMENT_MODEL={manifest.name} sentiment serve\nsentiment classify "TEXT"\n```\n\n'
        f"Generated by `sentiment-models card` from the manifest, whose SHA-256 without this card is `{digest}`, and from evaluations of "
        f"its graphs. The record of training and all tables are in `{record_path(bundle.path).name}` beside the bundle's folder."
    )


def _text(manifest: Manifest, author: AuthorFacts) -> str:
    language = f"{author.language} " if author.language else ""
    return f"a pair of {language}texts" if manifest.pairs else f"one {language}text"


def _use(manifest: Manifest, author: AuthorFacts) -> str:
    language = f"Not for texts in languages other than {author.language}. " if author.language else ""
    limits = f"{author.limits.strip()} " if author.limits else ""
    return (
        "## Intended use and limits\n\n"
        f"For texts like those that it was trained and measured on; see below. Not for decisions about people. {language}{limits}"
        f"Every text gets one of the labels {', '.join(manifest.labels)}, even if none of them fits; the probability is then often low. "
        f"{_beside(manifest)}"
        f"A text of more than {manifest.max_tokens} tokens {_long_text(manifest)} unless the caller chooses another truncation."
    )


def _beside(manifest: Manifest) -> str:
    neutral = "`neutral` says that a text has no opinion, `abstain` that the model cannot tell; look at `abstain` first. "
    mixed = "`mixed` says that a text praises and blames, whatever its label. "
    targets = manifest.targets and f"For a target that the text names, it reads at most {manifest.targets.tokens} tokens around it. "
    return f"{neutral if manifest.neutral else ''}{mixed if manifest.mixed else ''}{targets or ''}"


def _long_text(manifest: Manifest) -> str:
    windows = manifest.windows or WindowsSpec.default(manifest.max_tokens)
    rule = windows.combine.replace("_", " ")
    return {
        "refuse": "is refused",
        "head": "is classified by its first tokens",
        "head_tail": "is classified by its first and its last tokens",
        "windows": f"is read in overlapping windows, whose answers are combined by the rule {rule},",
    }[manifest.default_truncation]


def _data(provenance: Facts, author: AuthorFacts) -> str:
    lines = [f"- **{source.name}**: {source.use}" for source in author.sources] or _files(provenance.get("training"))
    lines = lines or ["The checkpoint has no record of its training."]
    licences = f"Licences: {author.licences.strip()} " if author.licences else ""
    return "\n".join(["## Training data and licences", "", *lines, "", f"{licences}No training text is in this bundle."])


def _files(training: Json) -> list[str]:
    """Return a line that names the files of all stages of training; none without a record."""
    names: dict[str, None] = {}
    stage = _facts(training)
    while stage:
        files = stage.get("files")
        names |= {f"`{_facts(file).get('file')}`": None for file in (files if isinstance(files, list) else [])}
        stage = _facts(stage.get("base_training"))
    return [f"The files of all stages: {', '.join(names)}."] if names else []


def _facts(value: Json) -> Facts:
    return value if isinstance(value, Mapping) else {}
