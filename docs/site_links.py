"""A hook of MkDocs: what pages link to outside docs/, which a site does not have, and their order in a search.

Pictures come along; files lead to the repository. On GitHub the links work as they stand. Where ``repo_url`` is not set a link to a file
becomes its text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
# Where pictures from outside lie on the site.
PICTURES = "repository"
# How much more or less than others the pages of a folder count in a search: those that use the service before those that change it.
BOOSTS = {"guide": 2.0, "operate": 1.5, "internals": 0.5}


def _outside(uri: str, target: str) -> str:
    """Where a page's link leads, as a path in the repository; nothing if it stays below docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), target))
    return "" if path.startswith("docs/") else path


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in the pictures that pages show from outside."""
    root = Path(config.docs_dir).parent
    for page in files.documentation_pages():
        for picture, _, target, _ in LINK.findall(page.content_string):
            path = _outside(page.src_uri, target)
            if picture and path and not files.get_file_from_path(f"{PICTURES}/{path}"):
                files.append(File.generated(config, f"{PICTURES}/{path}", abs_src_path=str(root / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  # as MkDocs calls it
    """Turn the links of a page that lead outside, and say how much the page counts in a search."""
    uri = page.file.src_uri
    page.meta["search"] = {"boost": BOOSTS.get(uri.partition("/")[0], 1.0)}

    def turned(found: re.Match[str]) -> str:
        picture, text, target, anchor = found.groups()
        path = _outside(uri, target)
        if not path:
            return found[0]
        if picture:
            return f"![{text}]({posixpath.relpath(f'{PICTURES}/{path}', posixpath.dirname(uri) or '.')})"
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor or ''})" if config.repo_url else text

    parts = FENCED.split(markdown)
    return "".join(part if place % 2 else LINK.sub(turned, part) for place, part in enumerate(parts))
