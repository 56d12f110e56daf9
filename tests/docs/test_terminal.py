"""The picture of a terminal in the documentation has what the commands print. ``make screenshots`` takes it again.

Numbers are not compared: other processors compute others in the last digits.
"""

import html
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.approved import APPROVING

PICTURE = Path(__file__).parents[2] / "docs/assets/terminal.svg"
COLUMNS = 80
# As they are typed, in several lines.
CLASSIFY = [
    'sentiment classify "a gripping, beautifully shot film"',
    '"two hours of my life I will never get back"',
    '"The train leaves at nine from platform two."',
]
EXPLAIN = ["sentiment explain", '"The acting was not good at all, but I loved the soundtrack."']
# Of the explanation: up to the words without which the answer would be another. Tables of numbers follow.
LINES = 16


def session(command: list[str]) -> list[str]:
    """A command on a terminal and the lines that it prints. It runs without a server, which gives the same."""
    _, *arguments = shlex.split(" ".join(command))
    started = [sys.executable, "-m", "sentiment", *arguments, "--local", "--color", "always"]
    environment = {**os.environ, "COLUMNS": str(COLUMNS)}
    done = subprocess.run(started, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=120, check=True)
    return [*("$ " + " \\\n    ".join(command)).splitlines(), *done.stdout.splitlines()]


def drawn() -> str:
    """The picture, as SVG."""
    lines = [*session(CLASSIFY), "", *session(EXPLAIN)[:LINES], "..."]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="256")
    console.print(Text.from_ansi("\n".join(lines)))
    svg = console.export_svg(title="sentiment", unique_id="terminal")
    # Its font would come from elsewhere.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")


def words(svg: str) -> list[str]:
    """What is written in it, line by line, without numbers."""
    lines: dict[float, str] = {}
    for y, text in re.findall(r'<text [^>]*\by="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        lines[float(y)] = lines.get(float(y), "") + html.unescape(text)
    return [re.sub(r"\d", "0", line) for line in lines.values()]


def test_the_picture_of_a_terminal_has_what_the_commands_print() -> None:
    found = drawn()
    if APPROVING:
        PICTURE.write_text(found, encoding="utf-8")

    assert words(found) == words(PICTURE.read_text(encoding="utf-8"))


def test_the_picture_of_a_terminal_loads_nothing() -> None:
    assert not re.search(r"@font-face|@import|href|url\((?!#)", PICTURE.read_text(encoding="utf-8"))
