"""Records hold nothing about the machine."""

from pathlib import Path

from sentiment_models.export.provenance import Json, distinct_names, library_versions, without_folders


def test_files_of_one_name_get_as_few_folders_as_needed() -> None:
    paths = [Path("/home/x/sst2/train.tsv.gz"), Path("/home/x/imdb/train.tsv.gz"), Path("/home/x/amazon/books.tsv.gz")]

    assert distinct_names(paths) == ["sst2/train.tsv.gz", "imdb/train.tsv.gz", "books.tsv.gz"]


def test_a_file_given_twice_keeps_its_short_name() -> None:
    assert distinct_names([Path("/a/x.tsv"), Path("/a/x.tsv")]) == ["x.tsv", "x.tsv"]


def test_absolute_paths_lose_their_folders_at_any_depth() -> None:
    record: Json = {"recipe": {"base": "/home/x/minilm", "sources": ["/data/sst2/train.tsv:3", "./y.tsv"]}, "/tmp/key": 1.5, "rows": None}

    assert without_folders(record) == {"recipe": {"base": "minilm", "sources": ["train.tsv:3", "y.tsv"]}, "key": 1.5, "rows": None}


def test_a_name_with_its_organisation_stays_whole() -> None:
    assert without_folders("sentence-transformers/all-MiniLM-L6-v2") == "sentence-transformers/all-MiniLM-L6-v2"


def test_versions_are_those_of_the_release_not_of_the_build() -> None:
    versions = library_versions()

    assert {"torch", "transformers", "onnx", "onnxruntime"} <= versions.keys()
    assert not any("+" in version for version in versions.values())
