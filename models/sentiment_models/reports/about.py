"""What no measurement tells and the author of a card writes down: names, sources, choices."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from pydantic import ConfigDict, Field, ValidationError

from sentiment_models.errors import BadData
from sentiment_models.stored import Stored, problem


class _Part(Stored):
    model_config = ConfigDict(strict=True)


class Source(_Part):
    """Texts that the model learned from: their public name, and what they taught."""

    name: str
    use: str


class AuthorFacts(_Part):
    """Facts for a card. Empty ones are left out of it."""

    # The language of the texts that the bundle is for, such as English.
    language: str = ""
    # One or more sentences on the licences of the training texts.
    licences: str = ""
    # What the model is not for, beyond what every card says.
    limits: str = ""
    # What chose the checkpoints, the calibration and between trials, and so flatters which figures.
    selection: str = ""
    # On which texts the rule of adaptive effort was proved, and what else must be known of its bounds.
    effort: str = ""
    sources: tuple[Source, ...] = Field((), strict=False)
    # Data sets in evaluations that only the record shows, such as texts that were in training.
    omit: tuple[str, ...] = Field((), strict=False)
    # Data sets whose confusion matrices are shown.
    confusion: tuple[str, ...] = Field((), strict=False)
    # Public names by the names of data sets in evaluations.
    names: Mapping[str, str] = {}

    def name(self, dataset: str) -> str:
        """Return the public name of a data set."""
        return self.names.get(dataset, dataset)


def read_about(path: Path) -> AuthorFacts:
    """Read a TOML file whose keys are the fields of ``AuthorFacts``.

    Raises:
        BadData: it cannot be read, or has other keys. Names the first one.
    """
    try:
        return AuthorFacts.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadData(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise BadData(f"{path}: {problem(error)}; the keys are {', '.join(AuthorFacts.model_fields)}") from error
    except ValueError as error:
        raise BadData(f"{path}: not TOML in UTF-8: {error}") from error
