"""TE-CCL on a grid of epochs: the mixed-integer program, the linear program and the A* rounds.

options.py    TecclOptions: what a user can choose
epochs.py     Grid: the machine in epochs; the one place that rounds time
plan.py       GridPlan: transfers that start at epochs; greedy plans to start from
floor.py      how many epochs are needed at least, with the reason
milp.py       the program with copies (section 3, appendices A, B, C, F)
lp.py         the program without copies (section 4.1): rates, or whole chunks
paths.py      flows over time to the ways of whole chunks
astar.py      rounds (section 4.2, appendix D)
readback.py   epochs to a schedule in continuous time
inputs.py     TE-CCL's own input files
"""
