"""A log event as aligned text for a person at a terminal, coloured or plain. Pure; used by ``logs``."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

# Codes of the 256-colour palette with a contrast of at least 4 to 1 on black and on white.
LEVEL_COLOURS = {"debug": "38;5;243", "info": "38;5;28", "warning": "38;5;130", "error": "38;5;161", "critical": "1;38;5;161"}
_TIME, _EVENT, _KEY = "38;5;243", "1", "38;5;31"
# Columns; longer names shift their line's fields.
_LEVEL_COLUMNS, _EVENT_COLUMNS = 8, 18
# Fields that get a line of their own below the event, and its title: a person looks for them.
OWN_LINES = {"viewer": "Viewer", "try_it": "Try it"}


class TextRenderer:
    """A structlog processor, the last one: makes a line of an event, or several where it has a traceback or a field of ``OWN_LINES``."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, _logger: object, _method: str, event: Mapping[str, Any]) -> str:  # Any: fields have any type
        """The text of the event, without a line feed at its end."""
        fields = dict(event)
        at = datetime.fromisoformat(fields.pop("timestamp")).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        level, name = str(fields.pop("level")), _shown(fields.pop("event", ""), quotes=False)
        traceback = str(fields.pop("exception", ""))
        own = {title: fields.pop(field) for field, title in OWN_LINES.items() if field in fields}
        pairs = [f"{self._in(_KEY, _shown(key))}={_shown(value)}" for key, value in fields.items()]
        padded = name.ljust(_EVENT_COLUMNS) if pairs else name
        coloured_level = self._in(LEVEL_COLOURS.get(level, ""), level.ljust(_LEVEL_COLUMNS))
        lines = [" ".join([self._in(_TIME, at), coloured_level, self._in(_EVENT, padded), *pairs])]
        lines += [f"  {title.ljust(8)}{self._in(_EVENT, _shown(value, quotes=False))}" for title, value in own.items()]
        lines += ["  " + _shown(part, quotes=False) for part in traceback.splitlines()]
        return "\n".join(lines)

    def _in(self, codes: str, text: str) -> str:
        return f"\x1b[{codes}m{text}\x1b[0m" if self._colour and codes else text


def _shown(value: object, *, quotes: bool = True) -> str:
    """A value on one line. What a terminal could act on (control characters, changes of the writing direction) is shown as escapes.

    ``quotes``: quote a text that has white space or marks, so that its end is seen.
    """
    text = value if isinstance(value, str) else repr(value)
    if quotes and isinstance(value, str) and not (text and text.isprintable() and not set(text) & set(" ='\"")):
        return repr(text)
    return text if text.isprintable() else repr(text)[1:-1]
