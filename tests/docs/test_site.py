"""The documentation is consistent: links and anchors exist, pages are in the navigation, named files exist."""

import importlib.util
import itertools
import os
import re
import subprocess
import sys
from contextlib import closing
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from playwright.sync_api import expect, sync_playwright

from docs.site_diagrams import SCRIPT, URI
from tests.conftest import leave_out
from tests.viewer.browser import STEP_MS, start, watched

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "service/sentiment"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), *(ROOT / "deploy").glob("*.md")])
# Pages that name files of the code.
OF_CODE = sorted([ROOT / "CONTRIBUTING.md", *(DOCS / "internals").rglob("*.md")])
README_WORDS_MAX = 900
CODE = re.compile(r"^( *)```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|(?:href|src)=\"([^\"]+)\"")
DIAGRAM = re.compile(r"^```mermaid$(.*?)^```$", re.MULTILINE | re.DOTALL)
# A box of a diagram, with its words in quotes.
BOX = re.compile(r'\["(.*?)"\]')
# The theme closes the shadow that holds a drawing.
OPEN_SHADOWS = """const attach = Element.prototype.attachShadow;
Element.prototype.attachShadow = function () { return attach.call(this, {mode: "open"}); };"""
# Files of other projects.
NOT_OURS = {"batching/adaptive.py"}


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, by GitHub's rules."""
    text = re.sub(r"^( *)```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: list[str] = re.findall(r"(?:id|name)=\"([^\"]+)\"", text)
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)?$", text, re.MULTILINE):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        again = sum(1 for other in found if re.fullmatch(re.escape(slug) + r"(-\d+)?", other))
        found.append(f"{slug}-{again}" if again else slug)
    return frozenset(found)


def links(page: Path) -> list[str]:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    return [target or other for target, other in LINK.findall(text)]


def is_broken(page: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    path = (page.parent / target).resolve() if target else page
    return not path.exists() or bool(anchor and path.suffix == ".md" and anchor not in anchors(path))


@pytest.mark.smoke
def test_every_link_and_anchor_leads_somewhere() -> None:
    inside = [(page, link) for page in PAGES for link in links(page) if not re.match(r"[a-z][a-z0-9+.-]*:", link)]

    assert len(inside) > 100
    assert [f"{page.relative_to(ROOT)}: {link}" for page, link in inside if is_broken(page, link)] == []


def test_links_are_found_and_anchors_are_github_s(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A & B: `c_d`, *e*\n## Twice\n## Twice\n```\n# no\n[no](no.md)\n```\n[x](y.md#z) ![p](p.png) `[no](no.md)`\n")

    assert anchors(page) == {"a--b-c_d-e", "twice", "twice-1"}
    assert links(page) == ["y.md#z", "p.png"]


def test_the_readme_can_be_read_in_a_few_minutes() -> None:
    words = len((ROOT / "README.md").read_text(encoding="utf-8").split())

    assert words <= README_WORDS_MAX


def in_nav(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    children = entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else []
    return [page for child in children for page in in_nav(child)]


class _Loader(yaml.SafeLoader):
    """Ignores tags that only MkDocs knows."""


_Loader.add_multi_constructor("", lambda *_: None)


def test_every_page_is_in_the_navigation_once() -> None:
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=_Loader)["nav"]

    assert sorted(in_nav(nav)) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning fails."""
    if importlib.util.find_spec("material") is None:
        leave_out("mkdocs-material", "is not installed")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}

    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)

    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert (site / "internals/architecture.html").is_file()


@pytest.mark.needs_tool("chromium")
def test_the_site_draws_its_diagrams_from_its_own_files(site: Path) -> None:
    if not SCRIPT.is_file():
        leave_out(SCRIPT.name, "is not there; `make docs` fetches it")
    # Of each page with diagrams, what stands in the boxes of each.
    pages = {page: list(map(BOX.findall, DIAGRAM.findall(page.read_text(encoding="utf-8")))) for page in DOCS.rglob("*.md")}
    pages = {page.relative_to(DOCS): boxes for page, boxes in pages.items() if boxes}
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.server_port}"

    with closing(server.socket), sync_playwright() as playwright, start(playwright) as browser:
        page, watch = watched(browser, origin)
        page.add_init_script(OPEN_SHADOWS)
        page.route(lambda url: not url.startswith(origin), lambda route: route.abort())
        for path, boxes in pages.items():
            page.goto(f"{origin}/{path.with_suffix('.html')}")
            drawings = page.locator("div.mermaid svg")
            expect(drawings).to_have_count(len(boxes), timeout=STEP_MS)
            for place, named in enumerate(boxes):
                assert set(named) <= set(drawings.nth(place).locator(".nodeLabel").all_inner_texts())
        page.goto(f"{origin}/index.html")
        server.shutdown()

    assert watch.wrong == []
    # A page without a diagram does not load the script.
    assert sum(request.url.endswith(URI) for request in watch.requests) == len(pages) > 1


def paths_named(page: Path) -> set[str]:
    """The modules that a page names in code, such as model/{session,runner}.py."""
    found = set()
    for code in re.findall(r"`([\w/{},.-]+\.py)`", page.read_text(encoding="utf-8")):
        parts = [part.split(",") for part in re.split(r"[{}]", code)]
        found |= {"".join(chosen) for chosen in itertools.product(*parts)}
    return found - NOT_OURS


def test_every_module_that_a_page_names_exists() -> None:
    names = {path.name for folder in ("service", "models", "tests", "proto", "deploy", "docs") for path in (ROOT / folder).rglob("*.py")}
    missing = []
    for page in OF_CODE:
        stated = re.search(r"[Pp]aths\s+(?:below\s+)?are\s+relative\s+to\s+`([^`]+)`", page.read_text(encoding="utf-8"))
        roots = [ROOT, PACKAGE.parent, PACKAGE, *([ROOT / stated[1]] if stated else [])]
        for path in paths_named(page):
            exists = any((root / path).is_file() for root in roots) or ("/" not in path and path in names)
            missing += [] if exists else [f"{page.relative_to(ROOT)}: {path}"]

    assert missing == []


def test_the_architecture_page_describes_each_folder() -> None:
    packages = {path for path in [*PACKAGE.parent.iterdir(), *PACKAGE.iterdir()] if (path / "__init__.py").is_file()}
    folders = {path.name for path in [*packages - {PACKAGE}, ROOT / "models/sentiment_models"]}
    cells = re.findall(r"^\| (`.*?) \|", (DOCS / "internals/architecture.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert folders <= {folder.strip("/").partition("/")[0] for cell in cells for folder in re.findall(r"`([\w/]+)/`", cell)}


def test_each_term_of_the_glossary_is_the_codes_own() -> None:
    terms = re.findall(r"^\| \*\*(.*?)\*\*", (DOCS / "guide/glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    code = "\n".join(path.read_text(encoding="utf-8").lower() for path in PACKAGE.rglob("*.py"))

    assert len(terms) > 20
    assert [term for term in terms if term.lower() not in code and term.lower().replace(" ", "_") not in code] == []
