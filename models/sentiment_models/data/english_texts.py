"""The public texts of the default bundle, as ``train`` and ``label`` take them, less those that are kept back.

    python -m sentiment_models.data.english_texts DATA OUT

Kept back are, by a hash of their letters and digits, the shares ``KEPT`` of each source. No model of the bundle learns from them, labels
them for another, is calibrated with them or chosen by them. A phrase of a sentence that is kept back is left out too. ``OUT/kept`` has
them, a file a domain.
"""

import argparse
import gzip
import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# The share of each source that is kept back: at least 3,000 texts of tweets, forum, film sentences, film reviews and products.
KEPT = {
    "tweets": 0.07,
    "forum": 0.095,
    "support": 0.05,
    "sst": 0.12,
    "imdb": 0.14,
    "unlabelled": 0.06,
    "products": 0.13,
    "targets": 0.1,
}
PRODUCTS = ("apparel", "baby", "camera_photo", "health_personal_care", "music", "sports_outdoors", "video")
THREE = {"very negative": "negative", "very positive": "positive", "0": "negative", "1": "positive"}
POLARITIES = frozenset(("negative", "neutral", "positive"))
# How often a pair has a target that its text does not name, for each that it names.
UNNAMED = 0.25
# SST's phrases below this length are fragments.
LONG_WORDS = 10


def key_of(text: str) -> str:
    """Return the letters and digits of a text in lower case: copies that differ in case, spacing or punctuation have one key."""
    return re.sub(r"[\W_]+", "", text.lower())


def is_kept(text: str, share: float) -> bool:
    """Whether a text is kept back: its hash is among the lowest ``share`` of all hashes."""
    return int.from_bytes(hashlib.sha256(key_of(text).encode()).digest()[:4], "big") < share * 2**32


def prepare(data: Path, out: Path) -> dict[str, int]:
    """Write the files; returns the number of texts in each.

    Args:
        data: tweets, forum, support, sst5, sst2, mr, imdb, amazon, products, aspects and headlines, as .tsv.gz of ``label<TAB>text``,
            .txt.gz, and .jsonl.gz of ``{"text", "aspects": [{"term", "polarity"}]}``.
        out: a folder; made if it does not exist.
    """
    tweets = {name: _labelled(data / f"{name}/train.tsv.gz") for name in ("tweets", "forum", "support")}
    sst5, mr = _labelled(data / "sst5/train.tsv.gz"), _labelled(data / "mr/train.tsv.gz")
    phrases = _labelled(data / "sst2/train.tsv.gz")
    imdb, dvd = _labelled(data / "imdb/train.tsv.gz"), _labelled(data / "amazon/dvd.tsv.gz")
    products = {name: _labelled(data / f"products/{name}_train.tsv.gz") for name in PRODUCTS}
    goods = [{**row, "domain": name} for name, rows in products.items() for row in rows]
    reviews = [{"text": line} for line in _lines(data / "imdb/unlabelled.txt.gz")]
    bare = [{"text": line} for line in _lines(data / "products/unlabelled.txt.gz")]
    aspects = [
        row for name in ("restaurants_mixed", "restaurants", "laptops") for row in _aspects(data / f"aspects/{name}_train.jsonl.gz", name)
    ]
    headlines = list(_aspects(data / "headlines/train.jsonl.gz", "headlines"))

    shares = {
        **{name: (rows, KEPT[name]) for name, rows in tweets.items()},
        "sst5": (sst5, KEPT["sst"]),
        "mr": ([{"text": row["text"]} for row in mr], KEPT["sst"]),
        "imdb": (imdb, KEPT["imdb"]),
        "dvd": (dvd, 0.0),
        "products": (goods, KEPT["products"]),
        "reviews": (reviews, KEPT["unlabelled"]),
        "goods": (bare, KEPT["products"]),
        "targets": (aspects, KEPT["targets"]),
        "headlines": (headlines, KEPT["targets"]),
    }
    kept = {name: [row for row in rows if is_kept(row["text"], share)] for name, (rows, share) in shares.items()}
    taken = {key_of(row["text"]) for rows in kept.values() for row in rows}
    files = {name: [row for row in rows if key_of(row["text"]) not in taken] for name, (rows, _) in shares.items()}
    wholes = "\n".join(_words(row["text"]) for name in ("sst5", "mr") for row in kept[name])
    phrases = [row for row in phrases if _words(row["text"]) not in wholes]
    files["sst2_long"] = [row for row in phrases if len(row["text"].split()) >= LONG_WORDS]
    files["sst2_short"] = [row for row in phrases if len(row["text"].split()) < LONG_WORDS]
    for name in ("targets", "headlines"):
        files[name], kept[name] = (list(_pairs(rows)) for rows in (files[name], kept[name]))
    (out / "kept").mkdir(parents=True, exist_ok=True)
    for folder, found in ((out, files), (out / "kept", kept)):
        for name, rows in found.items():
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return {name: len(rows) for name, rows in files.items()} | {f"kept/{name}": len(rows) for name, rows in kept.items()}


def _labelled(path: Path) -> list[Row]:
    found = (line.partition("\t") for line in _lines(path))
    return [{"label": THREE.get(label, label), "text": text} for label, _, text in found]


def _aspects(path: Path, domain: str) -> Iterator[Row]:
    for line in _lines(path):
        row = json.loads(line)
        aspects = [(one["term"], one["polarity"]) for one in row["aspects"] if one["polarity"] in POLARITIES]
        yield {"text": row["text"], "aspects": aspects, "domain": domain}


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
            if rng.random() < UNNAMED and key_of(other) not in key_of(row["text"]):
                yield {"label": "neutral", "text": row["text"], "text_pair": other, "domain": f"{row['domain']}, unnamed"}


def _words(text: str) -> str:
    words = " ".join(re.split(r"[\W_]+", text.lower())).strip()
    return f" {words} "


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from (line.rstrip("\n") for line in stream)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m sentiment_models.data.english_texts", description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args(None if arguments is None else list(arguments))
    for name, count in prepare(given.data, given.out).items():
        print(f"{name}\t{count}")


if __name__ == "__main__":
    main()
