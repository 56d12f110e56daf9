"""What a fault test records: one JSON file each, from which deploy/RELIABILITY.md is made."""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.core.faults.fates import ANSWERED, HUNG, WRONG, Fates

# Where the files go; if it is unset, nothing is written.
FOLDER = os.environ.get("FAULTS_JSON")


@dataclass
class Evidence:
    """The record of one fault test.

    ``calls`` is the number of calls by fate, ``measured`` further figures, whose names state their units.
    """

    name: str
    calls: dict[str, int] = field(default_factory=dict)
    measured: dict[str, float | int | str] = field(default_factory=dict)
    _begun: float = field(default_factory=time.monotonic)

    def judge(self, *fates: Fates, may: Iterable[str] = ()) -> None:
        """Add calls, and check all of them: some were answered, none wrongly, none hung, and others ended only with a code of ``may``."""
        for one in fates:
            for name, number in one.counts().items():
                self.calls[name] = self.calls.get(name, 0) + number
        assert self.calls[ANSWERED] > 0, self.calls
        assert self.calls[WRONG] == self.calls[HUNG] == 0, self.calls
        assert set(self.calls) <= {ANSWERED, WRONG, HUNG, *may}, self.calls

    def write(self, folder: Path) -> None:
        """Write ``folder/name.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "name": self.name,
            "seconds": round(time.monotonic() - self._begun, 1),
            "calls": self.calls,
            "measured": self.measured,
        }
        (folder / f"{self.name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
