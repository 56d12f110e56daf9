"""Servers that keep answers, and whose model has a rule of adaptive effort, so that they have the metrics of both too."""

import pytest

from sentiment.settings import Settings
from tests.tiny import EFFORT, make_bundle


@pytest.fixture(scope="session")
def settings(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    root = tmp_path_factory.mktemp("alerts")
    make_bundle(root, effort=EFFORT)
    effort = {"effort": "adaptive", "effort_audit_share": 1.0}
    return settings.model_copy(update={"bundles": (root,), "answer_cache_bytes": 2**20, **effort})
