"""The options of the small catalog of the tests."""

from flowccl.catalog.build import BuildOptions
from flowccl.runtimes.profiles import PROFILES

OPTIONS = BuildOptions(
    collectives=("allreduce", "allgather"),
    low_bytes=64_000,
    high_bytes=512_000,
    runtime=PROFILES["mscclpp"],
    steps=2,
    sms=100,
)
