"""A hook of MkDocs: pages with a diagram draw it with the site's own copy of Mermaid, which the theme would load from unpkg.com.

``make docs`` and ``.ci/run`` fetch the script. Without it a line says that diagrams need the internet.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

# Mermaid without rare kinds of diagrams, in one file: 2.6 MB.
SCRIPT = Path(__file__).parents[1] / "build/tools/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js"
# Where it lies on the site.
URI = "assets/javascripts/mermaid.js"
# What mkdocs.yml makes of a diagram.
DIAGRAM = '<pre class="mermaid">'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in the script."""
    if SCRIPT.is_file():
        files.append(File.generated(config, URI, abs_src_path=str(SCRIPT)))
    else:
        get_plugin_logger(__name__).info("Readers of diagrams need the internet: `make docs` fetches %s", SCRIPT)
    return files


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001  # as MkDocs calls it
    """Load the script on a page that has a diagram."""
    if DIAGRAM not in output or not SCRIPT.is_file():
        return output
    return output.replace("</body>", f'<script src="{get_relative_url(URI, page.url)}"></script></body>')
