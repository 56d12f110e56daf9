"""``sentiment top``: reads the page again and again, and shows what happened since."""

import math
import time
from collections import deque
from itertools import pairwise, takewhile
from queue import Empty, SimpleQueue
from threading import Event, Thread

from sentiment_tools.top.figures import Figures, Reading, figures, same_run
from sentiment_tools.top.lines import Frame, Line, picture, plain
from sentiment_tools.top.scrape import NoPage, Scraper

# Over this span the shares of answers are shown.
ANSWERS_S = 60.0
# Readings that are plotted.
HISTORY = 240
# A plain reading is for files and narrow windows.
PLAIN_COLUMNS = 80


def once(scraper: Scraper, interval_s: float) -> str:
    """One reading over the interval, as plain text.

    Raises:
        NoPage: no server answers.
        NotAPage: something else answers, or the credentials are refused.
        BadSettings: the file of the token has none any more.
    """
    before = scraper.read()
    time.sleep(max(0.0, before.at + interval_s - time.monotonic()))
    after = scraper.read()
    return plain(picture(figures(before, after, before), scraper.url, time.time(), Frame(PLAIN_COLUMNS)))


class Watching:
    """Reads the page in a thread of its own, so that a server that hangs does not make keys wait. Close it at the end."""

    def __init__(self, scraper: Scraper, interval_s: float) -> None:
        """Start reading."""
        self.url = scraper.url
        self._interval_s = interval_s
        self._read = scraper.read
        self._readings: deque[Reading] = deque(maxlen=max(2, math.ceil(ANSWERS_S / interval_s) + 1))
        self._found: SimpleQueue[Reading | Exception] = SimpleQueue()
        self._ended = Event()
        self._absent = ""
        self._history: deque[Figures] = deque(maxlen=HISTORY)
        Thread(target=self._run, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Read no more."""
        self._ended.set()

    def news(self) -> bool:
        """Take in what was read since the last call; returns whether there was anything.

        Raises:
            NotAPage, BadSettings: as ``once``.
        """
        found = False
        while True:
            try:
                each = self._found.get_nowait()
            except Empty:
                return found
            found = True
            if isinstance(each, NoPage):
                self._absent = str(each)
            elif isinstance(each, Exception):
                raise each
            else:
                self._add(each)

    def lines(self, frame: Frame) -> list[Line]:
        """The picture as it is now. While the server does not answer, it is the last one, below the reason."""
        note: list[Line] = [[(f"{self._absent}; trying again", "bad")], []] if self._absent else []
        if not self._history:
            return note or [[(f"reading {self.url}, figures in {self._interval_s:g} s", "dim")]]
        room = Frame(frame.width, max(1, frame.height - len(note)), frame.blocks)
        return [*note, *picture(self._history[-1], self.url, time.time(), room, list(self._history))]

    def _add(self, reading: Reading) -> None:
        self._absent = ""
        self._readings.append(reading)
        if len(self._readings) > 1:
            self._history.append(figures(self._readings[-2], reading, _same_run(self._readings)))

    def _run(self) -> None:
        while not self._ended.is_set():
            begun = time.monotonic()
            try:
                self._found.put(self._read())
            except Exception as error:
                # Whatever it is: the view would wait for this thread for ever.
                self._found.put(error)
            self._ended.wait(max(0.0, begun + self._interval_s - time.monotonic()))


def _same_run(readings: deque[Reading]) -> Reading:
    """The first of the last readings that are of one run of the server, or the last but one."""
    of_this_run = takewhile(lambda pair: same_run(*pair), pairwise(reversed(readings)))
    return [readings[-2], *(earlier for _, earlier in of_this_run)][-1]
