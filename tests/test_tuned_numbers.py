"""The number of tuned numbers does not grow.

A tuned number belongs into the parameters of its part (`AutoParams`, `Traits`, a dataclass `...Params`), or is a named
constant of the module that uses it, with a comment that says what it is. Before a new one: `python -m benchmarks
sensitivity` shows which numbers change nothing; replace one of those, or find a rule that needs none. If numbers were
deleted, lower MOST.
"""

from benchmarks.tuned_numbers import tuned_numbers

MOST = 201


def test_there_are_not_more_tuned_numbers():
    numbers = tuned_numbers()
    by_folder: dict[str, list[str]] = {}
    for number in numbers:
        by_folder.setdefault(number.path.rpartition("/")[0], []).append(f"{number} = {number.value}")
    print(f"{len(numbers)} tuned numbers")
    for folder, names in sorted(by_folder.items()):
        print(f"{folder}: {len(names)}", *names, sep="\n    ")
    assert len(numbers) <= MOST


def test_a_number_is_changed_and_restored_wherever_it_is_used():
    from flowccl.auto import arm, search, state
    from flowccl.auto.params import AutoParams

    numbers = {str(number): number for number in tuned_numbers()}
    safety, close = numbers["auto/state.py:SAFETY"], numbers["auto/params.py:AutoParams.close"]
    for number, read in ((safety, lambda: (state.SAFETY, search.SAFETY)), (close, lambda: (AutoParams().close,))):
        before = read()
        number.set(number.scaled(2.0))
        assert read() == tuple(2 * value for value in before)
        number.set(number.value)
        assert read() == before
    assert numbers["auto/arm.py:_FIRST"].value == arm._FIRST


def test_what_half_and_twice_of_a_number_are():
    numbers = {str(number): number for number in tuned_numbers()}
    worth = numbers["synthesis/choice.py:_PROGRAM_WORTH"]  # 1.05: a ratio
    assert [round(worth.scaled(by), 9) for by in (0.5, 2.0)] == [1.025, 1.1]
    late = numbers["synthesis/choice.py:_MOST_LATE"]
    assert [late.scaled(by) for by in (0.1, 2.0)] == [1, 6]
