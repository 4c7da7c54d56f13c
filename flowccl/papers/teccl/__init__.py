"""TE-CCL on a grid of epochs: the mixed-integer program, the linear program and the A* rounds.

options.py     TecclOptions: the options of a user
epochs.py      Grid: the machine in epochs; the only module that rounds times
grid_bound.py  lower bound on the number of epochs, with a witness
plan.py        GridPlan: transfers that start at epochs
start.py       warm starts from greedy and reroute
program.py     what both programs have in common
copies.py      the program with copies (section 3, appendices A, B, C, F)
flows.py       the program without copies (section 4.1): rates, or whole chunks
paths.py       decomposition of flows over time into paths; pieces.py: from rates to whole chunks
search.py      search for the fewest epochs
readback.py    from epochs to a schedule in continuous time
task.py        a demand on a grid: its bound, its programs, their plans and schedules
objective.py   the paper's objective; Algorithm 1 (appendix E)
method.py      methods `milp` and `lp`
astar.py       method `astar`: rounds (section 4.2, appendix D)
inputs.py      TE-CCL's input files; result_file.py: its result JSON
"""
