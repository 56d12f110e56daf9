"""What is in the image, as a bill of materials by syft."""

import importlib.metadata
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from tests.deploy.image.checks import Check
from tests.deploy.image.store import Store

# By package URL. Debian's gcc-14-base is not a compiler: the C library's runtime needs it.
UNWANTED = re.compile(r"pkg:(pypi/(torch|transformers)|deb/[^/]+/(gcc|g\+\+|clang|tcc)(-[0-9.]+)?)@")


def packages(store: Store, output: Path | None) -> tuple[list[Check], dict[str, object]]:
    """Whether the bill names what must be in it, and what it counts; ``output``: where to put it too."""
    file = store.folder / "sbom.json"
    store.run("syft", "--quiet", "scan", f"oci-dir:{store.folder / 'layout'}", "--output", f"cyclonedx-json={file}", timeout_s=300)
    if output:
        shutil.copy(file, output)
    bill = json.loads(file.read_text(encoding="utf-8"))
    urls = [component["purl"] for component in bill["components"] if "purl" in component]
    kinds = Counter(url.partition("/")[0].removeprefix("pkg:") for url in urls)
    version = importlib.metadata.version("sentiment-service")
    wanted = f"pkg:pypi/sentiment-service@{version}"
    named = next((url for url in urls if url.startswith("pkg:pypi/sentiment-service@")), "nothing")
    found = unwanted(urls)
    checks = [
        Check("the bill of materials names the service", named == wanted, named, wanted),
        Check("no torch, no compiler", not found, ", ".join(found) or "none", "none"),
    ]
    counted = ", ".join(f"{count} of {kind}" for kind, count in sorted(kinds.items()))
    by = ", ".join(f"{tool['name']} {tool['version']}" for tool in bill["metadata"]["tools"]["components"])
    return checks, {f"packages (CycloneDX {bill['specVersion']}, {by})": counted}


def unwanted(urls: Iterable[str]) -> list[str]:
    """Packages that an image which only serves has no use for, by their URLs."""
    return sorted(url for url in urls if UNWANTED.match(unquote(url)))
