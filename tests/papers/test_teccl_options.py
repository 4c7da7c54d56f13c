"""Options of the methods on epochs, and their error messages."""

import json

import pytest

from flowccl.cli import main
from flowccl.demand.collectives import collective
from flowccl.errors import DemandError, InputError, NothingFoundError
from flowccl.papers.teccl.epochs import make_grid
from flowccl.papers.teccl.options import TecclOptions
from flowccl.topology.machines import machine
from tests.papers.teccl_cases import demand_of, machine_of, run, without_latency

DGX1 = machine("dgx1")


def allgather(chunks=1):
    return collective("allgather", 8, 25_000 * chunks * 8, chunks)


def test_too_few_epochs_name_the_witness():
    words = (
        r"infeasible in 6 epochs; at least 7 are needed because 42 chunks must cross into gpu0 \(4 links\),"
        r" and only 36 fit in 6 epochs"
    )
    with pytest.raises(InputError, match=words):
        run("milp", without_latency(DGX1), allgather(6), epoch="slow", epochs=6)
    with pytest.raises(InputError, match="infeasible in 2 epochs; at least 3 are needed because 16 chunks must cross"):
        run("lp", without_latency(DGX1), collective("alltoall", 8, 200_000), epoch="slow", epochs=2)


def test_too_few_epochs_refuted_by_the_program():
    words = "infeasible in 4 epochs; at least 5 are needed because the program for 4 epochs has no solution"
    for objective in ("epochs", "paper"):
        with pytest.raises(InputError, match=words):
            run("milp", DGX1, allgather(2), epoch="slow", epochs=4, objective=objective)


def test_lp_does_not_copy():
    words = "allgather: method lp does not copy chunks, and some chunks have several destinations; use milp or"
    with pytest.raises(DemandError, match=words):
        run("lp", DGX1, allgather())


