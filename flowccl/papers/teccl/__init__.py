"""TE-CCL on a grid of epochs: the mixed-integer program, the linear program and the A* rounds.

options.py     TecclOptions: the options of a user
epochs.py      Grid: the machine in epochs; the only module that rounds times
grid_bound.py  lower bound on the number of epochs, with a witness
plan.py        GridPlan: transfers that start at epochs
start.py       warm starts from greedy and reroute
copies.py      the program with copies (section 3, appendices A, B, C, F)
flows.py       the program without copies (section 4.1): rates, or whole chunks
paths.py       decomposition of flows over time into paths
search.py      search for the fewest epochs; Algorithm 1 (appendix E)
milp.py        method `milp`
lp.py          method `lp`, and whole chunks without copies
astar.py       method `astar`: rounds (section 4.2, appendix D)
readback.py    from epochs to a schedule in continuous time
inputs.py      TE-CCL's input files; topology_file.py: the machine in one; result_file.py: its result JSON
"""
