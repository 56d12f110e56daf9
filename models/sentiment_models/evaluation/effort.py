"""The rule of adaptive effort: set on one half of each domain's texts, and proved once on the other half.

Agreement with the full reading needs no labels. The bound is the exact binomial one (Clopper and Pearson 1934), which holds for texts of
the domain whatever the rule (Angelopoulos et al. 2021, "Learn then Test").
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import Classifier, part_of
from sentiment.model.effort import DIFFER_MAX, EffortSpec, Proven, log_odds_of, told
from sentiment.model.tokenizer import Row
from sentiment_models.data.labelled import PLAIN, LabelledReading, read_texts
from sentiment_models.errors import ModelsError
from sentiment_models.evaluation.tables import rounded_up
from sentiment_models.export.inference import Pool, graph_of, load_served, read_all
from sentiment_models.export.manifest import MANIFEST_FILE, read_object, sha256, write_manifest
from sentiment_models.export.provenance import distinct_names, facts

CONFIDENCE = 0.95
# Texts that set the rule and are long enough for it. With fewer it would rest on chance.
PARTED_MIN = 100
# The grid of the threshold, in logits, and a value that no answer has.
STEP, LOG_ODDS_MAX = 0.05, 1e3


@dataclass(frozen=True, slots=True)
class _Answers:
    """Answers to texts. ``tokens``: of full readings. ``log_odds``: of the answers to their parts; minus infinity without one.

    ``differ``: whether the answer to the part is another one.
    """

    tokens: NDArray[np.int64]
    log_odds: NDArray[np.float64]
    differ: NDArray[np.bool_]

    def of(self, places: slice) -> "_Answers":
        """Some of them."""
        return _Answers(self.tokens[places], self.log_odds[places], self.differ[places])

    def least(self, differ_max: float) -> float:
        """The least threshold with which at most this share of the texts gets another answer."""
        most = int(differ_max * len(self.differ) + 1e-9)
        wrong = np.sort(self.log_odds[self.differ])[::-1]
        if len(wrong) <= most:
            return 0.0
        return round(math.ceil(float(wrong[most]) / STEP + 1e-6) * STEP, 2)

    def early(self, log_odds: float) -> NDArray[np.bool_]:
        """The texts of which the part suffices."""
        found: NDArray[np.bool_] = self.log_odds >= log_odds
        return found


@dataclass(frozen=True, slots=True)
class Texts:
    """Files of texts by domain, whose labels are not used, and how they are read.

    ``proof``: what the rule is proved on. Of a domain that is not in it, one half of its texts sets the rule and the other proves it.
    """

    domains: Mapping[str, Sequence[Path]]
    proof: Mapping[str, Sequence[Path]]
    reading: LabelledReading = PLAIN

    def sides(self) -> dict[str, tuple[list[str], list[str]]]:
        """For each domain the texts that set the rule, and those that prove it. Both in the order of a hash, without copies.

        Raises:
            BadData: a file cannot be used.
            ModelsError: there are too few texts.
        """
        read = {domain: self._read(files) for domain, files in self.domains.items()}
        setting = {domain: found if domain in self.proof else found[: len(found) // 2] for domain, found in read.items()}
        proving = {domain: self._read(self.proof.get(domain, ())) or found[len(found) // 2 :] for domain, found in read.items()}
        # A text that set the rule, in any domain, proves nothing.
        known = {text for found in setting.values() for text in found}
        sides = {domain: (setting[domain], [text for text in proving[domain] if text not in known]) for domain in read}
        for domain, (to_set, to_prove) in sides.items():
            if not (to_set and to_prove):
                raise ModelsError(f"{domain}: has {len(to_set)} texts to set the rule and {len(to_prove)} others to prove it; give more")
        return sides

    def _read(self, files: Sequence[Path]) -> list[str]:
        found = {text for file in files for text in read_texts(file, pairs=False, reading=self.reading) if isinstance(text, str)}
        return sorted(found, key=lambda text: hashlib.sha256(text.encode()).digest())

    @property
    def files(self) -> list[Path]:
        """All of them."""
        return [file for some in (self.domains, self.proof) for files in some.values() for file in files]


def measure_effort(bundle: Path, texts: Texts, part: tuple[int, int, int], differ_max: float, threads: int = 0) -> EffortSpec:
    """Set a bundle's rule and prove it.

    Args:
        bundle: the bundle's directory; measured is the graph that is served on this machine.
        texts: of the domains.
        part: the part's first and last tokens, and the tokens that a text must have to be read in parts.
        differ_max: the share of each domain's texts that may get another answer, of those that set the rule.
        threads: threads of the session; 0: the available cores.

    Raises:
        BadData, ModelsError: as in ``Texts.sides``; or the part is not less than its text, or too few texts are read in parts.
        sentiment.errors.BadBundle: the bundle cannot be served on this machine.
    """
    classifier = load_served(bundle)
    spec = EffortSpec(head=part[0], tail=part[1], tokens_min=part[2], log_odds=LOG_ODDS_MAX)
    try:
        spec.check(classifier.manifest.max_tokens)
    except ValueError as error:
        raise ModelsError(str(error)) from error
    proving: dict[str, _Answers] = {}
    least, parted = 0.0, 0
    for domain, (to_set, to_prove) in texts.sides().items():
        found = _answers(classifier, spec, [*to_set, *to_prove], domain, threads)
        setting, proving[domain] = found.of(slice(len(to_set))), found.of(slice(len(to_set), None))
        least, parted = max(least, setting.least(differ_max)), parted + int(np.isfinite(setting.log_odds).sum())
    if parted < PARTED_MIN:
        long = f"have the {part[2]} tokens of --from"
        raise ModelsError(f"{parted} of the texts that set the rule {long}; at least {PARTED_MIN} are needed")
    proven = {domain: _proven(one, spec, least) for domain, one in proving.items()}
    return spec.model_copy(update={"log_odds": least, "proven": proven})


def _answers(classifier: Classifier, spec: EffortSpec, texts: Sequence[str], title: str, threads: int) -> _Answers:
    readings = read_all(classifier, texts)
    parts = {place: part for place, one in enumerate(readings) if isinstance(one, Row) and (part := part_of(one, spec)) is not None}
    wholes = [row for place in parts for row in readings[place].rows]
    with Pool(graph_of(classifier), threads, len(wholes) + len(parts), title) as pool:
        full, early = (pool.run(rows) if rows else [] for rows in (wholes, list(parts.values())))
    log_odds, differ = np.full(len(texts), -math.inf), np.zeros(len(texts), np.bool_)
    for place, whole, part_logits in zip(parts, full, early, strict=True):
        log_odds[place] = log_odds_of(part_logits.tolist(), len(classifier.manifest.labels))
        differ[place] = told(classifier.score(part_logits.tolist())) != told(classifier.score(whole.tolist()))
    return _Answers(np.array([one.tokens for one in readings], np.int64), log_odds, differ)


def _proven(texts: _Answers, spec: EffortSpec, log_odds: float) -> Proven:
    early = texts.early(log_odds)
    differ, count = int((early & texts.differ).sum()), len(early)
    parted = np.isfinite(texts.log_odds)
    computed = spec.part_tokens * parted.sum() + texts.tokens[~early].sum()
    # Rounded up: it is a bound.
    bound = math.ceil(1e5 * upper_bound(differ, count)) / 1e5
    return Proven(texts=count, early=int(early.sum()), differ=differ, bound=bound, cost=round(float(computed / texts.tokens.sum()), 4))


def upper_bound(found: int, of: int, confidence: float = CONFIDENCE) -> float:
    """The exact binomial upper bound of a share of which ``found`` in ``of`` were seen, by bisection."""
    if found >= of:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        logs = [
            math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) + k * math.log(middle) + (of - k) * math.log1p(-middle)
            for k in range(found + 1)
        ]
        low, high = (middle, high) if math.fsum(map(math.exp, logs)) > 1 - confidence else (low, middle)
    return high


def table(spec: EffortSpec) -> str:
    """The rule and its proof for a terminal."""
    lines = [
        f"{spec.head} first and {spec.tail} last tokens of texts from {spec.tokens_min} on; enough from log odds {spec.log_odds} on",
        f"{'domain':20}  texts  early  differ   bound  tokens computed / of full readings",
    ]
    lines += [
        f"{name:20} {one.texts:6,} {one.early / one.texts:6.1%} {one.differ:7,} {rounded_up(one.bound):>7} {one.cost:7.3f}"
        for name, one in spec.proven.items()
    ]
    return "\n".join(lines)


def record_effort(bundle: Path, spec: EffortSpec | None, files: Sequence[Path] = ()) -> None:
    """Write a rule into the manifest with the digests of its files, or remove it. The bundle's digest changes.

    Raises:
        ModelsError: its bound is not proved to be at most DIFFER_MAX, or it saves nothing.
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    for domain, one in () if spec is None else spec.proven.items():
        if one.bound > DIFFER_MAX:
            # With fewer texts none that differs would be too many.
            least = math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - DIFFER_MAX))
            more = "set a stricter rule (--differ), and prove it on other texts"
            if one.texts < least:
                more = f"{one.texts} texts prove it, and it takes at least {least}"
            raise ModelsError(f"{domain}: the bound is {rounded_up(one.bound)}, above {DIFFER_MAX:.0%}: not recorded; {more}")
    if spec is not None and min(one.cost for one in spec.proven.values()) >= 1:
        raise ModelsError("the rule computes no fewer tokens than full readings: not recorded; read only longer texts in parts (--from)")
    load_bundle(bundle)
    whole = read_object(bundle / MANIFEST_FILE)
    whole.pop("effort", None)
    known = {name: fact for name, fact in facts(whole.get("provenance")).items() if name != "effort"}
    if spec is not None:
        whole["effort"] = spec.model_dump()
        known["effort"] = dict(zip(distinct_names(files), map(sha256, files), strict=True))
    write_manifest(bundle, {**whole, "provenance": known})
