"""The public texts of the default bundle, less those that are kept back from it. docs/models/prepare.md has the split.

A text is kept back by the hash of its letters and digits, so copies that differ in case, spacing or punctuation are, too, whatever file
they come from. The phrases of a sentence that is kept back are, too. Knows nothing of models.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentiment_models.data.carving import letters_of, words_of
from sentiment_models.data.labelled import LABEL, PLAIN
from sentiment_models.data.text_files import lines, tabbed
from sentiment_models.errors import BadData

Row = dict[str, Any]
"""A line of a .jsonl file. Any: texts, and lists of aspects."""

KEPT_FOLDER = "kept"
# The share of each file that is kept back: at least 3,000 texts of tweets, forum, film sentences (SST's with their phrases), film reviews
# and products.
KEPT = {
    "tweets": 0.07,
    "forum": 0.095,
    "support": 0.05,
    "sst5": 0.12,
    "mr": 0.12,
    "imdb": 0.14,
    "dvd": 0.0,
    "products": 0.13,
    "reviews": 0.06,
    "goods": 0.13,
    "targets": 0.1,
    "headlines": 0.1,
}
PRODUCTS = ("apparel", "baby", "camera_photo", "health_personal_care", "music", "sports_outdoors", "video")
ASPECTS = ("restaurants_mixed", "restaurants", "laptops")
NEGATIVE, NEUTRAL, POSITIVE, MIXED = "negative", "neutral", "positive", "mixed"
THREE = {"very negative": NEGATIVE, "very positive": POSITIVE, "0": NEGATIVE, "1": POSITIVE}
# The fourth one of SemEval, conflict, is not an answer towards a target.
POLARITIES = frozenset((NEGATIVE, NEUTRAL, POSITIVE))
# How often a pair has a target that its text does not name, for each that it names.
UNNAMED = 0.25
# SST's phrases below this length are fragments.
LONG_WORDS = 10


def is_kept(text: str, share: float) -> bool:
    """Whether a text is kept back: its hash is among the lowest ``share`` of all hashes."""
    return int.from_bytes(hashlib.sha256(letters_of(text).encode()).digest()[:4], "big") < share * 2**32


def prepare(data: Path) -> dict[str, list[Row]]:
    """Return the rows of each file to be, by its name without the ending: those to learn from, and in KEPT_FOLDER those that are kept back.

    Args:
        data: a folder with tweets, forum, support, sst5, sst2, mr, imdb, amazon, products, aspects and headlines, as .tsv.gz of
            ``label<TAB>text``, .txt.gz, and .jsonl.gz of ``{"text", "aspects": [{"term", "polarity"}]}``.

    Raises:
        BadData: a file cannot be used. Names file and line.
    """
    sources = _sources(data)
    kept = {name: [row for row in rows if is_kept(row["text"], KEPT[name])] for name, rows in sources.items()}
    taken = {letters_of(row["text"]) for rows in kept.values() for row in rows}
    files = {name: [row for row in rows if letters_of(row["text"]) not in taken] for name, rows in sources.items()}
    sentences = "\n".join(words_of(row["text"]) for name in ("sst5", "mr") for row in kept[name])
    files |= {"sst2_long": [], "sst2_short": []}
    kept["sst2"] = []
    for row in _labelled(data / "sst2/train.tsv.gz"):
        is_long = len(row["text"].split()) >= LONG_WORDS
        side = kept["sst2"] if words_of(row["text"]) in sentences else files["sst2_long" if is_long else "sst2_short"]
        side.append(row)
    for part in (files, kept):
        part["aspects_whole"] = list(_wholes(part["targets"]))
        part.update({name: list(_pairs(part[name])) for name in ("targets", "headlines")})
    return {**files, **{f"{KEPT_FOLDER}/{name}": rows for name, rows in kept.items()}}


def _sources(data: Path) -> dict[str, list[Row]]:
    """The rows of each file to be, those that are kept back among them, by the names of KEPT."""
    return {
        **{name: _labelled(data / f"{name}/train.tsv.gz") for name in ("tweets", "forum", "support", "sst5")},
        # Its labels are of whole reviews.
        "mr": [{"text": row["text"]} for row in _labelled(data / "mr/train.tsv.gz")],
        "imdb": _labelled(data / "imdb/train.tsv.gz"),
        "dvd": _labelled(data / "amazon/dvd.tsv.gz"),
        "products": [{**row, "domain": name} for name in PRODUCTS for row in _labelled(data / f"products/{name}_train.tsv.gz")],
        "reviews": _unlabelled(data / "imdb/unlabelled.txt.gz"),
        "goods": _unlabelled(data / "products/unlabelled.txt.gz"),
        "targets": [row for name in ASPECTS for row in _aspects(data / f"aspects/{name}_train.jsonl.gz", name)],
        "headlines": list(_aspects(data / "headlines/train.jsonl.gz", "headlines")),
    }


def _labelled(path: Path) -> list[Row]:
    return [{"label": THREE.get(label, label), "text": text} for _, label, text in tabbed(path, LABEL, PLAIN)]


def _unlabelled(path: Path) -> list[Row]:
    return [{"text": line} for _, line in lines(path, PLAIN)]


def _aspects(path: Path, domain: str) -> Iterator[Row]:
    for place, line in lines(path, PLAIN):
        try:
            row = json.loads(line)
            aspects = [(one["term"], one["polarity"]) for one in row["aspects"] if one["polarity"] in POLARITIES]
            yield {"text": row["text"], "aspects": aspects, "domain": domain}
        except (ValueError, KeyError, TypeError) as error:
            wanted = '{"text", "aspects": [{"term", "polarity"}]}'
            raise BadData(f"{path}: {place}: expected {wanted}, got {line[:80]!r}") from error


def _wholes(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Whole texts, labelled by the signs of their targets. A text whose targets all have both signs at once is left out."""
    for row in rows:
        signs = {polarity for _, polarity in row["aspects"]}
        polar = signs - {NEUTRAL}
        if signs:
            label = MIXED if len(polar) > 1 else next(iter(polar), NEUTRAL)
            yield {"label": label, "text": row["text"], "domain": row["domain"]}


def _pairs(rows: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Pairs of text and target; some with a target that the text does not name, which is neutral."""
    terms = [term for row in rows for term, _ in row["aspects"]]
    rng = random.Random("targets")  # noqa: S311 - a sample
    for row in rows:
        signs: dict[str, set[str]] = {}
        for term, polarity in row["aspects"]:
            signs.setdefault(term, set()).add(polarity)
        # A term with two polarities has two mentions that the pair cannot tell apart.
        named = [(term, next(iter(its))) for term, its in signs.items() if len(its) == 1]
        for term, polarity in named:
            yield {"label": polarity, "text": row["text"], "text_pair": term, "domain": row["domain"]}
            other = rng.choice(terms)
            if rng.random() < UNNAMED and letters_of(other) not in letters_of(row["text"]):
                yield {"label": NEUTRAL, "text": row["text"], "text_pair": other, "domain": f"{row['domain']}, unnamed"}
