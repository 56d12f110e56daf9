"""The viewer's files, and the viewer page as one file that contains an explanation. Reads only its own files; knows no server."""

import hashlib
import html
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from sentiment.assets import Asset, asset_of, has_type
from sentiment.proto_json import json_line
from sentiment.v1 import sentiment_pb2 as pb
from sentiment_viewer.joining import joined

INDEX, ROOT = "index.html", "app.js"
_COMMON_POLICY = "img-src data:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
# Policy of the served page. frame-ancestors works only as a header, so a saved page cannot have it.
POLICY = f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'; {_COMMON_POLICY}"
FRAME_HEIGHT = 800
_STYLE_LINK = re.compile(r'<link rel="stylesheet" href="viewer/([a-z_]+\.css)">')
_HTML = '<html lang="en">'
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


@cache
def assets() -> Mapping[str, Asset]:
    """The viewer's files by name, read once."""
    found = sorted(
        (file for file in files("sentiment_viewer").joinpath("assets").iterdir() if has_type(file.name)), key=lambda file: file.name
    )
    return MappingProxyType({file.name: asset_of(file.name, file.read_bytes()) for file in found})


def served_index(feedback: bool) -> Asset:
    """The page as a server sends it. ``feedback``: it takes right labels, so the page offers to tell them."""
    index = assets()[INDEX]
    return asset_of(INDEX, index.body.replace(_HTML.encode(), f'{_HTML[:-1]} data-feedback="yes">'.encode(), 1)) if feedback else index


def saved_page(
    messages: Sequence[bytes],
    text: str,
    text_pair: str | None = None,
    model: Mapping[str, Any] | None = None,  # JSON's values are of many kinds
    parts: Mapping[str, Asset] | None = None,
    answer: Mapping[str, Any] | None = None,  # as above
    target: str | None = None,
) -> str:
    """The viewer page with one explanation, as a single file that makes no requests.

    Args:
        messages: messages of the explanation, each a serialized ExplainResponse: the header first, the summary last.
        text: the explained text.
        text_pair: the second text of a pair.
        model: the proto's Model with its card, as JSON; or None.
        parts: files to use instead of the viewer's own.
        answer: a ClassifyResponse to the text as JSON, for its sentences and targets; or None.
        target: what the explained answer is towards; None: the whole text.

    Raises:
        ValueError: there are no messages, or the model is not JSON.
    """
    if not messages:
        raise ValueError("the explanation has no messages to show")
    parts = assets() if parts is None else parts
    scripts = {name: asset.text for name, asset in parts.items() if name.endswith(".js")}
    # ASCII, so that the script matches the digest in the policy whatever the character set of the notebook.
    script = _NOT_ASCII.sub(_escaped, f"\n{joined(scripts, ROOT)}")
    page = parts[INDEX].text
    style = "\n" + "\n".join(parts[name].text for name in _STYLE_LINK.findall(page))
    policy = f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; {_COMMON_POLICY}"
    page = _filled(page, "policy", f'<meta http-equiv="Content-Security-Policy" content="{policy}">')
    page = _filled(page, "styles", f"<style>{style}</style>")
    page = _filled(page, "scripts", f'<script type="module">{script}</script>')
    given = {"text": text, "text_pair": text_pair, "model": model, "answer": answer, "target": target}
    lines = [json.dumps({"page": given}, allow_nan=False)]
    lines += [json_line(pb.ExplainResponse.FromString(message)) for message in messages]
    # The lines are ASCII JSON: "<" is the only character with a meaning in HTML here.
    content = "\n".join(lines).replace("<", r"\u003c")
    return _filled(page, "data", f'<script type="application/x-ndjson" id="explanation">\n{content}\n</script>')


def notebook_frame(page: str) -> str:
    """A page in a sandboxed frame: it can run its script and save files, but cannot access the page around it."""
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(page)}" title="Explanation" width="100%" '
        f'height="{FRAME_HEIGHT}" style="border: 0"></iframe>'
    )


def _escaped(found: re.Match[str]) -> str:
    """A JavaScript escape. It is valid in strings, templates and regular expressions; other code has such characters only in comments."""
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))


def _digest(content: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _filled(page: str, name: str, content: str) -> str:
    """The page with new content in place of two markers and the text between them."""
    before, _, rest = page.partition(f"<!-- {name} -->")
    return f"{before}{content}{rest.partition(f'<!-- /{name} -->')[2]}"
