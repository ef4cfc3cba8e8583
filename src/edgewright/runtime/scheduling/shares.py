"""Sharing by weight: earliest eligible virtual deadline first.

While clients of weights w (their sum is W) take part, a service of cost c gives every one of them a right to c w / W
and is taken from the one that was served. What a client is still owed is its lag; the lags add up to 0. It is eligible
while it is owed something (lag >= 0); of these, the one whose next quantum would be due first on a device of its own
share is served: the smallest (cost - lag) / w. No lag leaves the range of one quantum, up or down, while clients stay.

Written in virtual time V, which a service moves on by c / W: a client has a virtual start v with lag = w (V - v), is
eligible when v <= V, and due at v + cost / w (Stoica and Abdel-Wahab, "Earliest Eligible Virtual Deadline First",
1995).

Who leaves gives what it was owed to the others by weight, and comes back with nothing: no credit is hoarded. What it
had too much it owes still when it comes back, less what its share would have been meanwhile, so that going and coming
brings no advantage either.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from edgewright.runtime.scheduling.seat import Seat
from edgewright.runtime.scheduling.work import Phase

#: Part of a quantum by which sums of floating point numbers may be wrong.
_TOLERANCE = 1e-6
#: A learned cost moves towards each new one by at least one part in so many: it keeps up with growing contexts.
_REMEMBERED = 32


@dataclass(slots=True, eq=False)
class _Account:
    """A client's virtual start and expected cost (`span` in virtual time, and what rounding may take or add to it).

    `debt` is what it owed at virtual time `left`, when it left in `epoch`.
    """

    seat: Seat
    start: float = 0.0
    cost: float = 1.0
    span: float = 1.0
    slack: float = 0.0
    #: Whether the expected cost is this client's own, and not that of quanta in general.
    known: bool = True
    debt: float = 0.0
    left: float = 0.0
    epoch: int = -1
    #: The cost that was charged when the running service began, and the epoch of that.
    charged: float = 0.0
    charged_in: int = -1


class Shares:
    """Who is next by weight. Costs are counted in quanta, or where `by_time` in nanoseconds of the accelerator.

    A discipline (see `disciplines`).
    """

    exclusive = True

    def __init__(self, by_time: bool = False) -> None:
        self._by_time = by_time
        self._accounts: dict[int, _Account] = {}
        self._members: list[_Account] = []
        self._virtual = 0.0
        self._total = 0.0
        #: Debts and charges of an earlier epoch no longer count: weights have changed, or nobody was there.
        self._epoch = 0
        self._learned: dict[tuple[int, Phase], tuple[float, int]] = {}
        #: What a quantum of unknown cost is taken for: the largest one known, so that it does not push itself forward.
        self._largest = 1.0

    def clear(self) -> None:
        """Forget who is owed what, and send all away: the weights change."""
        self._members.clear()
        self._virtual = self._total = 0.0
        self._epoch += 1

    def join(self, seat: Seat) -> None:
        """Let a client take part from now on, with its present weight."""
        account = self._accounts.setdefault(seat.index, _Account(seat))
        lag = 0.0
        if not self._members:
            self._epoch += 1
        elif account.epoch == self._epoch:
            lag = min(0.0, account.debt + seat.weight * (self._virtual - account.left))
            self._virtual -= lag / self._total
        account.start = self._virtual - lag / seat.weight
        self.expect(seat)
        insort(self._members, account, key=_index)
        self._total = sum(member.seat.weight for member in self._members)

    def leave(self, seat: Seat) -> None:
        """Let a client no longer take part; the others share what it was owed, or owed."""
        account = self._accounts[seat.index]
        lag = seat.weight * (self._virtual - account.start)
        self._members.remove(account)
        self._total = sum(member.seat.weight for member in self._members)
        if self._members:
            self._virtual += lag / self._total
        account.debt, account.left, account.epoch = min(0.0, lag), self._virtual, self._epoch

    def expect(self, seat: Seat) -> None:
        """Take note of the phase of the quantum that a client waits for."""
        account = self._accounts[seat.index]
        if self._by_time:
            learned = self._learned.get((seat.index, seat.phase))
            account.known = learned is not None
            account.cost = max(learned[0], 1.0) if learned else self._largest
        account.span = account.cost / seat.weight
        account.slack = account.span * _TOLERANCE

    def begin(self, seat: Seat) -> None:
        """Charge a service that begins, as far as its cost is known."""
        account = self._accounts[seat.index]
        account.charged, account.charged_in = account.cost, self._epoch
        self._charge(account, account.cost)

    def finish(self, seat: Seat, cost_ns: int) -> None:
        """Put right what a service was charged, now that it is known, and learn from it."""
        if not self._by_time:
            return
        account = self._accounts[seat.index]
        key = (seat.index, seat.phase)
        self._learned[key] = _mean(self._learned.get(key, (0.0, 0)), cost_ns)
        self._largest = max(self._largest, self._learned[key][0])
        if seat.present and account.charged_in == self._epoch:
            self._charge(account, cost_ns - account.charged)
        for member in self._members:
            if member is account or not member.known:
                self.expect(member.seat)

    def _charge(self, account: _Account, cost: float) -> None:
        self._virtual += cost / self._total
        account.start += cost / account.seat.weight

    def pick(self) -> Seat | None:
        """Return the client whose turn it is, None where nobody takes part; ties go to the first."""
        best: _Account | None = None
        due, virtual = float("inf"), self._virtual
        for account in self._members:
            start = account.start
            mine = start + account.span
            if mine >= due or start > virtual + account.slack:
                continue
            # What is less by rounding only is not less.
            if best is None or mine < due - min(best.slack, account.slack):
                best, due = account, mine
        if best is None and self._members:
            # Lags add up to 0, so somebody is eligible; rounding alone leads here.
            best = min(self._members, key=_start)
        return None if best is None else best.seat


def _mean(known: tuple[float, int], cost: float) -> tuple[float, int]:
    mean, count = known
    return mean + (cost - mean) / min(count + 1, _REMEMBERED), count + 1


def _index(account: _Account) -> int:
    return account.seat.index


def _start(account: _Account) -> float:
    return account.start