def test_hyper_edges_need_plain_switches():
    with pytest.raises(InputError, match="hyper-edges replace switches, and dgx1 has none; leave them out"):
        run("milp", DGX1, allgather(), hyper_edges=True)
    with pytest.raises(InputError, match="hyper-edges cannot copy, and switch nvswitch0 can; leave them out"):
        run("milp", machine("dgx2:1"), collective("allgather", 16, 1_600_000), hyper_edges=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epoch": "0x"}, "epoch '0x': the multiplier must be above 0, got 0"),
        ({"epoch": "-2x"}, "epoch '-2x': the multiplier must be above 0, got -2"),
        ({"epoch": "quick"}, "epoch 'quick': write fast, slow, a multiplier such as 2x, or a time such as 0.5us"),
        ({"epoch": "zx"}, "epoch 'zx': write fast, slow"),
        ({"epoch": "0us"}, "epoch '0us': must be longer than 0"),
        ({"epochs": 0}, "epochs must be auto, search or a number of at least 1, got 0"),
        ({"objective": "best"}, "objective must be epochs or paper, got 'best'"),
        ({"early_stop": -1.0}, "early_stop must be >= 0, got -1"),
        ({"round_epochs": 0}, "round_epochs must be at least 1, got 0"),
        (
            {"epohc": "fast"},
            "unknown option 'epohc' of milp, lp and astar; the options are solver, threads, epoch, ep",
        ),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        run("milp", DGX1, allgather(), **options)


def test_the_time_limit_without_a_plan_reports_the_bound():
    with pytest.raises(NothingFoundError, match="at least 7 epochs are needed because 42 chunks must cross into gpu0"):
        run("milp", without_latency(DGX1), allgather(6), time_limit_s=0.001, epoch="slow", warm_start=False)


def test_the_time_limit_gives_the_best_plan_with_its_gap():
    _, notes = run("milp", machine("mi250:1"), collective("allgather", 16, 4 * 10**9), 4.0, epoch="fast")
    assert notes["epochs"] >= notes["epochs_bound"]
    assert notes["grid_gap"] == notes["epochs"] / notes["epochs_bound"] - 1


# -- the length of an epoch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epoch", "us"), [("fast", 0.5), ("slow", 1.0), ("2x", 1.0), ("0.25us", 0.25)])
def test_epoch_lengths(epoch, us):
    assert make_grid(DGX1, 25_000, TecclOptions(epoch=epoch)).epoch_us == us


def test_epochs_are_longer_if_a_latency_takes_more_than_200():
    assert make_grid(DGX1, 100, TecclOptions(epoch="fast")).epoch_us == 5 * 0.002
    assert make_grid(DGX1, 100, TecclOptions(epoch="0.002us")).epoch_us == 0.002  # an explicit length is not changed


def test_busy_epochs_delays_and_capacities():
    grid = make_grid(machine("ndv2:2"), 62_500, TecclOptions(epoch="fast"))
    links = [grid.topology.index["gpu0"], grid.topology.index["gpu1"]]
    inside = int(((grid.tail == links[0]) & (grid.head == links[1])).argmax())  # 50 GB/s, 0.7 us
    across = int((grid.tail == 0).nonzero()[0][-1])  # 12.5 GB/s, 1.3 us
    assert [int(f[inside]) for f in (grid.busy_epochs, grid.capacity, grid.delay)] == [1, 1, 2]
    assert [int(f[across]) for f in (grid.busy_epochs, grid.capacity, grid.delay)] == [4, 1, 6]
    slow = make_grid(machine("ndv2:2"), 62_500, TecclOptions(epoch="slow"))
    assert [int(f[inside]) for f in (slow.busy_epochs, slow.capacity, slow.delay)] == [1, 4, 1]


# -- objectives and searches ------------------------------------------------------------------------------------------


def test_the_paper_objective_starts_from_a_plan_and_from_algorithm_1():
    for start in (True, False):
        _, notes = run("milp", DGX1, allgather(2), epoch="slow", objective="paper", warm_start=start)
        assert (notes["grid_status"], notes["epochs"]) == ("optimal", 5)
        assert notes["objective_gap"] < 1e-5


def test_binary_search_finds_the_fewest():
    _, notes = run("milp", DGX1, allgather(3), epoch="slow", epochs="search", warm_start=False)
    assert (notes["epochs"], notes["epochs_bound"]) == (6, 6)


def test_early_stop_accepts_a_gap():
    _, notes = run("milp", DGX1, allgather(2), epoch="slow", early_stop=0.3)
    assert notes["epochs"] <= 1.3 * notes["epochs_bound"]


def test_astar_is_within_20_percent_on_dgx1():
    for chunks in (1, 2):
        _, best = run("milp", DGX1, allgather(chunks), epoch="fast")
        _, rounds = run("astar", DGX1, allgather(chunks), epoch="fast")
        assert best["epochs"] <= rounds["epochs"] <= 1.2 * best["epochs"]


def test_a_round_that_is_too_short_grows():
    topology = machine_of("a b c", "a b 1 3", "b c 1 3")
    _, notes = run("astar", topology, demand_of(topology, ("a", "c")), epoch="1s", round_epochs=1)
    assert notes["epochs"] == 8


# -- the command line -------------------------------------------------------------------------------------------------


def synth(*arguments):
    return main(["synth", *arguments, "--quiet"])


def test_the_table_and_the_json_contain_the_epochs(capsys):
    assert synth("dgx1", "allgather", "--size", "200KB", "--method", "milp", "--epoch", "slow") == 0
    assert "epochs           4 of 1 us, 4 us on the grid; the fewest possible on this grid" in capsys.readouterr().out
    assert synth("dgx1", "allgather", "--size", "200KB", "--method", "milp", "--epoch", "slow", "--json") == 0
    details = json.loads(capsys.readouterr().out)["details"]
    assert (details["epochs"], details["epoch_us"], details["grid_finish_us"]) == (4, 1.0, 4.0)
    assert {"grid_gap", "grid_status", "solver_s"} <= set(details)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["--epochs", "3", "--epoch", "slow"],
            2,
            "infeasible in 3 epochs; at least 4 are needed because a chunk takes",
        ),
        (["--epoch", "0x"], 2, "the multiplier must be above 0"),
        (["--hyper-edges"], 2, "dgx1 has none"),
        (["--method", "lp"], 2, "use milp"),
        (["--method", "greedy", "--epoch", "slow"], 2, "--epoch: only for --method milp, lp, astar"),
        (["--no-start", "--time-limit", "0.001"], 3, "epochs are needed because"),
    ],
)
def test_exit_codes(arguments, code, words, capsys):
    method = [] if "--method" in arguments else ["--method", "milp"]
    assert synth("dgx1", "allgather", "--size", "200KB", *method, *arguments) == code
    assert words in capsys.readouterr().err


def test_limited_buffers_on_the_command_line(capsys):
    line = ["line:3:bandwidth=1GB/s:latency=0us", "alltoall", "--size", "3MB", "--method", "milp"]
    assert synth(*line, "--buffer-limit", "1KB") == 2
    assert "buffers are too small" in capsys.readouterr().err
    assert synth(*line, "--buffer-limit", "1MB") == 0
