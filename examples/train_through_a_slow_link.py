"""A training job with a plan catalog: a link becomes slow, the job reports it, and goes on with new plans.

Four processes train a small model over gloo (data/two_hosts.json: two hosts with two GPUs). A catalog chooses the plan
of each allreduce. After 60 steps the NIC of a.gpu1 becomes slow. The selection notices that calls are later than before
and names the links that would explain it. `flowccl replan` makes new plans that avoid the NIC, and all ranks take them
over at the same step. Needs torch: pip install flowccl[torch]

    python examples/train_through_a_slow_link.py
"""

import logging
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

MACHINE = Path(__file__).parent / "data" / "two_hosts.json"
RANKS, STEPS, SLOW_FROM = 4, 240, 60
SLOW_RANK, SLOW_LINK, RATE, OTHER_HOST = 1, "a.gpu1 -> network", "10Gb/s", (2, 3)
DELAY_S = 0.2  # what the slow link adds to a message


def run(*words: object) -> None:
    """Run a command of flowccl as in a shell."""
    print("$ flowccl", *words, flush=True)
    subprocess.run([sys.executable, "-m", "flowccl", *map(str, words)], check=True)


class SlowGloo:
    """Gloo on a host with a slow NIC: its own allreduce takes longer."""

    def __init__(self, gloo) -> None:
        self.gloo = gloo

    def __getattr__(self, name):
        return getattr(self.gloo, name)

    def allreduce(self, *arguments):
        """Wait, then run gloo's allreduce."""
        time.sleep(DELAY_S)
        return self.gloo.allreduce(*arguments)


def slow_down(group) -> None:
    """Let everything that leaves the host through the slow NIC take longer, in plans and in gloo's own allreduce."""
    carrier = group.parts.carriers["cpu"]
    begin, post_send = carrier.begin, carrier.post_send
    slow = [False]  # whether this level has waited for the NIC

    def begin_level():
        slow[0] = False
        begin()

    def slow_send(tensor, peer, tag):
        if peer in OTHER_HOST and not slow[0]:
            slow[0] = True
            time.sleep(DELAY_S)
        post_send(tensor, peer, tag)

    carrier.begin, carrier.post_send, group.inner = begin_level, slow_send, SlowGloo(group.inner)


def replan(plans: Path) -> None:
    """Make new plans, and put them in the place of the old ones; catalog.json last, which the ranks look at."""
    new = plans.with_name("new-plans")
    run("replan", plans, "--slow", f"{SLOW_LINK}={RATE}", "--out", new, "--quiet")
    shutil.copytree(new, plans, dirs_exist_ok=True, ignore=shutil.ignore_patterns("catalog.json"))
    (new / "catalog.json").replace(plans / "catalog.json")


def train(rank: int, folder: Path) -> None:
    """Train the model; rank 0 acts as the operator."""
    import torch
    from torch import distributed

    import flowccl.torch

    flowccl.torch.init_process_group(
        catalog=folder / "plans",
        selection="adaptive",
        reload_every=8,
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=RANKS,
    )
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)  # plans, alarms, new versions
    torch.manual_seed(0)
    model, target = torch.nn.Linear(128, 128, bias=False), torch.nn.Linear(128, 128, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    group, noticed, taken_over, times, losses = distributed.group.WORLD, 0, 0, [], []
    version = group.parts.chooser.chooser.version
    for step in range(STEPS):
        if step == SLOW_FROM and rank == SLOW_RANK:
            slow_down(group)
        batch = torch.randn(32, 128)
        loss = torch.nn.functional.mse_loss(model(batch), target(batch).detach())
        optimizer.zero_grad()
        loss.backward()
        begin = time.perf_counter()
        distributed.all_reduce(model.weight.grad)  # 64 KiB
        times.append(1e3 * (time.perf_counter() - begin))
        model.weight.grad /= RANKS
        optimizer.step()
        losses.append(loss.item())
        if group.parts.chooser.chooser.version is not version:
            version, taken_over = group.parts.chooser.chooser.version, step
        if rank == 0 and step >= SLOW_FROM and not noticed and flowccl.torch.alarms():
            noticed = step
            replan(folder / "plans")
    if rank == 0:
        phases = {"before": (0, SLOW_FROM), "slow": (SLOW_FROM, noticed), "new plans": (taken_over, STEPS)}
        for name, (first, last) in phases.items():
            print(f"{name}: steps {first} to {last - 1}, {median(times[first:last]):.1f} ms an allreduce")
        print(f"loss {losses[0]:.4f} at the start, {losses[-1]:.4f} at the end")
        assert SLOW_FROM < noticed < taken_over
        assert losses[-1] < losses[0]
        assert median(times[taken_over:]) < median(times[SLOW_FROM:noticed]) / 2
    distributed.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("catalog", "build", MACHINE, "--for", "ideal", "--collectives", "allreduce", "--sizes", "64KiB:128KiB",
            "--steps", 4, "--inplace", "--quiet", "--out", folder / "plans")  # fmt: skip
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=train, args=(rank, folder)) for rank in range(RANKS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        sys.exit(max(process.exitcode or 0 for process in processes))


if __name__ == "__main__":
    main()
