"""Other papers' synthesizers, complete and selectable with `--method`, with their file formats and published results.

teccl/      TE-CCL: `milp`, `lp`, `astar`; its input and result files
taccl/      TACCL: `taccl`; sketches, its profiles of machines
sccl/       SCCL: `sccl`
fluid/      the fluid optima of Shapley's thesis: `fluid`; `advise` uses them
published/  published results as tables
"""
