"""The viewer as one file: modules joined into one script, escaped data, and a policy that allows only this script."""

import hashlib
import html
import json
import re
from base64 import b64encode
from html.parser import HTMLParser
from typing import Any

import pytest

from sentiment.proto_json import json_dict
from sentiment.v1 import sentiment_pb2 as pb
from sentiment_viewer.joining import joined
from sentiment_viewer.page import Asset, assets, notebook_frame, saved_page
from tests.core.client.explained import TEXT, attribution, messages

EVIL = "</script><script>alert(1)</script> <!-- <script> --> ]]> \u2028 \u2029 ' \" & \\u003c \0 </style> <img src=x onerror=alert(1)>"
INDEX = """<!doctype html>
<head><!-- policy --><!-- /policy -->
<!-- styles -->
<link rel="stylesheet" href="viewer/b.css">
<link rel="stylesheet" href="viewer/a.css">
<!-- /styles -->
</head><body>
<!-- data --><!-- /data -->
<!-- scripts -->
<script type="module" src="viewer/app.js"></script>
<!-- /scripts -->
</body>
"""
APP = 'import {two} from "./two.js";\nimport {\n  one,\n  Third,\n} from "./one.js";\n\none(two, Third);\n'
ONE = 'import {two} from "./two.js";\n\nexport function one() {\n  return two;\n}\nexport class Third {}\n'
TWO = (
    "/** Exported; export is said here too. */\nexport const two = 2;\nexport async function later() {}\nexport async function* some() {}\n"
)
FILES = {"index.html": INDEX, "app.js": APP, "one.js": ONE, "two.js": TWO, "unused.js": "let x = {", "a.css": "a {}\n", "b.css": "b {}\n"}


def parts(**changes: str) -> dict[str, Asset]:
    files = FILES | {name.replace("_", "."): text for name, text in changes.items()}
    return {name: Asset(text.encode(), "", "") for name, text in files.items()}


