"""How far a bundle's explanations can be trusted, as its maker measured it: the manifest's section ``explanations``."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

# Methods, and ways of erasing words, that a manifest may tell of.
METHODS_MAX = 64
OPERATORS_MAX = 8

_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
# Differences of two probabilities.
_Change = Annotated[float, Field(ge=-1, le=1)]


class _Part(BaseModel):
    # As all of the manifest.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False, protected_namespaces=())


class OverRandom(_Part):
    """Comprehensiveness less that of random orders: the mean over texts and its interval of 95 %."""

    mean: _Change
    low: _Change
    high: _Change

    @model_validator(mode="after")
    def _ordered(self) -> "OverRandom":
        if not self.low <= self.mean <= self.high:
            raise ValueError(f"the mean is {self.mean}; its interval is {self.low} to {self.high}")
        return self


class MethodTrust(_Part):
    """One way of ranking words, over all texts of the study.

    Comprehensiveness is the calibrated probability of the predicted label that is lost with the words ranked first, higher is better;
    sufficiency what is lost with them alone, lower is better: means over shares of 1, 5, 10, 20 and 50 % (DeYoung et al. 2020,
    "ERASER"), by the first way of erasing.
    """

    method: _Name
    kind: str = Field(pattern="^(attribution|attention|baseline)$")
    # By way of erasing, in the order of ``ExplanationsMeasured.operators``.
    over_random: dict[_Name, OverRandom] = Field(min_length=1, max_length=OPERATORS_MAX)
    # Above 0 with the whole interval, by every way of erasing.
    better_than_random: bool
    comprehensiveness: _Change
    sufficiency: _Change
    # Texts whose own evidence could tell: not flat, and compared with 19 random sets of words.
    tested: int = Field(0, ge=0)
    # The share of those whose evidence says better than random; None if there are none.
    better_of_tested: float | None = Field(None, ge=0, le=1)
    # Mean Spearman correlation of the values before and after a change of the text that means nothing, by change.
    stability: dict[_Name, Annotated[float, Field(ge=-1, le=1)]] = Field({}, max_length=METHODS_MAX)
    # Forward rows a text, one of the explain graph counted as 3; and milliseconds on one core, the median.
    rows: float = Field(ge=0)
    ms: float = Field(ge=0)

    @model_validator(mode="after")
    def _agree(self) -> "MethodTrust":
        clear = all(found.low > 0 for found in self.over_random.values())
        if self.better_than_random != clear:
            lows = ", ".join(f"{found.low} by {operator}" for operator, found in self.over_random.items())
            raise ValueError(f"{self.method}: better_than_random is {self.better_than_random}; the intervals begin at {lows}")
        if (self.better_of_tested is None) != (self.tested == 0):
            raise ValueError(f"{self.method}: better_of_tested is {self.better_of_tested}; tested is {self.tested}")
        return self


class ExplanationsMeasured(_Part):
    """A study of the bundle's explanations on ``texts`` texts of ``dataset``.

    ``default_method``: the attribution that is given where none is asked for. A service that does not know it, or lacks the graph that
    it needs, gives its own first one; so it does with texts of more than ``words_max`` words, the longest that was studied.
    """

    default_method: _Name
    words_max: int = Field(gt=0, lt=2**31)
    dataset: str = Field(min_length=1, max_length=200)
    texts: int = Field(gt=0, lt=2**31)
    # Ways of erasing words; a method counts as better only if it is by all of them.
    operators: tuple[_Name, ...] = Field(min_length=1, max_length=OPERATORS_MAX, strict=False)
    trust: tuple[MethodTrust, ...] = Field(min_length=1, max_length=METHODS_MAX, strict=False)

    @model_validator(mode="after")
    def _agree(self) -> "ExplanationsMeasured":
        names = [found.method for found in self.trust]
        if len(set(names)) != len(names):
            raise ValueError(f"methods repeat: {names}")
        attributions = [found.method for found in self.trust if found.kind == "attribution"]
        if self.default_method not in attributions:
            raise ValueError(f"default_method is {self.default_method}; the attributions measured are {', '.join(attributions) or 'none'}")
        for found in self.trust:
            if set(found.over_random) != set(self.operators) or found.tested > self.texts:
                raise ValueError(
                    f"{found.method}: has {', '.join(found.over_random)} and {found.tested} tested texts; "
                    f"the study has {', '.join(self.operators)} and {self.texts} texts"
                )
        return self
