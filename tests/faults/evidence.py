"""What a test of a fault leaves behind: one JSON file, of which deploy/RELIABILITY.md is made."""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.fates import ANSWERED, HUNG, WRONG, Fates

# Where the files go; without it nothing is written.
FOLDER = os.environ.get("FAULTS_JSON")


@dataclass
class Evidence:
    """Of one fault: ``fault``, what is done (the test's docstring); ``calls``, their number by fate; ``measured``, further figures.

    A figure's name says its unit. What was lost: answers that were wrong, and calls that nobody told anything.
    """

    name: str
    group: str
    fault: str
    calls: dict[str, int] = field(default_factory=dict)
    measured: dict[str, float | int | str] = field(default_factory=dict)
    _begun: float = field(default_factory=time.monotonic)

    def count(self, *fates: Fates) -> None:
        """Add calls."""
        for one in fates:
            for name, number in one.counts().items():
                self.calls[name] = self.calls.get(name, 0) + number

    def assert_nothing_lost(self) -> None:
        """Somebody was answered, nobody wrongly, and everybody was told."""
        assert self.calls[ANSWERED] > 0, self.calls
        assert self.calls[WRONG] == 0, self.calls
        assert self.calls[HUNG] == 0, self.calls

    def write(self, folder: Path) -> None:
        """Write ``folder/name.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "name": self.name,
            "group": self.group,
            "fault": self.fault,
            "seconds": round(time.monotonic() - self._begun, 1),
            "calls": self.calls,
            "measured": self.measured,
        }
        (folder / f"{self.name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
