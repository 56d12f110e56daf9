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
IMPORT = re.compile(r'^import \{[^{}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:const|class|(?:async )?function\*?) \w)", re.MULTILINE)
TOP_LEVEL = re.compile(r"^(?:export )?(?:const|let|var|class|(?:async )?function)\b\*? *(\w+)", re.MULTILINE)
# Code that changes its meaning in a joined script, is invalid there, or ends the script element.
REFUSED = {
    "an import or export in another form": re.compile(r"^\s*(?:import|export)\b|\bimport\s*\(|\bimport\.meta\b", re.MULTILINE),
    "destructuring at the top level": re.compile(r"^(?:const|let|var)\s*[{\[]", re.MULTILINE),
    "await at the top level": re.compile(r"^(?:(?:const|let|var)\b.*=\s*)?await\b", re.MULTILINE),
    "</script or <!--, which end a script in HTML": re.compile(r"</script|<!--", re.IGNORECASE),
    "a carriage return": re.compile(r"\r"),
}
# Styles that would end the style element, fetch something, or depend on the character set.
STYLE_REFUSED = re.compile(r"</style|@import|url\((?!\"?data:)|\r|[^\x00-\x7f]", re.IGNORECASE)
FILES = {"index.html": INDEX, "app.js": APP, "one.js": ONE, "two.js": TWO, "unused.js": "let x = {", "a.css": "a {}\n", "b.css": "b {}\n"}


def parts() -> dict[str, Asset]:
    return {name: Asset(text.encode(), "", "") for name, text in FILES.items()}


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


def test_the_viewers_modules_have_the_form_that_is_joined() -> None:
    modules = {name: asset.text for name, asset in assets().items() if name.endswith(".js")}
    top_level = [name for text in modules.values() for name in TOP_LEVEL.findall(text)]

    bare = {name: EXPORT.sub("", IMPORT.sub("", text)) for name, text in modules.items()}

    assert not [(name, what) for name, text in bare.items() for what, form in REFUSED.items() if form.search(text)]
    assert sorted(top_level) == sorted(set(top_level)), "in one script each name is declared once"
    assert {name for text in modules.values() for name in IMPORT.findall(text)} <= modules.keys()


def test_the_viewers_styles_can_be_part_of_a_page_in_one_file() -> None:
    index = assets()["index.html"].text
    styles = {name: asset.text for name, asset in assets().items() if name.endswith(".css")}

    assert set(re.findall(r'<link rel="stylesheet" href="viewer/([a-z_]+\.css)">', index)) == styles.keys()
    assert not [name for name, text in styles.items() if STYLE_REFUSED.search(text)]
    assert all(f"<!-- {name} -->" in index and f"<!-- /{name} -->" in index for name in ("policy", "styles", "scripts", "data"))


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

    assert json.loads(lines[0]) == {"page": {"text": TEXT, "text_pair": None, "model": model, "target": None, "answer": None}}
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
    assert first["page"] == {"text": EVIL, "text_pair": EVIL, "model": {"card": EVIL}, "target": None, "answer": None}
    assert header["header"]["label"] == header["header"]["tokens"][1]["piece"] == last["summary"]["notes"][-1] == EVIL
    assert policy_of(page)["script-src"] == digest(elements.of("script", type="module"))


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
