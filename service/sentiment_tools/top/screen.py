"""The live view on a terminal, drawn by Rich."""

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sentiment_tools.top.lines import Frame, Line
from sentiment_tools.top.run import Watching
from sentiment_tools.top.scrape import Scraper

# How soon a key, a new reading or another size of the window is noticed.
TICK_S = 0.1
STYLES = {
    "title": "bold",
    "head": "dim",
    "dim": "dim",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "bar": "cyan",
    "": "",
}
HELP = "q: quit"


def show(scraper: Scraper, interval_s: float) -> None:
    """Show the view until q or Ctrl-C. Standard output is a terminal.

    Raises:
        NotAPage: another program listens at this address.
        BadSettings: the file of the token has none any more.
    """
    console = Console()
    # Otherwise SIGTERM would leave the terminal without an echo.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    watching = Watching(scraper, interval_s)
    try:
        with _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            shown = None
            while not _quit():
                if watching.news() or console.size != shown:
                    shown = console.size
                    live.update(drawn(watching, console), refresh=True)
    except KeyboardInterrupt:
        pass
    finally:
        watching.close()


def drawn(watching: Watching, console: Console) -> Text:
    """The picture for the console's size, with the keys in its last line."""
    width, height = console.size
    blocks = console.encoding.startswith("utf")
    lines = watching.lines(Frame(width, max(1, height - 1), blocks))
    keys: Line = [(HELP, "dim")]
    return styled([*lines, *[[]] * (height - 1 - len(lines)), keys])


def styled(lines: list[Line]) -> Text:
    """The lines as a text of Rich's, which takes its markup from no figure."""
    text = Text(no_wrap=True, overflow="crop", end="")
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        for span, style in line:
            text.append(span, STYLES[style])
    return text


@contextmanager
def _keys() -> Iterator[None]:
    """Take keys one by one and without an echo, if standard input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _quit() -> bool:
    """Wait for keys for a tick; returns whether one of them is q."""
    if not sys.stdin.isatty():
        select.select([], [], [], TICK_S)
        return False
    ready, _, _ = select.select([sys.stdin], [], [], TICK_S)
    return bool(ready) and b"q" in os.read(sys.stdin.fileno(), 64).lower()
