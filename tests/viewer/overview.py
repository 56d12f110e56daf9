"""``python -m tests.viewer.overview [FILE]``: take the picture at the top of README, a terminal beside the viewer.

Times and last digits differ from run to run, so nothing compares it; look at it before you commit it.
"""

import html
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from PIL import Image, ImageDraw
from playwright.sync_api import Browser, expect, sync_playwright

from tests.conftest import RunningServer
from tests.viewer.browser import address, start, watched
from tests.viewer.reading import settled
from tests.viewer.record import served

FILE = Path(__file__).parents[2] / "docs/assets/overview.png"
TEXTS = ("a gripping, beautifully shot film", "two hours of my life I will never get back")
EXPLAINED = "The acting was not good at all, but I loved the soundtrack."
# As a reader types them, in lines that fit.
TYPED = (
    f'$ sentiment classify "{TEXTS[0]}" \\\n    "{TEXTS[1]}"\n',
    '$ sentiment explain "The acting was not good at all, but I \\\n    loved the soundtrack."\n',
)
COLUMNS = 88
HEIGHT, TERMINAL_WIDTH, PAGE_WIDTH, MARGIN = 860, 724, 900, 16
GROUND, TERMINAL_GROUND, TERMINAL_TEXT = "#e6e6ec", "#1e1e23", "#e6e6e6"
_SGR = re.compile("\x1b\\[([0-9;]*)m")


def terminal_page(said: str) -> str:
    """What a terminal shows, as a page: bold, underlined and of the 256 colours."""
    pieces = _SGR.split(said)
    style: dict[str, str] = {}
    spans = [html.escape(pieces[0])]
    for codes, text in zip(pieces[1::2], pieces[2::2], strict=True):
        numbers = [int(code or 0) for code in codes.split(";")]
        while numbers:
            match numbers:
                case [38 | 48 as ground, 5, colour, *numbers]:
                    style["color" if ground == 38 else "background"] = _colour(colour)
                case [0, *numbers]:
                    style = {}
                case [1, *numbers]:
                    style["font-weight"] = "bold"
                case [4, *numbers]:
                    style["text-decoration"] = "underline"
                case _:
                    raise ValueError(f"the terminal said {codes!r}, which has no picture")
        declared = ";".join(f"{name}:{value}" for name, value in style.items())
        spans.append(f'<span style="{declared}">{html.escape(text)}</span>')
    font = f"margin:0;font:13px/17.3px DejaVu Sans Mono,monospace;color:{TERMINAL_TEXT}"
    return f'<body style="margin:0;background:{TERMINAL_GROUND};padding:16px 14px"><pre style="{font}">{"".join(spans)}</pre></body>'


def _colour(number: int) -> str:
    """One of the 216 colours of xterm's cube, or of its 24 greys."""
    if number >= 232:
        return f"rgb({', '.join([str(8 + 10 * (number - 232))] * 3)})"
    steps = [(number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6]
    return f"rgb({', '.join(str(55 + 40 * step if step else 0) for step in steps)})"


def terminal_says(target: str) -> str:
    """Two commands and what they print."""
    command = [sys.executable, "-m", "sentiment"]
    asked = ["classify", "--target", target, *TEXTS], ["explain", "--target", target, "--color", "always", EXPLAINED]
    printed = [
        subprocess.run(
            [*command, *one], capture_output=True, text=True, timeout=120, check=True, env={**os.environ, "COLUMNS": str(COLUMNS)}
        )
        for one in asked
    ]
    return "\n".join(typed + run.stdout.rstrip() + "\n" for typed, run in zip(TYPED, printed, strict=True))


def overview(browser: Browser, server: RunningServer) -> Image.Image:
    """The picture."""
    left, _ = watched(browser, "about:blank", options={"viewport": {"width": TERMINAL_WIDTH, "height": HEIGHT}})
    left.set_content(terminal_page(terminal_says(server.target)))
    right, watch = watched(browser, server.url, options={"viewport": {"width": PAGE_WIDTH, "height": HEIGHT}})
    right.goto(address(server.url, text=EXPLAINED))
    settled(right)
    expect(right.locator(".text-verdict")).to_be_visible()
    pictures = [Image.open(io.BytesIO(page.screenshot())).convert("RGB") for page in (left, right)]
    for page in (left, right):
        page.context.close()
    assert watch.wrong == []
    whole = Image.new("RGB", (TERMINAL_WIDTH + PAGE_WIDTH + 3 * MARGIN, HEIGHT + 2 * MARGIN), GROUND)
    for picture, x in zip(pictures, (MARGIN, TERMINAL_WIDTH + 2 * MARGIN), strict=True):
        corners = Image.new("L", picture.size, 0)
        ImageDraw.Draw(corners).rounded_rectangle((0, 0, picture.width - 1, picture.height - 1), 8, fill=255)
        whole.paste(picture, (x, MARGIN), corners)
    return whole


def save(picture: Image.Image, path: Path) -> None:
    """Write it as a small PNG."""
    picture.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Write the file anew."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    server = served()
    try:
        with sync_playwright() as playwright:
            browser = start(playwright)
            save(overview(browser, server), path)
            browser.close()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
