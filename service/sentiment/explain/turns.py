"""Decides which explanation goes on, how much time it can count on, and which are admitted. Pure: time is an argument.

Short and long explanations have a lane each, and each lane a thread: a short one never waits for a run of a long one. In a lane one works
at a time, for a slice: up to the next run of a graph.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

# Share of the work that short explanations get while long ones wait too.
SHORT_SHARE = 0.75
# Explanations of a lane that are begun and not finished. Each has a thread, and takes up to 10 MB if its text is long.
STARTED_MAX = 8
# Those of them that hold attention maps of a long text: up to 75 MB each.
HEAVY_MAX = 2


@dataclass(eq=False, kw_only=True)
class Entry:
    """An explanation that waits or is under way.

    ``work_s`` and ``least_s``: what it takes, and what it takes to be of use, in predicted seconds of work. ``heavy``: it holds attention
    maps of a long text. ``slice_at``: when its latest slice began. ``behind``: it cannot go on before its reader has read.
    """

    caller: str
    short: bool
    heavy: bool
    arrived_at: float
    deadline_at: float
    work_s: float
    least_s: float
    worked_s: float = 0.0
    started_at: float | None = None
    slice_at: float = 0.0
    behind: bool = False

    def remaining_s(self, now: float, share: float) -> float:
        """Seconds of work that it still takes, at most until its deadline: if it has overrun, a quarter of what it has taken so far."""
        return max(0.0, min(max(self.work_s - self.worked_s, self.worked_s / 4), (self.deadline_at - now) * share))

    def needs_s(self, now: float, share: float) -> float:
        """The least work that must remain available to it.

        At most half of what its deadline allows, so that an expensive request is not refused when the queue is empty.
        """
        return max(0.0, min(self.least_s - self.worked_s, (self.deadline_at - now) * share / 2))


E = TypeVar("E", bound=Entry)


class NoRoom(Exception):
    """An explanation is not admitted. ``retry_after_s``: when it may be."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class Account:
    """A leaky bucket: work fills it, and ``share`` seconds drain from it each second.

    It never goes below 0, so idle time gives no credit.
    """

    owed_s: float = 0.0
    _at: float = 0.0

    def settle(self, now: float, working: int, share: float) -> None:
        """Count the time since the last call, during which ``working`` slices ran."""
        self.owed_s = max(0.0, self.owed_s + (working - share) * (now - self._at))
        self._at = now


