"""How reliable a bundle's explanations are, as measured by its maker: the section ``explanations`` of the manifest."""

from typing import Annotated

from pydantic import Field, model_validator

from sentiment.model.section import Section
from sentiment.model.shown import Shown

# Limits of a manifest: explanation methods, and ways of erasing words.
METHODS_MAX = 64
OPERATORS_MAX = 8

_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
# Differences of two probabilities.
_Change = Annotated[float, Field(ge=-1, le=1)]


class OverRandom(Section):
    """Comprehensiveness minus that of random orders: the mean over texts and its 95 % interval."""

    mean: _Change
    low: _Change
    high: _Change

    @model_validator(mode="after")
    def _ordered(self) -> "OverRandom":
        if not self.low <= self.mean <= self.high:
            raise ValueError(f"the mean {self.mean} is not within its interval, {self.low} to {self.high}")
        return self


class MethodTrust(Section):
    """Measurements of one method of ranking words, over all texts of the study.

    Comprehensiveness is the loss of calibrated probability of the predicted label when the top words are erased; higher is better.
    Sufficiency is the loss when only the top words are kept; lower is better. Both are means over the top 1, 5, 10, 20 and 50 % of words
    (DeYoung et al. 2020, "ERASER"), with the first way of erasing.
    """

    method: _Name
    kind: str = Field(pattern="^(attribution|attention|baseline)$")
    # By way of erasing, in the order of ``ExplanationsMeasured.operators``.
    over_random: dict[_Name, OverRandom] = Field(min_length=1, max_length=OPERATORS_MAX)
    # The whole interval is above 0, for every way of erasing, and the study had enough texts to tell.
    better_than_random: bool
    comprehensiveness: _Change
    sufficiency: _Change
    # Texts that could be tested one by one: their values are not flat, and they were compared with 19 random sets of words.
    tested: int = Field(0, ge=0)
    # The fraction of these texts for which the method is better than random; None if there are none.
    better_of_tested: float | None = Field(None, ge=0, le=1)
    # Mean Spearman correlation of the values before and after a change of the text that keeps its meaning, by kind of change.
    stability: dict[_Name, Annotated[float, Field(ge=-1, le=1)]] = Field({}, max_length=METHODS_MAX)
    # Cost of a text: forward rows (a row of the explain graph counts as 3), and the median of milliseconds on one core.
    rows: float = Field(ge=0)
    ms: float = Field(ge=0)

    @model_validator(mode="after")
    def _agree(self) -> "MethodTrust":
        # A study of few texts shows nothing, whatever its intervals.
        if self.better_than_random and not all(found.low > 0 for found in self.over_random.values()):
            lows = ", ".join(f"{found.low} by {operator}" for operator, found in self.over_random.items())
            raise ValueError(f"{self.method}: better_than_random is true, but the intervals begin at {lows}")
        if (self.better_of_tested is None) != (self.tested == 0):
            raise ValueError(f"{self.method}: better_of_tested is {self.better_of_tested}, but tested is {self.tested}")
        return self


class ExplanationsMeasured(Section):
    """A study of the bundle's explanations on ``texts`` texts of ``dataset``.

    ``default_method``: the attribution method for requests that name none. A service uses its own first method instead if it does not
    know this one or lacks the graph for it, and two_step_shapley for a text of more than ``words_max`` words, the longest of the study.
    ``bundle``: the bundle that was studied, if it was not this one but the one that this one was fine-tuned from.
    """

    default_method: _Name
    words_max: int = Field(gt=0, lt=2**31)
    dataset: Shown
    texts: int = Field(gt=0, lt=2**31)
    # Ways of erasing words. A method counts as better than random only if it is with all of them.
    operators: tuple[_Name, ...] = Field(min_length=1, max_length=OPERATORS_MAX, strict=False)
    trust: tuple[MethodTrust, ...] = Field(min_length=1, max_length=METHODS_MAX, strict=False)
    bundle: Shown | None = None

    @property
    def studied(self) -> str:
        """The data set, and the bundle if it was another: for people."""
        return self.dataset if self.bundle is None else f"{self.dataset} (measured on {self.bundle}, before this fine-tuning)"

    @model_validator(mode="after")
    def _agree(self) -> "ExplanationsMeasured":
        names = [found.method for found in self.trust]
        if len(set(names)) != len(names):
            raise ValueError(f"a method is listed twice: {', '.join(names)}")
        attributions = [found.method for found in self.trust if found.kind == "attribution"]
        if self.default_method not in attributions:
            raise ValueError(
                f"default_method must be a measured attribution ({', '.join(attributions) or 'none'}), got {self.default_method}"
            )
        for found in self.trust:
            if set(found.over_random) != set(self.operators) or found.tested > self.texts:
                raise ValueError(
                    f"{found.method}: has the operators {', '.join(found.over_random)} and {found.tested} tested texts, but "
                    f"the study has the operators {', '.join(self.operators)} and {self.texts} texts"
                )
        return self
