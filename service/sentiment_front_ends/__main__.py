"""The command of the supervisor's processes: ``python -m sentiment_front_ends``. Standard input says which process to be."""

import sys
from functools import partial

from sentiment.errors import BadBundle, BadSettings, CannotServe, SentimentError, TaskEnded
from sentiment.observability import logs
from sentiment.serving import event_loop
from sentiment_front_ends.handshake import EXECUTOR, Start, leave_with_supervisor, read_start
from sentiment_front_ends.supervisor import BAD_BUNDLE, CANNOT_SERVE, FAILED, WRONG_SETTINGS

CODES = ((BadSettings, WRONG_SETTINGS), (BadBundle, BAD_BUNDLE), (CannotServe, CANNOT_SERVE))


def main() -> int:
    """Run a front end or the executor, as standard input says; returns the exit code."""
    start = read_start()
    leave_with_supervisor(start.folder)
    logs.configure_server(start.settings.log_level, start.settings.log_format, start.name)
    try:
        event_loop.run(_run(start))
        return 0
    except SentimentError as error:
        # ``app.serve`` has logged the executor's other errors, and a task's end is logged where it ends.
        if not isinstance(error, TaskEnded) and (start.name != EXECUTOR or isinstance(error, BadSettings)):
            logs.logger().error("cannot_serve", reason=str(error))
        return next((code for kind, code in CODES if isinstance(error, kind)), FAILED)


async def _run(start: Start) -> None:
    if start.name == EXECUTOR:
        from sentiment.serving import app  # noqa: PLC0415  # not needed by a front end
        from sentiment_front_ends.executor import Executor  # noqa: PLC0415  # as above

        await app.serve(start.settings, partial(Executor, start))
    else:
        from sentiment_front_ends.front_end import FrontEnd  # noqa: PLC0415  # not needed by the executor

        await FrontEnd(start).run()


if __name__ == "__main__":
    sys.exit(main())
