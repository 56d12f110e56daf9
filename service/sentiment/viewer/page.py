"""The viewer's files, and the page as one file with an explanation in it. Pure but for reading its own files; knows no server."""

import hashlib
import html
import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from sentiment.v1 import sentiment_pb2 as pb
from sentiment.viewer.joining import joined
from sentiment.viewer.proto_json import json_line

INDEX, ROOT = "index.html", "app.js"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_COMMON_POLICY = "img-src data:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
# Of the page that is served. A page cannot say of itself who may frame it: that works in a header alone.
POLICY = f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'; {_COMMON_POLICY}"
FRAME_HEIGHT = 800
_STYLE_LINK = re.compile(r'<link rel="stylesheet" href="viewer/([a-z_]+\.css)">')
_ROOT_SCRIPT = f'<script type="module" src="viewer/{ROOT}"></script>'
# What would end a style element, or fetch something, or be another sign in another character set.
_STYLE_REFUSED = re.compile(r"</style|@import|url\((?!\"?data:)|\r|[^\x00-\x7f]", re.IGNORECASE)
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is served; ``etag`` with its quotes."""

    body: bytes
    content_type: str
    etag: str

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


@cache
def assets() -> Mapping[str, Asset]:
    """The viewer's files by their names, read once."""
    found = {}
    for file in sorted(files("sentiment.viewer").joinpath("assets").iterdir(), key=lambda file: file.name):
        content_type = CONTENT_TYPES.get(file.name[file.name.rfind(".") :])
        if content_type is not None:
            body = file.read_bytes()
            found[file.name] = Asset(body, content_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return MappingProxyType(found)


def saved_page(
    messages: Sequence[bytes],
    text: str,
    text_pair: str | None = None,
    model: Mapping[str, Any] | None = None,  # JSON's values are of many kinds
    parts: Mapping[str, Asset] | None = None,
) -> str:
    """The viewer with one explanation as a single page that fetches nothing.

    Args:
        messages: of the explanation, each a serialized ExplainResponse: the header first, the summary last.
        text: what is explained.
        text_pair: the second text of a pair.
        model: the proto's Model in its JSON form, with its card, or None.
        parts: the viewer's files, if not its own.

    Raises:
        ValueError: there are no messages, the model is not JSON, or a file of the viewer has not the form that a single page needs.
    """
    if not messages:
        raise ValueError("there is no message of an explanation to show")
    parts = assets() if parts is None else parts
    scripts = {name: asset.text for name, asset in parts.items() if name.endswith(".js")}
    # In ASCII, so that it is the script of the policy in whatever character set a notebook is kept.
    script = _NOT_ASCII.sub(_escaped, f"\n{joined(scripts, ROOT)}")
    page = parts[INDEX].text
    style = "\n" + "\n".join(_style(name, parts) for name in _STYLE_LINK.findall(page))
    policy = f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; {_COMMON_POLICY}"
    page = _filled(page, "policy", lambda _: f'<meta http-equiv="Content-Security-Policy" content="{policy}">')
    page = _filled(page, "styles", lambda inside: _instead(inside, _STYLE_LINK, f"<style>{style}</style>"))
    page = _filled(
        page, "scripts", lambda inside: _instead(inside, re.compile(re.escape(_ROOT_SCRIPT)), f'<script type="module">{script}</script>')
    )
    lines = [json.dumps({"page": {"text": text, "text_pair": text_pair, "model": model}}, allow_nan=False)]
    lines += [json_line(pb.ExplainResponse.FromString(message)) for message in messages]
    # All is ASCII: of what HTML or a line may see something in, only this sign is left.
    told = "\n".join(lines).replace("<", r"\u003c")
    return _filled(page, "data", lambda _: f'<script type="application/x-ndjson" id="explanation">\n{told}\n</script>')


def notebook_frame(page: str) -> str:
    """A page in a frame that can run its script and save files, and reach nothing around it."""
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(page)}" title="Explanation" width="100%" '
        f'height="{FRAME_HEIGHT}" style="border: 0"></iframe>'
    )


def _style(name: str, parts: Mapping[str, Asset]) -> str:
    if name not in parts:
        raise ValueError(f"{INDEX}: links {name}, which is missing")
    style = parts[name].text
    found = _STYLE_REFUSED.search(style)
    if found:
        raise ValueError(f"{name}: has {found[0]!r}, which cannot stand in a page that is one file")
    return style


def _escaped(found: re.Match[str]) -> str:
    """As JavaScript writes it in strings, templates and regular expressions; code has it nowhere else but in comments."""
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))


def _digest(content: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _filled(page: str, name: str, content: Callable[[str], str]) -> str:
    """The page with something else between two markers, which go."""
    before, opened, rest = page.partition(f"<!-- {name} -->")
    inside, closed, after = rest.partition(f"<!-- /{name} -->")
    if not (opened and closed):
        raise ValueError(f"{INDEX}: has no <!-- {name} --> and <!-- /{name} -->")
    return f"{before}{content(inside)}{after}"


def _instead(inside: str, known: re.Pattern[str], content: str) -> str:
    """The content, if there is nothing inside but what is known."""
    if not known.search(inside) or known.sub("", inside).strip():
        raise ValueError(f"{INDEX}: has {inside.strip()!r} between its markers; wanted is {known.pattern}")
    return content
