"""The record of a bundle: the measurements that its card is made from, as JSON beside its folder."""

from collections.abc import Collection
from pathlib import Path

from sentiment.model.bundle import Manifest, load_bundle
from sentiment_models.errors import ModelsError
from sentiment_models.evaluation.findings import Evaluation
from sentiment_models.explanations.findings import Findings
from sentiment_models.explanations.record import check_of
from sentiment_models.explanations.training_findings import TrainingFindings
from sentiment_models.stored import Stored, stored


class Record(Stored):
    """Measurements of one export of a bundle.

    ``evaluations``: of its graphs, by ``evaluate``. ``explanations``: by ``evaluate --explanations``. ``attention_tests``: of small
    encoders, not of the bundle.
    """

    evaluations: tuple[Evaluation, ...] = ()
    explanations: Findings | None = None
    attention_tests: TrainingFindings | None = None

    def check_of(self, manifest: Manifest) -> None:
        """Check that everything was measured on this export.

        Raises:
            ModelsError: an evaluation or the study belongs to another export, or the study has another default method.
        """
        for evaluation in self.evaluations:
            evaluation.check_of(manifest)
        found, served = self.explanations, manifest.explanations
        if found is None:
            return
        check_of(found, manifest)
        if served is not None and found.default_method != served.default_method:
            raise ModelsError(
                f"the findings have default method {found.default_method}; the bundle has {served.default_method}. Run evaluate "
                f"--explanations again with --record --default {served.default_method}; with the same --resume file this is quick"
            )


NOTHING = Record()


def record_path(bundle: Path) -> Path:
    """Return the path of a bundle's record: next to its folder, never in it."""
    whole = bundle.resolve()
    return whole.with_name(whole.name + ".record.json")


def read_record(bundle: Path, without: Collection[str] = ()) -> Record:
    """Read the record of a bundle but for the fields ``without``; an empty one if there is none.

    Raises:
        ModelsError: another version wrote it, it is damaged, or something in it was measured on another bundle.
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    path = record_path(bundle)
    if not path.exists():
        return NOTHING
    record = stored(path, Record, "card")
    kept = Record(**{name: value for name, value in record if name not in without})
    try:
        kept.check_of(load_bundle(bundle, card=False).manifest)
    except ModelsError as error:
        raise ModelsError(f"{path}: {error}. Measure that again, or delete this file") from error
    return kept
