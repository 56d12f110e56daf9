"""Characters that XML cannot hold, as .xlsx writes them in strings: ``_x000D_`` (ECMA-376, ST_Xstring). Pure."""

import re

# Control characters and, as they would be read as an escape, the underscore that begins one.
_TO_ESCAPE = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
_ESCAPE = re.compile(r"_x([0-9A-Fa-f]{4})_")
# More characters do not fit into a cell, and programs cut them off.
CELL_CHARACTERS_MAX = 32_767


def escaped(text: str) -> str:
    """The string as a workbook has it."""
    return _TO_ESCAPE.sub(lambda found: f"_x{ord(found[0]):04X}_", text)


def unescaped(text: str) -> str:
    """The string that a workbook's string stands for."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text
