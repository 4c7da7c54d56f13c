"""Real logs of NCCL on one GPU: `python3 tests/gpu/nccl_trace.py FOLDER` writes them and compares what is read back.

It needs PyTorch with CUDA, numpy and one GPU. Two ranks share the GPU where NCCL allows it (2.30 or newer); else there
is one rank. A call of one rank moves nothing and the readers skip it, so the check then reads copies of the logs in
which the group has two ranks; everything else is what PyTorch and NCCL wrote.
"""

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from flowccl.errors import InputError
from flowccl.jobs import read_logs
from flowccl.jobs.calls import LogSource
from flowccl.jobs.flight_recorder import PlainUnpickler
from flowccl.jobs.names import buffer_bytes

STEPS = 3
FORMATS = ("profiler", "flight_recorder", "execution_trace", "nccl_log")
Call = tuple[str, int, int]  # collective, bytes that a rank gives, bytes that it gets


def calls(rank: int, world: int) -> list[Call]:
    """Issue one step of calls, and return them."""
    import torch
    import torch.distributed as dist

    def made(count, dtype=torch.float32):
        return torch.ones(count, dtype=dtype, device="cuda")

    large, half = made(262_144), made(32_768, torch.bfloat16)
    dist.all_reduce(large)
    dist.all_reduce(half, op=dist.ReduceOp.AVG)
    dist.all_gather_into_tensor(made(4_096 * world), made(4_096))
    dist.reduce_scatter_tensor(made(8_192, torch.bfloat16), made(8_192 * world, torch.bfloat16))
    dist.all_to_all_single(made(2_048 * world), made(2_048 * world))
    parts = [1 + (rank + peer) % 2 for peer in range(world)]
    dist.all_to_all_single(
        made(512 * sum(parts)), made(512 * sum(parts)), [512 * n for n in parts], [512 * n for n in parts]
    )
    dist.broadcast(made(1_000), src=0)
    dist.reduce(made(3_000), dst=0)
    dist.barrier()
    return [
        ("allreduce", 1 << 20, 1 << 20),
        ("allreduce", 65_536, 65_536),
        ("allgather", 16_384, 16_384 * world),
        ("reduce_scatter", 16_384 * world, 16_384),
        ("alltoall", 8_192 * world, 8_192 * world),
        ("alltoallv", 2_048 * sum(parts), 2_048 * sum(parts)),
        ("broadcast", 4_000, 4_000),
        ("reduce", 12_000, 12_000),
        ("barrier", 0, 0),
    ]


