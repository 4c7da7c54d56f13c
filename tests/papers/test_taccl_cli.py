"""`flowccl synth --method taccl` and `flowccl import --from taccl`, from the command line."""

import json
from pathlib import Path

import pytest

from flowccl.cli import main

TACCL = Path(__file__).parents[1] / "data" / "taccl"
SYNTH = ("synth", "ndv2:2", "allgather", "--size", "1MB", "--time-limit", "3")


def test_synth_takes_taccls_sketch(capsys, tmp_path):
    out = tmp_path / "ag.json"
    sketch = ("--sketch", str(TACCL / "sk1-ndv2-n2.json"))
    code = main([*SYNTH, "--method", "taccl", *sketch, "--routing", "fast", "--out", str(out), "--json"])
    value = json.loads(capsys.readouterr().out)
    assert (code, value["method"], value["verified"]) == (0, "taccl", True)
    assert value["finish_us"] <= 62.15
    assert value["details"]["order"].startswith("quick routes: ")
    assert main(["verify", str(out)]) == 0


def test_import_and_synth_with_overheads_send_chunks_in_one_message(capsys, tmp_path):
    made, out = tmp_path / "machine.json", tmp_path / "ag.json"
    sketch = ("--sketch", str(TACCL / "sk1-ndv2-n2.json"))
    assert (
        main(
            ["import", str(TACCL / "topo-ndv2-1MB.json"), "--from", "taccl", *sketch, "--overheads", "--out", str(made)]
        )
        == 0
    )
    assert "alphas are overheads per message, as in TACCL's cost model" in capsys.readouterr().out
    synth = ("synth", str(made), "allgather", "--size", "1KB", "--time-limit", "5", "--method", "taccl", *sketch)
    assert main([*synth, "--contiguity", "fast", "--out", str(out)]) == 0
    assert "message" in json.loads(out.read_text())["transfers"]
    assert main(["verify", str(out)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sketch", "x.json"), "flowccl: error: --sketch: only for --method taccl"),
        (
            ("--method", "taccl", "--sketch", str(TACCL / "topo-ndv2-1MB.json")),
            f"flowccl: error: {TACCL / 'topo-ndv2-1MB.json'}: is neither a TACCL sketch nor a flowccl sketch: write "
            '"format": "flowccl-sketch" at the top',
        ),
        (("--method", "taccl", "--sketch", "none.json"), "flowccl: error: none.json: no such file"),
        (
            ("--method", "taccl", "--epoch", "slow"),
            "flowccl: error: --epoch: only for --method milp, lp, astar; taccl has no epochs",
        ),
    ],
)
def test_bad_input_is_named_and_exits_with_2(capsys, arguments, message):
    assert main([*SYNTH, *arguments]) == 2
    assert capsys.readouterr().err.strip() == message
