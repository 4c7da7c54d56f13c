"""How methods differ in the turns that they need from auto."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is special about a method.

    climbs_ahead  its steps are quick: it goes up the ladder ahead of the others
    needs_steps   it is good after many steps: it gets some even while it is behind
    few_rungs     it needs its time to improve: it takes only the powers of two on the ladder
    goes_on       it goes on from what others found, so it is asked where they are best
    stays_ahead   what it found it improves better than those who would go on from it
    tells_late    what its searches tell counts after the step: two of them may make steps side by side
    comes_last    its one step takes long: after the ladder, at one chunk
    has_one       it has one schedule for each number of chunks: no higher on the ladder than it is the best
    """

    climbs_ahead: bool = False
    needs_steps: bool = False
    few_rungs: bool = False
    goes_on: bool = False
    stays_ahead: bool = False
    tells_late: bool = False
    comes_last: bool = False
    has_one: bool = False


_NONE = Traits()
_TRAITS = {
    "greedy": Traits(climbs_ahead=True, tells_late=True),
    "folded": Traits(needs_steps=True, few_rungs=True, stays_ahead=True, tells_late=True),
    "woven": Traits(needs_steps=True, goes_on=True, tells_late=True),
    "entwined": Traits(needs_steps=True),
    "routed": Traits(tells_late=True),
    "lp-quick": Traits(comes_last=True),
    **dict.fromkeys(("ring", "recursive-doubling", "direct", "tree", "mirrored"), Traits(has_one=True)),
}


def traits_of(name: str) -> Traits:
    """Of a method by its name."""
    return _TRAITS.get(name, _NONE)
