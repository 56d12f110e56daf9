"""Refuses what no model reads, before it is tokenized. Pure."""

from sentiment.errors import InvalidInput

# Of a target, in UTF-8. One has some words; and each is looked for in the text, and repeated in the answer.
TARGET_BYTES_MAX = 128


def check_text(text: str, field: str, bytes_max: int) -> None:
    """Check a text or a target, in a time that grows with its length alone.

    Args:
        text: what a caller sent.
        field: the request field that the error names.
        bytes_max: of UTF-8.

    Raises:
        InvalidInput: it is empty or blank, is not valid Unicode, or is too long.
    """
    if not text or text.isspace():
        raise InvalidInput(field, f"has {len(text)} characters and none but white space; at least one other is needed")
    size = len(text)
    if not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidInput(field, f"has a lone surrogate at code point {error.start}; Unicode text has none") from error
    if size > bytes_max:
        raise InvalidInput(field, f"has {size} bytes; the limit is {bytes_max}")


def unreadable(field: str, text: str) -> InvalidInput:
    """The error of a text or a target without a token."""
    return InvalidInput(field, f"has {len(text)} characters and none that the model reads; at least one is needed")