@dataclass(slots=True)
class _Lane(Generic[E]):
    share: float
    entries: list[E] = field(default_factory=list)
    # Seconds of work by caller, as long as the caller has an entry. At least ``reached_s`` for every caller that can go on: one that has
    # just come, or whose reader was behind, does not get the time back in which it had no turn.
    used_s: dict[str, float] = field(default_factory=dict)
    reached_s: float = 0.0
    # What works now.
    running: E | None = None
    # Long explanations pay for the work of both lanes, short ones for their own alone.
    account: Account = field(default_factory=Account)

    @property
    def able(self) -> list[E]:
        """The entries that can go on."""
        return [one for one in self.entries if not one.behind and (one.started_at is not None or self.may_begin(one))]

    def may_begin(self, entry: E, without: E | None = None) -> bool:
        """Whether there is room to begin an entry, if ``without`` had ended."""
        begun = [one for one in self.entries if one.started_at is not None and one is not without]
        limits = [(STARTED_MAX, begun)]
        if entry.heavy:
            limits.append((HEAVY_MAX, [one for one in begun if one.heavy]))
        return all(len(ones) < most and sum(one.caller == entry.caller for one in ones) < most // 2 for most, ones in limits)

    def blocks(self, one: E, entry: E) -> bool:
        """Whether ``entry`` could begin if ``one`` had ended, and cannot now."""
        waits = one.started_at is not None and entry.started_at is None
        return waits and not self.may_begin(entry) and self.may_begin(entry, without=one)


class Turns(Generic[E]):
    """The turns of explanations. ``share``, an argument of most methods: of one core for all of them, above 0 and at most 1.

    It promises:

    - Both lanes together work for ``share`` of the time, and at most one slice each more.
    - Short explanations wait for nothing that long ones do. While both have work, the short ones get SHORT_SHARE of it and the long ones
      the rest, so neither waits for ever.
    - While n callers of a lane have work, each gets 1/n of what the lane works, less at most a slice of each. So no caller waits for ever,
      and of a caller's explanations the one with the earliest deadline goes on.
    - At most ``places`` explanations of a lane wait to begin. Callers that have more of them give way to those that have fewer: a caller
      that has none is refused for lack of a place only if the places are those of as many other callers.
    - An explanation is admitted only if the others are predicted to leave it the work that it needs. It gives way to one that is admitted
      to its lane later and takes that work. What the other lane or an overrun takes meanwhile is not looked at again: less than one in 200
      then waits until its deadline without a result, even if a third take longer than predicted (``tests/core/explain/test_turns.py``).
    - At most STARTED_MAX of a lane are begun, of which HEAVY_MAX are heavy, and no caller has more than half of either.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._lanes: dict[bool, _Lane[E]] = {True: _Lane(SHORT_SHARE), False: _Lane(1 - SHORT_SHARE)}

    def __len__(self) -> int:
        return sum(len(lane.entries) for lane in self._lanes.values())

    @property
    def running(self) -> Sequence[E]:
        """The explanations that work now, at most one of each lane."""
        return [lane.running for lane in self._lanes.values() if lane.running is not None]

    def __contains__(self, entry: E) -> bool:
        return entry in self._lanes[entry.short].entries

    def admit(self, entry: E, now: float, share: float) -> Sequence[E]:
        """Let an explanation in.

        Returns:
            Those that have to go: one whose place it takes, and those that it leaves too little time. None of them has begun.

        Raises:
            NoRoom: there is no place for it, or no time.
        """
        lane = self._lanes[entry.short]
        time_s, needs_s = self.available_s(entry, now, share), entry.needs_s(now, share)
        if time_s < needs_s:
            others = f"other explanations leave it {max(0.0, time_s):.2f} s of work until its deadline in {entry.deadline_at - now:.2f} s"
            raise NoRoom(f"{others}; it needs {needs_s:.2f} s", (needs_s - time_s) / share)
        waiting = [one for one in lane.entries if one.started_at is None]
        gone = []
        if len(waiting) >= self._places:
            gone = [self._gives_way(waiting, entry, now, share)]
            self.drop(gone[0])
        lane.entries.append(entry)
        lane.used_s.setdefault(entry.caller, lane.reached_s)
        # The newest first: that may leave enough for the others.
        for one in reversed([one for one in waiting if one not in gone]):
            if self.available_s(one, now, share) < one.needs_s(now, share):
                self.drop(one)
                gone.append(one)
        return gone

    def drop(self, entry: E) -> None:
        """Forget an explanation that has ended."""
        lane = self._lanes[entry.short]
        lane.entries.remove(entry)
        if all(one.caller != entry.caller for one in lane.entries):
            del lane.used_s[entry.caller]

    def next(self, short: bool, now: float, share: float) -> tuple[E | None, float]:
        """The explanation of a lane that goes on, and the instant from which it may. None if none can."""
        self._settle(now, share)
        lane = self._lanes[short]
        able = lane.able
        if not able:
            return None, now
        for one in able:
            lane.used_s[one.caller] = max(lane.used_s[one.caller], lane.reached_s)
        entry = min(able, key=lambda one: (lane.used_s[one.caller], one.deadline_at, one.arrived_at))
        lane.reached_s = lane.used_s[entry.caller]
        return entry, now + lane.account.owed_s / (share * self._share(lane))

    def begin(self, entry: E, now: float, share: float) -> None:
        """A slice begins."""
        self._settle(now, share)
        self._lanes[entry.short].running = entry
        entry.slice_at = now
        entry.started_at = now if entry.started_at is None else entry.started_at

    def end(self, entry: E, now: float, share: float) -> None:
        """A slice has ended. Its explanation goes on, until ``drop``."""
        self._settle(now, share)
        lane = self._lanes[entry.short]
        entry.worked_s += now - entry.slice_at
        lane.used_s[entry.caller] += now - entry.slice_at
        lane.running = None

    def available_s(self, entry: E, now: float, share: float) -> float:
        """Seconds of work that an explanation can count on before its deadline: what others leave, but no less than its fair share.

        ``entry`` may not be admitted yet.
        """
        lane = self._lanes[entry.short]
        rivals = [one for one in lane.entries if one is not entry and not one.behind]
        # One that has no room to begin waits for the end of another.
        ends_s = min((one.remaining_s(now, share) for one in lane.entries if lane.blocks(one, entry)), default=0.0)
        all_s = max(0.0, (entry.deadline_at - now) * share - ends_s)
        other_s = sum(one.remaining_s(now, share) for one in self._other(lane).entries if not one.behind)
        lane_s = all_s - min((1 - lane.share) * all_s, other_s)
        others = [one for one in rivals if one.caller != entry.caller]
        place = entry.deadline_at, entry.arrived_at
        before = [one for one in rivals if one.caller == entry.caller and (one.deadline_at, one.arrived_at) <= place]
        fair_s = lane_s / (1 + len({one.caller for one in others}))
        return max(fair_s, lane_s - sum(one.remaining_s(now, share) for one in others)) - sum(one.remaining_s(now, share) for one in before)

    def room_s(self, short: bool, now: float, share: float) -> float:
        """In how many seconds a place of a lane is predicted to be free."""
        return min((one.remaining_s(now, share) / share for one in self._lanes[short].entries), default=0.0)

    def blocking(self) -> Sequence[E]:
        """Explanations whose reader is behind and that keep another one from beginning."""
        lanes = self._lanes.values()
        return [one for lane in lanes for one in lane.entries if one.behind and any(lane.blocks(one, other) for other in lane.entries)]

    def _other(self, lane: _Lane[E]) -> _Lane[E]:
        return next(one for one in self._lanes.values() if one is not lane)

    def _settle(self, now: float, share: float) -> None:
        short, long = self._lanes[True], self._lanes[False]
        short.account.settle(now, int(short.running is not None), share * self._share(short))
        long.account.settle(now, sum(lane.running is not None for lane in (short, long)), share)

    def _share(self, lane: _Lane[E]) -> float:
        """What a lane may have of the work now. The long ones pay for all, so they may have what the short ones leave."""
        return lane.share if lane is self._lanes[True] and self._other(lane).able else 1.0

    def _gives_way(self, waiting: Sequence[E], entry: E, now: float, share: float) -> E:
        """The newest waiting explanation of the caller that has the most of them."""
        counts = Counter(one.caller for one in waiting)
        caller, most = counts.most_common(1)[0]
        # With one fewer, the two would change places for ever.
        if most < counts[entry.caller] + 2:
            raise NoRoom(f"{len(waiting)} explanations are waiting; the limit is {self._places}", self.room_s(entry.short, now, share))
        return max((one for one in waiting if one.caller == caller), key=lambda one: one.arrived_at)
