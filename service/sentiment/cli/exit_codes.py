"""Runs a command: its errors become a line on standard error and an exit code."""

import sys
from collections.abc import Callable

from sentiment.errors import BadBundle, BadSettings, SentimentError
from sentiment.extras import to_install
from sentiment.files.standard_streams import ReaderGone, standard_streams
from sentiment.files.visible import visible

DONE, FAILED, WRONG_USAGE, BAD_BUNDLE = 0, 1, 2, 3
# As a shell has them of a process that SIGINT or SIGPIPE ended.
INTERRUPTED, BROKEN_PIPE = 130, 141


def exit_code(run: Callable[[], int]) -> int:
    """Run a command. One of our errors ends it with a line on standard error and the exit code of its kind."""
    try:
        with standard_streams():
            return run()
    except ReaderGone:
        return BROKEN_PIPE
    except ModuleNotFoundError as error:
        if (message := to_install(error)) is None:
            raise
        return _fail(message, WRONG_USAGE)
    except SentimentError as error:
        wrong = isinstance(error, BadSettings) or _is_of_an_option(error)
        return _fail(error, WRONG_USAGE if wrong else BAD_BUNDLE if isinstance(error, BadBundle) else FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED


def _is_of_an_option(error: SentimentError) -> bool:
    """Whether a server refused a request for an option's value, such as a label that the model does not have."""
    fields = [violation.field for violation in getattr(error, "violations", ())]
    # The user did not give the limit of an explanation's bytes.
    return any(field in ("label", "truncation") or (field.startswith("options.") and field != "options.bytes_max") for field in fields)


def _fail(error: object, code: int) -> int:
    print(f"error: {visible(str(error))}", file=sys.stderr)
    return code
