"""Joins ES modules into one script, so that a page can be a single file. Pure.

There is no parser: the modules are the viewer's own, and its tests check that each has the one form that is read here. Imports have the
form ``import {a, b} from "./name.js";``. Exports precede const, class, function, async function or a generator of either kind.
"""

import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import \{[^{}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=const|class|(?:async )?function)", re.MULTILINE)


def joined(modules: Mapping[str, str], root: str) -> str:
    """Join a module with all modules that it imports, each after its own imports. The words import and export are removed.

    Args:
        modules: sources by name.
        root: the module that starts the page.
    """
    bodies: dict[str, str] = {}

    def add(name: str) -> None:
        for other in _IMPORT.findall(modules[name]):
            if other not in bodies:
                add(other)
        bodies[name] = _EXPORT.sub("", _IMPORT.sub("", modules[name]))

    add(root)
    return "\n".join(f"// {name}\n{body.strip()}\n" for name, body in bodies.items())
