"""The errors of ``sentiment-models``. The command line exits with 1 unless the class names another code."""

import errno
import os

from sentiment.files.errors import DISK_FULL, reason


class ModelsError(Exception):
    """Base class. The command line prints the message without a traceback."""


class BadData(ModelsError):
    """A data file cannot be used. The message names the file, the line, its content and what is expected."""


class BadCheckpoint(ModelsError):
    """A checkpoint directory cannot be used. The message names what is missing or damaged."""


class OtherRun(ModelsError):
    """The run to continue was started with other settings, data or models. It was not changed. Exit code 2."""


class ParityFailed(ModelsError):
    """An exported graph does not compute what the checkpoint computes. The message gives the measured error and the limit."""


class NotInInt8(ModelsError):
    """The graph cannot be served in int8: a weight cannot be rounded, or the int8 graph fails its proof. fp32 may do."""


class BadSignature(ModelsError):
    """A key or a signature cannot be used, or the signature does not match the bundle and the key."""


class NotExplainable(ModelsError):
    """No explain graph can be made: the classifier has unknown attention or an operator without a gradient rule."""


def disk_full(error: Exception, shown: str) -> str:
    """Return a message that names the file that could not be written, or "" if ``error`` does not come from a full disk or a limit of it.

    Args:
        error: any exception.
        shown: the file to name if the error names none.
    """
    for number in (*DISK_FULL, errno.EFBIG):
        # safetensors and tokenizers, which are written in Rust, give the number only in the text.
        if getattr(error, "errno", None) == number or f"(os error {number})" in str(error):
            why = reason(OSError(number, os.strerror(number)))
            return f"{getattr(error, 'filename', None) or shown}: cannot be written: {why}"
    return ""
