"""The server with another batching policy, to measure ours beside it: ``python -m tests.bench.policies fifo-8 serve ...``.

``single`` runs one row at a time in order of arrival; ``fifo-N`` pads up to N rows in order of arrival together, as peers do.
Front end, runners, deadlines and cancellation are ours, so that the policy alone differs; neither refuses what it cannot finish
behind others.
"""

import sys
from collections import deque
from typing import Any

from sentiment.batching.scheduler import Scheduler
from sentiment.batching.text import Waiting
from sentiment.batching.ticket import State, Ticket
from sentiment.cli.main import main
from sentiment.lifecycle import served_model


def make_fifo(rows_max: int) -> type[Scheduler[Waiting]]:
    """A scheduler that pads the ``rows_max`` rows that came first together."""

    class Fifo(Scheduler[Waiting]):
        def add(self, *arguments: Any, **named: Any) -> Ticket[Waiting]:  # as Scheduler's
            ticket = super().add(*arguments, **named)
            self.arrived.append(ticket)
            return ticket

        def _spread(self, chosen: list[tuple[list[Ticket[Waiting]], str]], runners_free: int) -> None:
            return

        def __init__(self, *arguments: Any, **named: Any) -> None:  # as Scheduler's
            super().__init__(*arguments, **named)
            self.arrived: deque[Ticket[Waiting]] = deque()
            self.forecast.check = lambda *_: None  # type: ignore[method-assign]  # lets everything in

        def _purge(self, now: float) -> list[Ticket[Waiting]]:
            return []

        def _choose(self, now: float, chosen: int) -> tuple[list[Ticket[Waiting]], str] | None:
            tickets: list[Ticket[Waiting]] = []
            while len(tickets) < rows_max and self.arrived:
                ticket = self.arrived.popleft()
                if ticket.state is State.WAITING:
                    self.queues[ticket.priority].remove(ticket)
                    tickets.append(ticket)
            return (tickets, "full") if tickets else None

    return Fifo


if __name__ == "__main__":
    policy = sys.argv[1]
    rows_max = 1 if policy == "single" else int(policy.removeprefix("fifo-"))
    served_model.Scheduler = make_fifo(rows_max)  # type: ignore[assignment,attr-defined]  # the policy under test
    sys.exit(main(sys.argv[2:]))
