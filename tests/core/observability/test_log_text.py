"""Logs for a person at a terminal: readable on any background, aligned, and safe whatever a value holds; JSON elsewhere."""

import contextlib
import io
import json
import logging
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sentiment.observability import logs
from sentiment.observability.log_text import _KEY, _TIME, LEVEL_COLOURS, TextRenderer
from sentiment.serving.how_to_call import TEXT, how_to_call
from sentiment.settings import Settings
from tests.core.cli.test_ansi import CODES, rgb
from tests.core.serving.test_processes import PATIENCE_S

AT = {"timestamp": "2026-11-26T09:12:03.123456Z", "level": "info"}


def luminance(code: int) -> float:
    """As of WCAG 2.1."""
    parts = rgb(code) if code < 232 else [(8 + 10 * (code - 232)) / 255] * 3
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("codes", [*LEVEL_COLOURS.values(), _KEY, _TIME])
def test_every_colour_can_be_read_on_black_and_on_white(codes: str) -> None:
    found = luminance(int(codes.rpartition(";")[2]))

    assert min((found + 0.05) / 0.05, 1.05 / (found + 0.05)) >= 4.0


@pytest.mark.parametrize("colour", [False, True])
def test_an_event_is_one_aligned_line_with_what_a_person_looks_for_below(colour: bool) -> None:
    fields = {"model": "tiny/1", "why": "not here", "none": None, "viewer": "http://127.0.0.1:1/", "try_it": 'classify "a film"'}
    text = TextRenderer(colour)(None, "info", {**AT, "event": "ready", **fields})

    lines = CODES.sub("", text).splitlines()
    assert lines[0][20:] == "info     ready              model=tiny/1 why='not here' none=None"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", lines[0][:20])
    assert lines[1:] == ["  Viewer  http://127.0.0.1:1/", '  Try it  classify "a film"']
    assert (text == CODES.sub("", text)) is not colour


def test_nothing_in_a_value_acts_on_the_terminal() -> None:
    bad = "\x1b[31m\r\n\x9b2J\u202e\x00\ud800"
    event = {**AT, "event": f"event {bad}", "field": bad, f"key{bad}": [bad], "viewer": bad, "exception": f"Traceback\n  {bad}"}

    text = TextRenderer(False)(None, "info", event)

    assert all(line.isprintable() for line in text.split("\n"))
    # The event, the viewer and three lines of the traceback, of which one has a line break.
    assert text.count("\n") == 4
    assert "field='\\x1b[31m\\r\\n\\x9b2J\\u202e\\x00\\ud800'" in text


@pytest.mark.parametrize("form", ["text", "console", "json"])
def test_a_setting_overrides_and_only_a_terminal_gets_colours(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", form)
    try:
        raise KeyError("x")
    except KeyError:
        logs.logger().exception("failed", code=3)
    logging.getLogger("asyncio").warning("from a library")

    errors = capsys.readouterr().err
    assert "\x1b" not in errors
    if form == "json":
        assert [json.loads(line)["event"] for line in errors.splitlines()] == ["failed", "from a library"]
    else:
        first, *traceback, last = errors.splitlines()
        assert first.endswith(" error    failed             code=3")
        assert traceback[0] == "  Traceback (most recent call last):"
        assert last.endswith(" warning  from a library")


class FakeTerminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("form", "environment", "coloured", "as_text"),
    [
        ("auto", {}, True, True),
        ("auto", {"NO_COLOR": "1"}, False, True),
        ("auto", {"TERM": "dumb"}, False, True),
        ("json", {}, False, False),
    ],
    ids=["auto", "NO_COLOR", "dumb", "json"],
)
def test_on_a_terminal_the_form_and_the_environment_choose_text_and_colours(
    form: str, environment: dict[str, str], coloured: bool, as_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm-256color", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", said := FakeTerminal())

    logs.configure("info", form)
    logs.logger().info("ready", model="tiny/1")

    assert ("\x1b[" in said.getvalue()) is coloured
    assert said.getvalue().startswith("{") is not as_text


# A ceiling for a busy machine.
READY_S_MAX = 300.0
SERVE = "-m sentiment serve --model tiny --grpc-listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --drain-wait-s 0"


@pytest.mark.parametrize("flags", [[], ["--front-ends", "1"]], ids=["auto", "front ends"])
def test_on_a_terminal_a_server_says_in_text_where_the_viewer_is_and_what_to_try(flags: list[str], bundles: Path) -> None:
    ours, theirs = os.openpty()
    variables = {**os.environ, "TERM": "xterm-256color"}
    variables.pop("NO_COLOR", None)
    server = subprocess.Popen([sys.executable, *SERVE.split(), "--bundles", str(bundles), *flags], stderr=theirs, env=variables)
    # Reading ends with an error when no process has the terminal open any more.
    late = threading.Timer(READY_S_MAX, server.kill)
    late.start()
    try:
        os.close(theirs)
        said = b""
        while not re.search(rb"Try it.*\n", said):
            said += os.read(ours, 2**16)
        text = said.decode()
        assert "\x1b[" in text
        plain = CODES.sub("", text).replace("\r\n", "\n")
        viewer, command = re.search(r"ready .*\n  Viewer  (\S+)\n  Try it  (.*)\n", plain).groups()  # type: ignore[union-attr]
        if not flags:
            page = subprocess.run(["curl", "-sf", viewer], capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
            assert "<title>" in page
            answer = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
            # The tiny vocabulary has none of its words.
            assert answer.rstrip("\n").endswith(f"{TEXT}  (undecided, another language?)")
        server.terminate()
        with contextlib.suppress(OSError):
            while os.read(ours, 2**16):
                pass
        assert server.wait(PATIENCE_S) == 0
    finally:
        late.cancel()
        server.kill()
        server.wait()
        os.close(ours)


def test_what_to_try_fits_the_server() -> None:
    def said(grpc: str = "127.0.0.1:50051", http: str = "127.0.0.1:8080", **settings: object) -> list[str]:
        fields = how_to_call(Settings(**settings), grpc, http)  # type: ignore[arg-type]  # any setting
        return [fields.get("viewer", ""), fields["try_it"].partition("classify ")[2].removesuffix(f'"{TEXT}"')]

    assert said() == ["http://127.0.0.1:8080/", ""]
    assert said("0.0.0.0:50051", "0.0.0.0:8080") == ["http://localhost:8080/", ""]
    assert said("[::]:7", "[::1]:8") == ["http://[::1]:8/", "--target localhost:7 "]
    assert [said(http="")[0], said(viewer=False)[0], said(web="metrics")[0]] == [""] * 3
    tls = {"tls_cert_file": "c", "tls_key_file": "k"}
    assert said(**tls, auth_tokens="t") == ["https://127.0.0.1:8080/", "--ca CA_FILE --token-file FILE "]
    assert said(**tls, tls_client_ca_file="c")[1] == "--ca CA_FILE --cert FILE --key FILE "
