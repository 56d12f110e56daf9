"""Makes the calls of the blocking client, ``client/calls.py``, from those of asyncio's, ``client/async_calls.py``: ``make reference``.

Words are exchanged or dropped, also in the examples of docstrings. A paragraph of a docstring that begins with "In asyncio" is left out.
"""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "service/sentiment/client"
SOURCE, MADE = CLIENT / "async_calls.py", CLIENT / "calls.py"
HEAD = '"""The calls of the blocking client. Made by docs/blocking.py from async_calls.py; change that."""'
WORDS = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclosing": "closing",
    "anext": "next",
    "async": "",
    "asyncio": "time",
    "await": "",
}


def blocking(source: str) -> str:
    """The module without asyncio, formatted."""
    # A generator that is not asynchronous has the type of what it returns, too.
    source = re.sub(r"AsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]", source)
    head, *tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines, made, (row, column) = source.splitlines(keepends=True), HEAD, head.end
    for token in tokens:
        if token.start[0] > row:
            row, column = token.start[0], 0
        text = token.string
        if token.type == tokenize.NAME:
            text = WORDS.get(text, text.removeprefix("Async"))
        elif text.startswith('"""'):
            text = _docstring(text)
        made += "".join(lines[row - 1 : row])[column : token.start[1]] + text
        # The space after a word that is dropped is dropped, too.
        row, column = token.end[0], token.end[1] + (text == "" != token.string)
    return _ruff("format", text=_ruff("check", "--fix", "--select=I,F401", text=made))


def _docstring(text: str) -> str:
    text = re.sub(r"\n\n +In asyncio .*?(?=\n\n)", "", text, flags=re.DOTALL)
    text = re.sub(r"\(await ([\w.]+\([^()]*\))\)", r"\1", text)
    return re.sub(r"(?m)^( +(?:>>>|\.\.\.) .*?)(?:async|await) ", r"\1", text)


def _ruff(*command: str, text: str) -> str:
    ran = [sys.executable, "-m", "ruff", *command, "--quiet", f"--stdin-filename={MADE}", "-"]
    return subprocess.run(ran, input=text, capture_output=True, encoding="utf-8", check=True).stdout  # noqa: S603 - our own command


if __name__ == "__main__":
    MADE.write_text(blocking(SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