def rank_main(folder: Path, rank: int, world: int) -> None:
    """One rank: warm up, then profile some steps and write every log but NCCL's own, which NCCL writes."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

    torch.cuda.set_device(0)
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=world, device_id=torch.device("cuda", 0))
    version = ".".join(map(str, torch.cuda.nccl.version()))
    calls(rank, world)
    torch.cuda.synchronize()
    issued: list[Call] = []
    observer = ExecutionTraceObserver().register_callback(str(folder / "execution_trace" / f"et_{rank}.json"))
    observer.start()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
        for _ in range(STEPS):
            issued += calls(rank, world)
        torch.cuda.synchronize()
    observer.stop()
    observer.unregister_callback()
    profiler.export_chrome_trace(str(folder / "profiler" / f"trace{rank}.json"))
    (folder / "flight_recorder" / f"nccl_trace_rank_{rank}").write_bytes(flight_recorder())
    facts = {"world": world, "torch": torch.__version__, "nccl": version, "warmup_steps": 1, "issued": issued}
    (folder / f"issued{rank}.json").write_text(json.dumps(facts))
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def flight_recorder() -> bytes:
    """The dump of this rank as PyTorch pickles it."""
    import torch._C._distributed_c10d as c10d

    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        if hasattr(c10d, name):
            return getattr(c10d, name)()
    return b""


def launch(folder: Path, world: int, timeout_s: int = 120) -> str:
    """Start the ranks; returns what went wrong, or nothing."""
    for name in FORMATS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "store").unlink(missing_ok=True)
    added = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,COLL,TUNING",
        "NCCL_DEBUG_FILE": str(folder / "nccl_log" / "nccl.%h.%p.log"),
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_ENABLE_TIMING": "1",
    }
    if world > 1:
        added |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4", "NCCL_NVLS_ENABLE": "0"}
    command = [sys.executable, str(Path(__file__).resolve()), str(folder)]
    started = [
        subprocess.Popen([*command, str(rank), str(world)], env=os.environ | added, stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    texts = []
    for process in started:
        try:
            texts.append(process.communicate(timeout=timeout_s)[1])
        except subprocess.TimeoutExpired:
            for other in started:
                other.kill()
            texts.append(f"no answer in {timeout_s} s")
    failed = [text.strip()[-400:] for text, process in zip(texts, started, strict=True) if process.returncode]
    return failed[0] or "a rank failed" if failed else ""


def of_two(folder: Path, formats: Iterable[str] = FORMATS) -> Path:
    """Copies of the logs of one rank, in which the group has a second rank."""
    copies = folder / "as_two_ranks"
    for name in formats:
        (copies / name).mkdir(parents=True, exist_ok=True)
        for path in (folder / name).iterdir():
            data = path.read_bytes()
            if name == "flight_recorder":
                dump = PlainUnpickler(BytesIO(data)).load()
                for row in dump.get("pg_config", {}).values():
                    row["ranks"] = "[0, 1]"
                data = pickle.dumps(dump, protocol=2)
            for old, new in _RENAMED:
                data = data.replace(old, new)
            (copies / name / path.name).write_bytes(data)
    return copies


_RENAMED = (
    (b'"Group size": 1', b'"Group size": 2'),
    (b'"Process Group Ranks": "[0]"', b'"Process Group Ranks": "[0, 1]"'),
    (b'"world_size": 1', b'"world_size": 2'),
    (b'"pg_size": 1', b'"pg_size": 2'),
    (b'"ranks": [0]', b'"ranks": [0, 1]'),
    (b'\\"group_size\\": 1', b'\\"group_size\\": 2'),
    (b'\\"ranks\\": [0]', b'\\"ranks\\": [0, 1]'),
    (b'{"name": "pg_size", "type": "uint64", "value": 1', b'{"name": "pg_size", "type": "uint64", "value": 2'),
    (b" nranks 1 ", b" nranks 2 "),
    (b"[nranks=1]", b"[nranks=2]"),
)


def expected_of(facts: dict, name: str) -> Counter[tuple[str, int]]:
    """What a format must have of the calls of a rank: collective and bytes, as often as the calls were issued."""
    ranks = max(facts["world"], 2)
    repeats = 1 if name in ("profiler", "execution_trace") else (STEPS + facts["warmup_steps"]) / STEPS
    found: Counter[tuple[str, int]] = Counter()
    for collective, given, got in facts["issued"]:
        size = buffer_bytes(collective, given, got, ranks)
        if name != "nccl_log":
            found[kind(collective), size] += 1
        elif collective == "barrier":  # PyTorch makes it an allreduce of one float
            found["allreduce", 4] += 1
        elif collective == "reduce_scatter" and facts["world"] == 1:
            pass  # PyTorch copies the data of one rank itself and does not call NCCL
        elif collective == "alltoall" and not as_sends(collective, facts):  # NCCL's count is that for one other rank
            found["alltoall", size * ranks // facts["world"]] += 1
        elif not as_sends(collective, facts):
            found[collective, size] += 1
    return Counter({key: round(count * repeats) for key, count in found.items()})


def as_sends(collective: str, facts: dict) -> bool:
    """Whether PyTorch makes a call of sends and receives: uneven alltoalls, and before NCCL 2.28 all of them."""
    version = tuple(int(part) for part in facts["nccl"].split(".")[:2])
    return collective == "alltoallv" or (collective == "alltoall" and version < (2, 28))


def compared(folder: Path, facts: dict, name: str) -> bool:
    """Print what a format has beside what was issued; says whether nothing of it is missing."""
    expected = expected_of(facts, name)
    try:
        logs = read_logs([folder / name])
    except InputError as error:
        print(f"{name}: {error}")
        return False
    table = logs.calls
    mine = (table.rank == 0) | (table.rank < 0)
    rows = zip(table.names(), table.size_bytes.tolist(), mine.tolist(), strict=True)
    found = Counter((kind(n), size) for n, size, own in rows if own)
    missing = {key: (count, found[key]) for key, count in expected.items() if found[key] < count}
    extra = {key: count for key, count in found.items() if count > expected[key]}
    with_time = int((table.duration_ns >= 0).sum())
    print(
        f"{name}: {len(table)} rows, {with_time} with times; missing {missing or 'nothing'}; more {extra or 'nothing'}"
    )
    for source in table.sources:
        print(f"  {Path(source.path).name}: skipped {source.skipped}; notes {source.notes}")
    return not missing and (name != "nccl_log" or sends_are_said(table.sources, facts))


def sends_are_said(sources: Iterable[LogSource], facts: dict) -> bool:
    """NCCL's log has an alltoall of sends as one send and one receive for each rank: skipped, and counted."""
    calls = sum(as_sends(collective, facts) for collective, _, _ in facts["issued"])
    expected = 2 * facts["world"] ** 2 * calls * (STEPS + facts["warmup_steps"]) // STEPS
    found = sum(count for one in sources for why, count in one.skipped.items() if why.startswith("sends and"))
    if found != expected:
        print(f"  {expected} sends and receives were made, {found} are counted")
    return found == expected


def kind(collective: str) -> str:
    """The collective without a difference between even and uneven alltoalls: of one rank, no log tells it."""
    return "alltoall" if collective == "alltoallv" else collective


def main(folder: Path) -> int:
    """Write the logs, with two ranks if NCCL allows it, and compare them with what was issued."""
    folder.mkdir(parents=True, exist_ok=True)
    error = launch(folder / "two", 2, 90)
    where = folder / "two"
    if error:
        print(f"two ranks on one GPU: {error.splitlines()[-1]}\nso one rank:")
        where = folder / "one"
        error = launch(where, 1)
        if error:
            print(error)
            return 1
    facts = json.loads((where / "issued0.json").read_text())
    print(f"torch {facts['torch']}, NCCL {facts['nccl']}, {facts['world']} ranks, {len(facts['issued'])} calls each")
    logs = where if facts["world"] > 1 else of_two(where)
    good = [compared(logs, facts, name) for name in FORMATS]
    print("all calls were found" if all(good) else "NOT all calls were found")
    return 0 if all(good) else 1


if __name__ == "__main__":
    if len(sys.argv) == 4:
        rank_main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/nccl_trace").absolute()))
