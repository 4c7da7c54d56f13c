"""Method `taccl`: routing without order, then ordering, then which chunks share a message (TACCL section 4).

options.py       options of the method
topology_file.py TACCL's profiles of machines; sketch.py, sketch_files.py: sketches
logical.py       the logical topology of a sketch: arcs
relays.py        connections of a sketch that the machine lacks
orbits.py        symmetry of machine, sketch and demand
choices.py       which chunk may use which arc
routing.py       stage 1, the path encoding; fast_routing.py without a solver
ordering.py      stage 2, heuristic ordering
send_order.py    sends in a fixed order, and which of them may share a message
contiguity.py    stage 3, the contiguity encoding, and the same by trial
stages.py        the three stages in sequence; reductions by inversion
"""
