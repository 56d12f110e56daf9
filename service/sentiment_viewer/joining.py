"""Joins ES modules into one script, so that a page can be a single file. Pure.

There is no parser: modules must have the one form that this module checks.
"""

import re
from collections import Counter
from collections.abc import Mapping

_IMPORT = re.compile(r'^import \{([^{}]*)\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|class|(?:async )?function\*?) (\w+))", re.MULTILINE)
_TOP_LEVEL = re.compile(r"^(?:const|let|var|class|(?:async )?function)\b\*? *(\w+)", re.MULTILINE)
# Code that changes its meaning in a joined script, is invalid there, or ends the script element.
_REFUSED = {
    "an import or export in another form": re.compile(r"^\s*(?:import|export)\b|\bimport\s*\(|\bimport\.meta\b", re.MULTILINE),
    "destructuring at the top level": re.compile(r"^(?:const|let|var)\s*[{\[]", re.MULTILINE),
    "await at the top level": re.compile(r"^(?:(?:const|let|var)\b.*=\s*)?await\b", re.MULTILINE),
    "</script or <!--, which end a script in HTML": re.compile(r"</script|<!--", re.IGNORECASE),
    "a carriage return": re.compile(r"\r"),
}


def joined(modules: Mapping[str, str], root: str) -> str:
    """Join a module with all modules that it imports, each after its own imports.

    Imports must have the form ``import {a, b} from "./name.js";``. Exports must precede const, class, function, async function or a
    generator of either kind. The words import and export are removed.

    Args:
        modules: sources by name.
        root: the module that starts the page.

    Raises:
        ValueError: a module has another form, is missing or part of an import cycle, or a top-level name is declared twice.
    """
    order: list[str] = []
    _visit(root, modules, order, ())
    bodies = {name: _body(name, modules[name]) for name in order}
    counts = Counter(found[1] for body in bodies.values() for found in _TOP_LEVEL.finditer(body))
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise ValueError(f"{', '.join(twice)}: declared more than once at the top level of {', '.join(order)}")
    return "\n".join(f"// {name}\n{body.strip()}\n" for name, body in bodies.items())


def _visit(name: str, modules: Mapping[str, str], order: list[str], importing: tuple[str, ...]) -> None:
    """Add a module to the order after its imports, and check that they export the imported names."""
    if name in importing:
        raise ValueError(f"{' imports '.join((*importing, name))}: an import cycle")
    if name in order:
        return
    if name not in modules:
        raise ValueError(f"{' imports '.join((*importing, name))}, which is missing")
    for names, other in _IMPORT.findall(modules[name]):
        _visit(other, modules, order, (*importing, name))
        there = set(_EXPORT.findall(modules[other]))
        lacking = sorted({part.strip() for part in names.rstrip(", \n").split(",")} - there)
        if lacking:
            raise ValueError(f"{name}: imports {', '.join(lacking)} from {other}, which does not export it")
    order.append(name)


def _body(name: str, source: str) -> str:
    """A module without imports and without the word export."""
    body = _EXPORT.sub("", _IMPORT.sub("", source))
    for what, pattern in _REFUSED.items():
        found = pattern.search(body)
        if found:
            line = body[found.start() :].strip().partition("\n")[0]
            raise ValueError(f"{name}: has {what}: {line[:80]!r}")
    return body
