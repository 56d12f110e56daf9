"""What can go wrong while a bundle is made, each with the exit code of the command line."""

import os

from sentiment.files.texts import DISK_FULL, reason


class ModelsError(Exception):
    """Base class: the message is meant for the person at the terminal, without a traceback."""


class BadData(ModelsError):
    """A data file cannot be used; the message names file, line, what stands there and what is wanted."""


class BadCheckpoint(ModelsError):
    """A checkpoint directory cannot be used; the message names what is missing or damaged."""


class OtherRun(ModelsError):
    """What was to be continued was begun with other settings, data or models; nothing of it was changed. Exit code 2."""


class ParityFailed(ModelsError):
    """An exported graph does not compute what the checkpoint computes; the message gives both bounds."""


class BadSignature(ModelsError):
    """A key or a signature cannot be used, or the signature is not of this bundle by this key."""


class NotExplainable(ModelsError):
    """A classifier's graph has attention that is not understood, or an operator without a gradient: no explain graph is made of it."""


def disk_full(error: Exception, shown: str) -> str:
    """Which file, ``shown`` if the error names none, could not be written, and what to do; empty if a disk has room."""
    for number in DISK_FULL:
        # What is written in Rust, safetensors and tokenizers, tells it in words alone.
        if getattr(error, "errno", None) == number or f"(os error {number})" in str(error):
            why = reason(OSError(number, os.strerror(number)))
            return f"{getattr(error, 'filename', None) or shown}: cannot be written: {why}"
    return ""
