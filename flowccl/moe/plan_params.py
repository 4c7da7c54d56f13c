"""How a plan is made: the choices of the planner."""

from dataclasses import dataclass, replace
from typing import Literal

Order = Literal["stages", "shifted", "ranks"]


@dataclass(frozen=True, slots=True)
class PlanParams:
    """How a plan is made.

    `balance`: use the GPUs of a host that have network cards to spare. `links`: choose lanes by the loads of all links,
    inside hosts, too. `residual`: the share of the crossing time that
    stages need not cover. `pieces`: messages of a pair of GPUs inside a host, besides the small ones at the start or
    at the end. `cuts`: the times, as shares of the crossing time, at which stages are divided. `lead`: how long before
    a message crosses, as a share, its data is collected. `rounds`: of balancing lanes or links. `in_turn`: the rails
    send the data that crosses trunks one after the other, and other data meanwhile. `order`: stages of an
    open shop, or to the hosts behind the sender one after the other, or to all hosts in rank order.
    """

    balance: bool = True
    links: bool = False
    residual: float = 0.003
    pieces: int = 8
    cuts: tuple[float, ...] = (1 / 32, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8, 31 / 32)
    lead: float = 1 / 8
    rounds: int = 8
    in_turn: bool = False
    order: Order = "stages"


FINE = PlanParams()
DENSE = replace(FINE, pieces=16, cuts=tuple(k / 32 for k in range(1, 32)))
MANY = replace(FINE, pieces=32)
LINKS = replace(DENSE, links=True)
MANY_LINKS = replace(LINKS, pieces=32)
MEDIUM = replace(FINE, residual=0.03, cuts=(1 / 16, 1 / 4, 1 / 2, 3 / 4, 15 / 16), lead=1 / 2)
COARSE = replace(FINE, residual=0.03, pieces=1, cuts=(1 / 4, 3 / 4))
UNCUT = replace(FINE, residual=0.03, cuts=())
WHOLE = replace(FINE, residual=0.1, pieces=1, cuts=())
OWN = replace(WHOLE, balance=False)
FAST = replace(FINE, residual=0.0)
FAST_WHOLE = replace(FAST, pieces=1, cuts=())
RAILS = replace(FAST, order="shifted")
SPREAD_OUT = replace(RAILS, balance=False)
DIRECT = replace(SPREAD_OUT, order="ranks")
