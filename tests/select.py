"""What ``make test CHANGED=REV`` runs: the tests of the wings that a change reaches, and three smoke tests of each of the others.

A plugin of pytest (``-p tests.select --changed=REV``). A wing is a folder of ``tests``. It is reached if its package or one of its tests
imports what has changed, directly or not. It follows what the product imports, also inside functions or by a name in a string. It does not
follow what tests import of the product: they start servers, so every change would reach every wing.
"""

import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import grimp
import pytest

ROOT = Path(__file__).parents[1]
# The wings by the package that each tests. deploy and docs have none: they are reached if their scripts import what has changed, directly
# or not, or their tests do directly.
PACKAGES = {
    "sentiment": "core",
    "sentiment_front_ends": "front_ends",
    "sentiment_viewer": "viewer",
    "sentiment_tools": "tools",
    "sentiment_models": "models",
}
SCRIPTS = {"deploy", "docs"}
WINGS = {*PACKAGES.values(), *SCRIPTS}
# Of the core, but they follow the pages.
OF_PAGES = {"docs", "deploy", "core/interop/test_examples.py", "core/client/test_guide.py"}
# Patterns of changed files, and what they reach in ``tests``; the first that fits counts. What fits none reaches all, for instance
# pyproject.toml, Makefile, proto/ and the modules that all tests share.
REACHED: dict[str, set[str]] = {
    r"models/bundles/": {"core", "models", "viewer", "docs"},
    r"docs/|mkdocs\.yml|.*\.md$": OF_PAGES,
    r"deploy/|Dockerfile|\.dockerignore|renovate\.json|\.ci/|\.github/": {"deploy"},
    r"tests/bench/gpu/": {"models"},
    r"tests/bench/": set(),
    r"service/sentiment/settings\.py": WINGS,
    # Their modules reach others, see ``Modules``.
    r"service/|models/sentiment_models/|tests/\w+/": set(),
    r"models/": {"models"},
}
MODULE = re.compile(r"""["'](sentiment\w*(?:\.\w+)+|sentiment_\w+)(?::\w+)?["']""")
IMPORT = re.compile(r"^\s*(?:from|import) (sentiment[\w.]*)", re.MULTILINE)


class Modules:
    """Who imports whom."""

    def __init__(self) -> None:
        self.graph = grimp.build_graph(*PACKAGES, "tests", exclude_type_checking_imports=True, cache_dir=None)
        with (ROOT / "pyproject.toml").open("rb") as file:
            groups = tomllib.load(file)["project"]["entry-points"]
        # Who loads a module by its entry point. The core works without it, so those who import the loader are not reached.
        self.loaders: dict[str, set[str]] = {}
        for module, text in self._product():
            for name in MODULE.findall(text):
                for imported in (name, f"{name}.__main__"):
                    if imported in self.graph.modules and imported != module:
                        self.graph.add_import(importer=module, imported=imported)
                for point in groups.get(name, {}).values():
                    self.loaders.setdefault(point.partition(":")[0], set()).add(module)

    def _product(self) -> Iterator[tuple[str, str]]:
        for folder in ("service", "models"):
            for path in sorted((ROOT / folder).glob("sentiment*/**/*.py")):
                if (module := self.named(path.relative_to(ROOT).as_posix())) in self.graph.modules:
                    yield module, path.read_text(encoding="utf-8")

    def named(self, path: str) -> str:
        """The module of a file; of a file that is not one, or is gone, the package around it."""
        file = PurePosixPath(path)
        parts = (file.with_suffix("") if file.suffix == ".py" else file.parent).parts
        name = ".".join(parts if parts[0] == "tests" else parts[1:]).removesuffix(".__init__")
        while name and name not in self.graph.modules:
            name = name.rpartition(".")[0]
        return name

    def wings(self, module: str) -> set[str]:
        """The wings that a change of this module reaches."""
        reached = self._reached(module)
        found = {PACKAGES.get(name.split(".")[0]) or name.split(".")[1] for name in reached if name != "tests"}
        for wing in SCRIPTS - found:
            imported = IMPORT.findall("".join(script.read_text(encoding="utf-8") for script in (ROOT / wing).glob("*.py")))
            tests = self.graph.find_modules_that_directly_import(module)
            if reached.intersection(imported) or any(test.startswith(f"tests.{wing}.") for test in tests):
                found.add(wing)
        return found

    def _reached(self, module: str) -> set[str]:
        """The module and those that import it, directly or not: of tests tests, of the product modules of the product."""
        of_tests = module.startswith("tests")
        downstream = self.graph.find_downstream_modules(module, as_package=not of_tests and bool(self.graph.find_children(module)))
        found = {module, *(one for one in downstream if one.startswith("tests") == of_tests)}
        return found | {loader for one in found for loader in self.loaders.get(one, ())}


def reached(paths: Iterable[str]) -> set[str]:
    """Wings, and files in ``tests``, that a change of these files reaches."""
    found, modules = set[str](), Modules()
    for path in paths:
        found |= next((wings for pattern, wings in REACHED.items() if re.match(pattern, path)), WINGS)
        if re.match(r"service/sentiment|models/sentiment_models/|tests/(?!bench/)\w+/", path):
            found |= modules.wings(modules.named(path))
    return found & (WINGS | OF_PAGES)


def changed_since(revision: str) -> list[str]:
    """The files that differ from where this branch left ``revision``, also those that git does not know yet.

    Raises:
        pytest.UsageError: git cannot tell.
    """

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise pytest.UsageError(f"--changed={revision}: {done.stderr.strip() or 'has no commit in common with HEAD'}")
        return done.stdout.splitlines()

    (base,) = git("merge-base", revision, "HEAD")
    return git("diff", "--name-only", "--no-renames", base) + git("ls-files", "--others", "--exclude-standard")


class Selection:
    """Leaves out the tests of wings that are not reached, but for the smoke tests."""

    def __init__(self, revision: str, chosen: set[str]) -> None:
        self.revision = revision
        self.chosen = chosen

    def has(self, path: Path) -> bool:
        """Whether all tests of a file, or of all files of a folder, run."""
        parts = path.relative_to(ROOT / "tests").parts
        return parts[0] in self.chosen or "/".join(parts) in self.chosen

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Do not even import files that have nothing to run."""
        is_test = re.match(r"test_\w+\.py", collection_path.name)
        return True if is_test and not self.has(collection_path) and "pytest.mark.smoke" not in collection_path.read_text("utf-8") else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the smoke tests of the others."""
        left_out = [item for item in items if not self.has(item.path) and not item.get_closest_marker("smoke")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Say what did not run."""
        if not hasattr(config, "workerinput"):
            left_out = ", ".join(sorted(WINGS - self.chosen))
            print(f"changed since {self.revision}; not reached, left out but for smoke tests: {left_out or 'nothing'}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the revision."""
    parser.addoption("--changed", metavar="REV", required=True, help="run the tests of the wings that the change since REV reaches")


def pytest_configure(config: pytest.Config) -> None:
    """Select."""
    revision = config.getoption("changed")
    config.pluginmanager.register(Selection(revision, reached(changed_since(revision))))
