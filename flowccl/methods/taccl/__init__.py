"""Method `taccl`: routes without order, then order, then which chunks travel together (TACCL section 4).

options.py      what it may be told
logical.py      the machine that a sketch leaves: arcs
orbits.py       symmetry of machine, sketch and demand
ways.py         which chunk may use which arc
routing.py      stage 1, the path encoding; fast_routing.py without a solver
ordering.py     stage 2, heuristic ordering
layout.py       sends in a fixed order, who may travel with whom
contiguity.py   stage 3, the contiguity encoding, and the same by trial
stages.py       the three in a row; reductions by inversion
"""
