"""What an evaluation found, as ``evaluate --json`` writes it and the model card and the manifest read it."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sentiment.model.bundle import Manifest
from sentiment_models.errors import ModelsError


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Measurement(_Part):
    """Figures of one labelled file. The shares are from 0 to 1; ``truncated`` and ``abstained`` count texts."""

    accuracy: float
    macro_f1: float
    ece: float
    rows: int = Field(gt=0)
    tokens: int
    truncated: int
    abstained: int
    core_ms_per_text: float
    texts_per_s: float
    sha256: str


class GraphMeasured(_Part):
    """Which graph it was."""

    file: str
    precision: str
    sha256: str


class Evaluation(_Part):
    """Figures of one graph of one bundle, by data set."""

    bundle: str
    graph: GraphMeasured
    temperature: float
    threads: int
    datasets: dict[str, Measurement] = Field(min_length=1)

    def check_of(self, manifest: Manifest) -> None:
        """Refuse to stand for another bundle, or for this one before it was exported anew.

        Raises:
            ModelsError: says what differs.
        """
        file = manifest.files.get(self.graph.file)
        if file is None or file.sha256 != self.graph.sha256:
            known = "none" if file is None else f"one with SHA-256 {file.sha256[:12]}"
            raise ModelsError(f"the evaluation is of a {self.graph.file} with SHA-256 {self.graph.sha256[:12]}; the bundle has {known}")
        if self.temperature != manifest.calibration.temperature:
            raise ModelsError(f"the evaluation has temperature {self.temperature}; the bundle has {manifest.calibration.temperature}")

    def table(self) -> str:
        """Lay the figures out for a terminal."""
        width = max(len(name) for name in self.datasets)
        lines = [
            f"{self.bundle}, {self.graph.precision}, {self.threads} threads",
            f"{'':{width}}  accuracy  macro F1     ECE  abstained    rows  core-ms/text  texts/s",
        ]
        for name, one in self.datasets.items():
            lines.append(
                f"{name:{width}} {one.accuracy:9.4f} {one.macro_f1:9.4f} {one.ece:7.4f} {one.abstained:10,} {one.rows:7,}"
                f" {one.core_ms_per_text:13.2f} {one.texts_per_s:8,.0f}"
            )
        return "\n".join(lines)


def read_evaluation(path: Path) -> Evaluation:
    """Read what ``evaluate --json`` wrote.

    Raises:
        ModelsError: it is something else.
    """
    try:
        return Evaluation.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ModelsError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ModelsError(f"{path}: not an evaluation: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
