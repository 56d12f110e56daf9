"""Records hold nothing about the machine."""

from pathlib import Path

import pytest

from sentiment_models.export.provenance import Json, distinct_names, library_versions, without_folders


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (
            ["/home/x/sst2/train.tsv.gz", "/home/x/imdb/train.tsv.gz", "/y/books.tsv"],
            ["sst2/train.tsv.gz", "imdb/train.tsv.gz", "books.tsv"],
        ),
        (["/a/x.tsv", "/a/x.tsv"], ["x.tsv", "x.tsv"]),
    ],
    ids=["one name in two folders", "one file twice"],
)
def test_files_get_as_few_folders_as_distinct_names_need(paths: list[str], names: list[str]) -> None:
    assert distinct_names([Path(path) for path in paths]) == names


def test_absolute_paths_lose_their_folders_at_any_depth() -> None:
    record: Json = {"recipe": {"base": "/home/x/minilm", "sources": ["/data/sst2/train.tsv:3", "./y.tsv"]}, "/tmp/key": 1.5, "rows": None}

    assert without_folders(record) == {"recipe": {"base": "minilm", "sources": ["train.tsv:3", "y.tsv"]}, "key": 1.5, "rows": None}


def test_a_name_with_its_organisation_stays_whole() -> None:
    assert without_folders("sentence-transformers/all-MiniLM-L6-v2") == "sentence-transformers/all-MiniLM-L6-v2"


def test_versions_are_those_of_the_release_not_of_the_build() -> None:
    versions = library_versions()

    assert {"torch", "transformers", "onnx", "onnxruntime"} <= versions.keys()
    assert not any("+" in version for version in versions.values())
