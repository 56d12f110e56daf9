"""What a file, or a standard stream, cannot be used for."""

import errno

from sentiment.errors import SentimentError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class BadFile(SentimentError):
    """A file cannot be used. The message has the file, the line and what was expected."""


def reason(error: OSError) -> str:
    """Why a file cannot be written and, if the disk is full, what to do."""
    message = error.strerror or str(error)
    return f"{message}; make room and repeat the command" if error.errno in DISK_FULL else message
