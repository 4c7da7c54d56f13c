"""How methods differ in the turns that they need from auto."""

from dataclasses import dataclass

QUICK_S = 2.5  # for a solver, beside searches


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is special about a method.

    needs_steps   it is good after many steps: it gets some even while it is behind
    few_rungs     it needs its time to improve: it takes only the powers of two on the ladder
    goes_on       it goes on from what others found, so it is asked where they are best
    stays_ahead   what it found it improves better than those who would go on from it
    tells_late    what its searches tell counts after the round: two of them may make steps side by side
    comes_last    its one step takes long: at one chunk, when others have worked as long
    begins        how many times as much work its first step is as those of others
    takes_s       the work of a step, where that does not depend on what is asked
    good_far_up   with many chunks it is good at sums that all want, and with few it is not
    has_one       it has one schedule for each number of chunks: no higher on the ladder than it is the best
    """

    needs_steps: bool = False
    few_rungs: bool = False
    goes_on: bool = False
    stays_ahead: bool = False
    tells_late: bool = False
    comes_last: bool = False
    begins: float = 1.0
    takes_s: float = 0.0
    good_far_up: bool = False
    has_one: bool = False


_NONE = Traits()
_TRAITS = {
    "greedy": Traits(tells_late=True),
    "trees": Traits(good_far_up=True),
    "lns-quotient": Traits(begins=3.0, needs_steps=True, few_rungs=True, stays_ahead=True, tells_late=True),
    "lns": Traits(needs_steps=True, goes_on=True, tells_late=True),
    "phase-insertion": Traits(needs_steps=True),
    "reroute": Traits(tells_late=True),
    "cut": Traits(begins=0.2),
    "lp-quick": Traits(comes_last=True, takes_s=QUICK_S),
    **dict.fromkeys(("ring", "recursive-doubling", "direct", "tree", "symmetric"), Traits(has_one=True)),
}


def traits_of(name: str) -> Traits:
    """Of a method by its name."""
    return _TRAITS.get(name, _NONE)
