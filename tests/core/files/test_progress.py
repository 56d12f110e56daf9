"""Progress on standard error."""

import fcntl
import os
import select
import struct
import termios

import pytest

from sentiment.files import progress
from tests.programs import PATIENCE_S


@pytest.mark.parametrize(("columns", "written"), [(20, 19), (0, 79)])
def test_a_line_is_rewritten_in_one_row_of_the_terminal(columns: int, written: int, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = os.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    with os.fdopen(far, "w") as terminal, os.fdopen(near, "rb", buffering=0) as screen:
        monkeypatch.setattr("sys.stderr", terminal)
        line = progress.Progress(lambda seconds: "a line that is longer than such a row" * 3)
        line.show()
        line.close()
        shown = b""
        while not shown.endswith(b"\n"):
            assert select.select([screen], [], [], PATIENCE_S)[0], shown
            shown += screen.read(2000)

    rows = [row for row in shown.decode().replace("\n", "").split("\r") if row]
    assert [len(row) for row in rows] == [written, written]
