"""The answer to a row of input, as ``classify`` and ``explain`` write it: a JSON object, or the columns of a table. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sentiment.client import CallFailed, Classification, Result
from sentiment.client.columns import Targeted, Unusable
from sentiment.client.frames import SCORE
from sentiment.client.results import UNDECIDED, Prediction
from sentiment.files.rows import TEXT, Row, Unread, plain
from sentiment.files.tables import Columns

P = TypeVar("P", bound=Prediction)

PAIR = "text_pair"
# Keys of the object that are always the answer's, and those of sentences and targets.
RESULT = ("label", "score", "scores", "abstain", "mixed", "model", "tokens", "truncated", "language_suspect", "early", "error")
SENTENCES, TARGETS = ("sentences", "sentences_total"), ("targets",)
# The code of a row that cannot be read, beside those of gRPC.
UNREADABLE = "UNREADABLE"


@dataclass(frozen=True, slots=True)
class Asked:
    """A row of input: its text, its second text or None, the input's columns that are kept beside the answer, and its targets."""

    text: str | Unread
    pair: str | Unread | None
    kept: Mapping[str, object]
    targets: tuple[str, ...] | Unread = ()


@dataclass(frozen=True, slots=True)
class Names:
    """Which columns of the input hold the texts and their targets, and under which names the input's columns are kept.

    ``pair``: empty for none. ``keeps``: False to keep none. ``sentences``: whether they are asked for. ``targets``: of every text, or the
    column of the targets of each; empty if none are asked for. ``answer``: the keys of the object that are always the answer's.
    """

    text: str
    pair: str
    keeps: bool
    labels: Sequence[str]
    sentences: bool = False
    targets: tuple[str, ...] | str = ()
    answer: tuple[str, ...] = RESULT
    _names: dict[str, str | None] = field(default_factory=dict)

    @property
    def result(self) -> tuple[str, ...]:
        """The keys of the object that tell the answer."""
        return (*self.answer, *(SENTENCES if self.sentences else ()), *(TARGETS if self.targets else ()))

    @property
    def of_answer(self) -> frozenset[str]:
        """The keys of the object, and the columns of a table, that are the answer's. An input column of such a name gets another one."""
        pair = (PAIR,) if self.pair else ()
        return frozenset({TEXT, *pair, *self.result, "model_digest", *(f"{SCORE}{label}" for label in self.labels)})

    def asked_in(self, answer: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
        """The part of an object that is not the answer, with the names of its targets."""
        targets = {"targets": [one["target"] for one in answer["targets"]]} if self.targets and "targets" in answer else {}
        return {name: value for name, value in answer.items() if name not in self.result} | targets

    def kept(self, columns: Collection[str]) -> dict[str, str]:
        """The columns of the input that are kept beside the answer, with their names there, the same for all rows."""
        for name in columns:
            if name not in self._names:
                self._names[name] = self._name(name, columns)
        return {name: new for name in columns if (new := self._names[name]) is not None}

    def _name(self, name: str, columns: Collection[str]) -> str | None:
        """None if the answer has the column itself."""
        if not self.keeps or name == self.text == TEXT or name == self.pair == PAIR:
            return None
        taken = {*self.of_answer, *self._names.values(), *(other for other in columns if other != name)}
        while name in taken:
            name = f"input_{name}"
        return name

    def asked(self, row: Row) -> Asked:
        """What is asked about a row."""
        kept = {name: plain(row.values[column]) for column, name in self.kept(row.values).items()}
        targets = row.strings(self.targets) if isinstance(self.targets, str) else self.targets
        return Asked(row.text(self.text), row.text(self.pair) if self.pair else None, kept, targets)


def decided(result: Result, threshold: float, undecided: bool) -> Result:
    """The result in which an answer, also to a sentence or towards a target, whose score is below the threshold abstains.

    ``undecided``: whether the label of what abstains is UNDECIDED.
    """
    # Of most runs nothing changes, and they may have a million answers.
    if isinstance(result, CallFailed) or not (threshold or undecided):
        return result

    def one(answer: P) -> P:
        decision = answer.decision(threshold)
        return replace(answer, abstain=decision == UNDECIDED, label=decision if undecided else answer.label)

    targets = {name: one(answer) for name, answer in result.targets.items()}
    return replace(one(result), sentences=tuple(map(one, result.sentences)), targets=targets)


def answer_of(asked: Asked, result: Result) -> dict[str, Any]:  # Any: JSON
    """The JSON object of a row: the input's columns, the text, and its answer or the error that it has instead."""
    question = question_of(asked)
    if isinstance(result, Classification):
        return question | result.to_json(question[TEXT])
    return question | {"error": dict(zip(("code", "message"), reason_of(asked, result), strict=True))}


def question_of(asked: Asked, *, targets: bool = False) -> dict[str, Any]:  # Any: JSON
    """The part of the object that is not the answer; null for a text that cannot be read. ``targets``: with the names of its targets."""
    text, pair = (None if isinstance(found, Unread) else found for found in (asked.text, asked.pair))
    named = {"targets": asked.targets} if targets and isinstance(asked.targets, tuple) and asked.targets else {}
    return {**asked.kept, TEXT: text, **({} if asked.pair is None else {PAIR: pair}), **named}


def item_of(asked: Asked) -> Any:  # Any: what classify_all takes
    """What is sent of a row. One that cannot be read takes its place among the results."""
    if isinstance(asked.text, Unread):
        return Unusable(asked.text.reason)
    if isinstance(asked.pair, Unread):
        return Unusable(asked.pair.reason, PAIR)
    if isinstance(asked.targets, Unread):
        return Unusable(asked.targets.reason, "targets")
    text = asked.text if asked.pair is None else (asked.text, asked.pair)
    return Targeted(text, asked.targets) if asked.targets else text


def reason_of(asked: Asked, failed: CallFailed) -> tuple[str, str]:
    """Code and message of why a row has no answer, without its index in the client's call."""
    for part in (asked.text, asked.pair, asked.targets):
        if isinstance(part, Unread):
            return UNREADABLE, part.reason
    if not failed.violations:
        return failed.code.name, failed.message
    wrong = failed.violations[0]
    return failed.code.name, f"{wrong.field if wrong.field.startswith('targets') else TEXT}: {wrong.description}"


def table_row(answer: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """A JSON object as a row of a table. Its columns have the names that ``Results.to_pandas`` gives them."""
    flat = {name: value for name, value in answer.items() if name not in ("scores", "model", "error")}
    flat |= {f"{SCORE}{label}": score for label, score in answer.get("scores", {}).items()}
    if model := answer.get("model"):
        flat |= {"model": f"{model['name']}/{model['version']}", "model_digest": model["digest"]}
    if error := answer.get("error"):
        flat["error"] = f"{error['code']}: {error['message']}"
    return flat


def answer_columns(names: Names) -> dict[str, type]:
    """The columns of a table that are an answer's, and their types."""
    parts = ({"sentences": str, "sentences_total": int} if names.sentences else {}) | ({"targets": str} if names.targets else {})
    return {"label": str, "score": float, "abstain": bool, "mixed": bool, **score_columns(names), "tokens": int, "truncated": bool,
            "language_suspect": bool, "early": bool, **parts, "model": str, "model_digest": str, "error": str}  # fmt: skip


def score_columns(names: Names) -> dict[str, type]:
    """The columns of the scores."""
    return {f"{SCORE}{label}": float for label in names.labels}


def table_columns(answers: Iterable[Mapping[str, Any]], columns: Iterable[str], names: Names, last: Mapping[str, type]) -> Columns:
    """The columns of a table and their types: those of the input that are kept, then the answer's, whether or not a row has them.

    Args:
        answers: all rows; their further keys are kept columns, too.
        columns: the names under which the input's columns are kept, in order.
        names: of the input.
        last: the columns of the answer.
    """
    first = {TEXT: str, **({PAIR: str} if names.pair else {})}
    kept: dict[str, type | None] = dict.fromkeys(columns)
    for answer in answers:
        kept.update(dict.fromkeys(name for name in answer if name not in names.of_answer))
    return {**kept, **first, **last}
