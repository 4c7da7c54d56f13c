"""Adaptive selection on a simulated clock."""

import numpy as np
import pytest

from flowccl.adaptive.drift import DriftTest
from flowccl.adaptive.size_class import AdaptiveParams, SizeClass
from flowccl.errors import InputError

SEEDS = range(20)
PREDICTED = {"plan-a": 100.0, "plan-b": 110.0, "library": 130.0}
TRUE = {"plan-a": 120.0, "plan-b": 105.0, "library": 140.0}  # the prediction is wrong: plan-b is the best


def noisy(random, us):
    """Times as networks have them: 3 % of noise, and one call in 50 is two to three times later."""
    late = random.uniform(2, 3) if random.random() < 0.02 else 1.0
    return us * late * float(np.exp(random.normal(0, 0.03)))


def run(seed, calls, times=lambda call, name: TRUE[name], params=None):
    """The total times of the run and of the best algorithm, with the class after it and the calls of its alarms."""
    random = np.random.default_rng(seed)
    one = SizeClass(PREDICTED, lambda own: own, params)
    total = best = 0.0
    alarms = []
    for call in range(1, calls + 1):
        noise = noisy(random, 1.0)
        total += noise * times(call, one.current)
        best += noise * min(times(call, name) for name in TRUE)
        if one.add(noise * times(call, one.current)):
            alarms.append(call)
    return total, best, one, alarms


@pytest.mark.parametrize("seed", SEEDS)
def test_at_most_five_percent_are_lost_over_5000_calls_and_the_best_one_is_found(seed):
    total, best, one, _ = run(seed, 5000)
    assert total <= 1.05 * best
    assert one.current == "plan-b"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_link_four_times_slower_is_noticed_within_30_calls(seed):
    def times(call, name):
        return TRUE[name] * (4 if call > 1240 and name == "plan-b" else 1)

    _, _, one, alarms = run(seed, 2000, times)
    assert alarms
    assert 1240 < alarms[0] <= 1270
    alarm = one.alarms[0]
    assert alarm.algorithm == "plan-b"
    assert 1225 <= alarm.since_call <= 1250
    assert 3.5 < alarm.now_us / alarm.usual_us < 4.5
    assert one.current == "plan-a"  # the fastest one after the change


def test_at_most_one_false_alarm_in_20000_calls():
    assert sum(len(run(seed, 1000)[3]) for seed in SEEDS) <= 1


def test_a_single_outlier_is_no_alarm():
    test = DriftTest()
    assert not any(test.add(100.0) for _ in range(50))
    assert not test.add(10_000.0)
    assert not any(test.add(100.0) for _ in range(50))


def test_ranks_decide_alike_from_shared_times():
    """Four ranks measure different times; each exchange gives all the largest ones."""
    params = AdaptiveParams(agree_every=4)

    class Rank:
        def __init__(self, seed):
            self.random = np.random.default_rng(seed)
            self.agreed = []
            self.size_class = SizeClass(PREDICTED, self.share, params)

        def share(self, own):
            return self.agreed

    ranks = [Rank(seed) for seed in range(4)]
    for _ in range(200):
        chosen = {rank.size_class.current for rank in ranks}
        assert len(chosen) == 1
        name = chosen.pop()
        rounds = [[noisy(rank.random, TRUE[name]) for _ in range(4)] for rank in ranks]
        agreed = [max(times) for times in zip(*rounds, strict=True)]
        for rank, times in zip(ranks, rounds, strict=True):
            rank.agreed = agreed
            for time in times:
                rank.size_class.add(time)


def test_the_state_is_saved_and_loaded():
    one = run(0, 500)[2]
    again = SizeClass.from_json(one.to_json(), lambda own: own)
    assert (again.current, again.calls, again.to_json()) == (one.current, one.calls, one.to_json())
    for damage in ({}, {"format": "x"}, one.to_json() | {"current": "y"}, one.to_json() | {"algorithms": 3}, None):
        with pytest.raises(InputError):
            SizeClass.from_json(damage, lambda own: own)


def test_bad_parameters():
    with pytest.raises(InputError):
        AdaptiveParams(agree_every=0)
    with pytest.raises(InputError):
        SizeClass({}, lambda own: own)
