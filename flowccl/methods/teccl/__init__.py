"""TE-CCL on a grid of epochs: the mixed-integer program, the linear program and the A* rounds.

options.py    TecclOptions: what a user can choose
epochs.py     Grid: the machine in epochs; the one place that rounds time
floor.py      how many epochs are needed at least, with the reason
plan.py       GridPlan: transfers that start at epochs
start.py      plans and schedules of greedy and routed to start from
copies.py     the program with copies (section 3, appendices A, B, C, F)
flows.py      the program without copies (section 4.1): rates, or whole chunks
paths.py      flows over time to the ways of chunks
search.py     the fewest epochs between a floor and a plan; Algorithm 1 (appendix E)
milp.py       the method `milp`: build, solve, read
lp.py         the method `lp`, and whole chunks where nothing is copied
astar.py      the method `astar`: rounds (section 4.2, appendix D)
readback.py   epochs to a schedule in continuous time
inputs.py     TE-CCL's own input files
"""