class Elements(HTMLParser):
    """The scripts, styles and frames of a page as a browser parts them: attributes and content of each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.metas: list[dict[str, str | None]] = []
        self._open: tuple[str, dict[str, str | None]] | None = None
        self._content = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "meta":
            self.metas.append(dict(attributes))
        if tag in ("script", "style", "iframe"):
            self._open, self._content = (tag, dict(attributes)), ""

    def handle_data(self, content: str) -> None:
        self._content += content

    def handle_endtag(self, tag: str) -> None:
        if self._open is not None and self._open[0] == tag:
            self.found.append((*self._open, self._content))
            self._open = None

    def of(self, kind: str, **attributes: str) -> str:
        (content,) = [content for tag, told, content in self.found if tag == kind and told.items() >= attributes.items()]
        return content


def saved(text: str = TEXT, model: dict[str, Any] | None = None, files: dict[str, Asset] | None = None) -> str:
    sent = [message.SerializeToString() for message in messages(pb.ExplainResponse(attribution=attribution()))]
    return saved_page(sent, text, None, model, files)


def digest(content: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def policy_of(page: str) -> dict[str, str]:
    (policy,) = [meta["content"] for meta in Elements(page).metas if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    return dict(part.split(" ", 1) for part in policy.split("; "))


# modules


def test_modules_are_joined_in_the_order_of_imports() -> None:
    found = joined({name: text for name, text in FILES.items() if name.endswith(".js")}, "app.js")

    assert found == (
        "// two.js\n/** Exported; export is said here too. */\nconst two = 2;\nasync function later() {}\nasync function* some() {}\n\n"
        "// one.js\nfunction one() {\n  return two;\n}\nclass Third {}\n\n"
        "// app.js\none(two, Third);\n"
    )


@pytest.mark.parametrize(
    ("two", "message"),
    [
        ("export default 2;\n", "two.js: imports|does not export"),
        ("export const two = 2;\nexport default two;\n", "another form: 'export default two;'"),
        ("const two = 2;\nexport {two};\n", "does not export"),
        ("export const two = 2;\nexport {two as other};\n", "another form"),
        ("export let two = 2;\n", "does not export"),
        ('import {x as two} from "./one.js";\nexport const two = 2;\n', "an import cycle|x as two"),
        ('import * as all from "./nosuch.js";\nexport const two = 2;\n', "another form"),
        ('import "./nosuch.js";\nexport const two = 2;\n', "another form"),
        ('import {x} from "https://example.org/x.js";\nexport const two = 2;\n', "another form"),
        ('import {x} from "./nosuch.js";\nexport const two = 2;\n', "two.js imports nosuch.js, which is missing"),
        ('import {app} from "./app.js";\nexport const two = 2;\n', "an import cycle"),
        ('export const two = () => import("./x.js");\n', "another form"),
        ("export const two = import.meta.url;\n", "another form"),
        ("export const two = 2;\nawait two;\n", "await at the top level"),
        ("export const two = await fetch(1);\n", "await at the top level"),
        ("export const two = 2;\nconst {a} = two;\n", "destructuring"),
        ("export const two = 2;\nfunction one() {}\n", "one: declared more than once"),
        ("export const two = 2;\nclass Third {}\n", "Third: declared more than once"),
        ('export const two = "</SCRIPT>";\n', "two.js: has </script"),
        ('export const two = "<!--";\n', "two.js: has </script or <!--"),
        ("export const two = 2;\r\n", "a carriage return"),
    ],
)
def test_a_module_of_another_form_is_refused(two: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        joined({"app.js": APP, "one.js": ONE, "two.js": two}, "app.js")


def test_the_viewers_modules_can_be_joined() -> None:
    modules = {name: asset.text for name, asset in assets().items() if name.endswith(".js")}

    script = joined(modules, "app.js")

    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    assert script.count("\n// ") >= len(modules) - 1, "a module that nothing imports"


# the page


def test_styles_and_script_are_inline_and_allowed_by_their_hashes() -> None:
    page = saved(files=parts())

    elements = Elements(page)
    style, script = elements.of("style"), elements.of("script", type="module")
    assert style.split() == ["b", "{}", "a", "{}"]
    assert script.strip().startswith("// two.js")
    assert policy_of(page) == {
        "default-src": "'none'",
        "script-src": digest(script),
        "style-src": digest(style),
        "img-src": "data:",
        "trusted-types": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
    }
    assert "viewer/" not in page
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_the_viewers_page_fetches_nothing_and_matches_its_policy() -> None:
    page = saved()

    elements = Elements(page)
    policy = policy_of(page)
    assert page.isascii(), "in another character set the script would not have the policy's hash"
    assert policy["script-src"] == digest(elements.of("script", type="module"))
    assert policy["style-src"] == digest(elements.of("style"))
    assert sorted(told["type"] for tag, told, _ in elements.found if tag == "script") == ["application/x-ndjson", "module"]
    assert not re.search(r'\b(?:src|href)="(?!#|data:)', re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL))


def test_the_data_are_the_servers_lines_after_a_line_about_the_page() -> None:
    model = {"id": {"name": "tiny"}, "card": "# Card\n</script>"}
    page = saved(model=model, files=parts())

    lines = Elements(page).of("script", type="application/x-ndjson", id="explanation").strip().split("\n")

    assert json.loads(lines[0]) == {"page": {"text": TEXT, "text_pair": None, "model": model, "answer": None}}
    sent = messages(pb.ExplainResponse(attribution=attribution()))
    assert [json.loads(line) for line in lines[1:]] == [json_dict(message) for message in sent]


@pytest.mark.parametrize("files", [None, parts()], ids=["own", "small"])
def test_no_text_can_break_out_of_the_data(files: dict[str, Asset] | None) -> None:
    sent = messages(pb.ExplainResponse(attribution=attribution()))
    sent[0].header.tokens[1].piece = sent[0].header.label = EVIL
    sent[-1].summary.notes.append(EVIL)

    page = saved_page([message.SerializeToString() for message in sent], EVIL, EVIL, {"card": EVIL}, files)

    elements = Elements(page)
    assert [tag for tag, _, _ in elements.found] == [tag for tag, _, _ in Elements(saved(files=files)).found]
    content = elements.of("script", id="explanation")
    assert "<" not in content
    assert content.isascii()
    first, header, *_, last = [json.loads(line) for line in content.strip().split("\n")]
    assert first["page"] == {"text": EVIL, "text_pair": EVIL, "model": {"card": EVIL}, "answer": None}
    assert header["header"]["label"] == header["header"]["tokens"][1]["piece"] == last["summary"]["notes"][-1] == EVIL
    assert policy_of(page)["script-src"] == digest(elements.of("script", type="module"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_html": INDEX.replace("<!-- data -->", "")}, "must have <!-- data --> and"),
        ({"index_html": INDEX.replace("<!-- /policy -->", "")}, "must have <!-- policy --> and"),
        ({"index_html": INDEX.replace("viewer/a.css", "viewer/c.css")}, "c.css, which is missing"),
        ({"index_html": INDEX.replace("viewer/app.js", "viewer/one.js")}, "between the markers"),
        ({"index_html": INDEX.replace("</script>\n", "</script><b>\n")}, "between the markers"),
        ({"a_css": "a {} </STYLE>"}, "a.css: has '</STYLE'"),
        ({"a_css": '@import "b.css";'}, "@import"),
        ({"a_css": "a {background: url(b.png)}"}, r"url\("),
    ],
)
def test_files_that_cannot_be_joined_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        saved(files=parts(**changes))


def test_without_an_explanation_there_is_no_page() -> None:
    with pytest.raises(ValueError, match="no message"):
        saved_page([], "good")


def test_the_frame_is_sandboxed() -> None:
    page = saved(EVIL)

    frame = notebook_frame(page)

    ((tag, attributes, _),) = Elements(frame).found
    assert (tag, attributes["sandbox"], attributes["srcdoc"]) == ("iframe", "allow-scripts allow-downloads", page)
    assert frame.count("<") == frame.count(">") == 2
    assert html.unescape(frame) != frame
