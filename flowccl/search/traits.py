"""Traits: how methods differ in the turns that they need from `auto`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What distinguishes a method for `auto`.

    improves_slowly      it needs many steps to become good: it gets steps even while it is behind
    powers_of_two        it needs its time to improve: it only tries powers of two as chunk counts
    continues_others     it starts from what others found, so it runs at the chunk counts where they are best
    reports_after_round  its reports count after the round: two of its searches may run side by side
    first_step_work      work of its first step, relative to that of other methods
    unicast_work         the same where each chunk goes from one source to one destination, times `first_step_work`
    grows                on large machines, the work for each delivery is in proportion to the number of GPUs
    unicast_grows        the same where each chunk goes from one source to one destination
    one_schedule         it has one schedule per chunk count: higher counts are tried only while it is the best
    begins_early         its schedules follow from the structure of the machine: it goes before the searches
    delivery_s           seconds for each delivery where its time is in proportion to them, as measured: then it goes to
                         its useful chunk count at once
    carried_s            seconds for each delivery and contribution on a runtime, where its time is proportional to that
    slow_second_step     its second step calls a solver and takes long
    quick_start          on large problems its first schedule comes much earlier than those of other searches
    """

    improves_slowly: bool = False
    powers_of_two: bool = False
    continues_others: bool = False
    reports_after_round: bool = False
    first_step_work: float = 1.0
    unicast_work: float = 1.0
    grows: bool = False
    unicast_grows: bool = False
    delivery_s: float = 0.0
    carried_s: float = 0.0
    one_schedule: bool = False
    quick_start: bool = False
    begins_early: bool = False
    slow_second_step: bool = False
