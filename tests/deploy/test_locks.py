"""The locks that the images are built of: no index is asked, so they are held against pyproject.toml and the recipe that writes them."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "deploy/locks"
IMAGES = ("cpu", "gpu")
LOCKED = (*IMAGES, "build", "tools")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# uv's word for what asks for a package: the project, or a file beside the lock.
ASKED_BY_US = re.compile(r"^ +# +(?:via )?(?:sentiment-service \(pyproject\.toml\)|-r deploy/locks/\w+\.in)$", re.MULTILINE)
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Pin:
    """One package of a lock."""

    requirement: Requirement
    hashes: tuple[str, ...]
    ours: bool

    @property
    def version(self) -> str:
        (specifier,) = self.requirement.specifier
        return specifier.version

    def holds(self, python: str, machine: str) -> bool:
        """Whether pip installs it there, on Linux."""
        environment = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine, "sys_platform": "linux"}
        return self.requirement.marker is None or self.requirement.marker.evaluate(environment)


def pins(name: str) -> list[Pin]:
    _, *entries = re.split(r"^(?=\w)", (LOCKS / f"{name}.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [
        Pin(
            Requirement(entry.partition("\\\n")[0]),
            tuple(re.findall(r"^ +--hash=(\S+)(?: \\)?$", entry, re.MULTILINE)),
            ASKED_BY_US.search(entry) is not None,
        )
        for entry in entries
    ]


def wanted(name: str) -> list[Requirement]:
    """What is asked for directly: by pyproject.toml, with the extras of the lock's own command, or by a file."""

    def with_extras(requirements: list[str]) -> Iterator[Requirement]:
        for requirement in map(Requirement, requirements):
            if requirement.name == PROJECT["project"]["name"]:
                for extra in requirement.extras:
                    yield from with_extras(PROJECT["project"]["optional-dependencies"][extra])
            else:
                yield requirement

    if name not in IMAGES:
        return list(map(Requirement, (LOCKS / f"{name}.in").read_text(encoding="utf-8").splitlines()))
    extras = re.findall(r"--extra=(\w+)", command(name))
    project = [*PROJECT["project"]["dependencies"], f"{PROJECT['project']['name']}[{','.join(extras)}]"]
    return list(with_extras(project))


def command(name: str) -> str:
    """What wrote the lock, by its own word."""
    return (LOCKS / f"{name}.txt").read_text(encoding="utf-8").splitlines()[1].removeprefix("#    ")


@pytest.mark.parametrize("name", LOCKED)
def test_a_lock_has_what_is_asked_for_and_nothing_that_is_not(name: str) -> None:
    locked = pins(name)

    assert {canonicalize_name(pin.requirement.name) for pin in locked if pin.ours} == {
        canonicalize_name(each.name) for each in wanted(name)
    }
    for requirement in wanted(name):
        for python in PYTHONS:
            for machine in MACHINES:
                found = [pin.version for pin in locked if pin.requirement.name == requirement.name and pin.holds(python, machine)]
                assert len(found) == 1, f"{requirement.name} for Python {python} on {machine}: make locks"
                assert requirement.specifier.contains(found[0]), f"{requirement}, locked {found[0]}: make locks"


@pytest.mark.parametrize("name", LOCKED)
def test_every_package_of_a_lock_is_one_version_with_hashes_and_names_no_index(name: str) -> None:
    text, locked = (LOCKS / f"{name}.txt").read_text(encoding="utf-8"), pins(name)

    assert locked
    for pin in locked:
        assert str(pin.requirement.specifier) == f"=={pin.version}"
        assert pin.hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in pin.hashes)
    assert "://" not in text
    assert "index" not in command(name)


@pytest.mark.parametrize("name", LOCKED)
def test_a_lock_was_written_by_the_recipe_of_make_locks(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (lock,) = re.findall(r"^LOCK = (.*)$", makefile, re.MULTILINE)
    recipes = re.findall(r"^\t\$\(LOCK\) (.*)$", makefile, re.MULTILINE)

    assert command(name) in [f"{lock.replace(' --quiet $(if $(UPGRADE),--upgrade)', '')} {recipe}" for recipe in recipes]


def test_what_builds_the_package_is_locked_as_pyproject_names_it() -> None:
    assert (LOCKS / "build.in").read_text(encoding="utf-8").splitlines() == PROJECT["build-system"]["requires"]


def test_pip_installs_nothing_in_an_image_but_the_package_itself_and_wheels_of_a_lock() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace(" \\\n", "")
    installs = re.findall(r"/pip install (.*?)(?: && |$)", text, re.MULTILINE)
    locked = [re.search(r"--only-binary=:all: --require-hashes --requirement (?:/locks/)?(\w+)\.txt$", each) for each in installs]

    assert sorted(found[1] for found in locked if found) == sorted([*IMAGES, "build"])
    assert [
        each for each, found in zip(installs, locked, strict=True) if not found and not each.endswith("--no-index --no-deps /dist/*.whl")
    ] == []
