"""The tiny bundle, as a worker loads it."""

from pathlib import Path

import pytest

from sentiment.files.reading import Reading
from sentiment.model.bundle import load_bundle
from sentiment.offline import OfflineClassifier
from sentiment_tools.corpus.scoring import Job, load


@pytest.fixture(scope="session")
def job(bundles: Path) -> Job:
    bundle = load_bundle(bundles / "tiny/1")
    return Job("unused", "", Reading(), ("id",), "", bundle.id, bundle.digest, bundle.manifest.labels, (bundles,))


@pytest.fixture(scope="session")
def classifier(job: Job) -> OfflineClassifier:
    return load(job)
