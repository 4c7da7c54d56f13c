"""Runtime profiles: their costs on a machine, files that override them, and bad input."""

import json
from pathlib import Path

import pytest

from flowccl.errors import FileError, InputError
from flowccl.runtimes.machine import sms_of, used_by, with_costs_in_links
from flowccl.runtimes.profiles import PROFILES, load_profile, profile_to_json, runtime_profile, served_bytes
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology


def test_costs_replace_the_overheads_of_the_links() -> None:
    profile = PROFILES["mscclpp"]
    topology = with_costs_in_links(used_by(machine("dgx_h100:2"), profile), profile)
    cost = {
        (kind, topology.stores[link.src]): link for link, kind in zip(topology.links, topology.link_kinds, strict=True)
    }
    assert cost["nvlink", True].overhead_us == 0.6
    assert cost["nvlink", False].overhead_us == 0.0
    assert cost["nvlink", False].latency_us == pytest.approx(0.35 + 0.5)  # the signal arrives with the last link
    assert cost["nic", True].overhead_us == 2.0
    assert not topology.copies[topology.num_gpus :].any()


def test_a_given_overhead_is_replaced_and_not_added() -> None:
    nodes = (Node(name="a"), Node(name="b"))
    topology = Topology("two", nodes, (Link(src=0, dst=1, bandwidth_GBps=10, overhead_us=9.0, kind="pcie"),))
    assert used_by(topology, PROFILES["mscclpp"]).links[0].overhead_us == 0.0
    assert with_costs_in_links(topology, PROFILES["mscclpp"]).links[0].overhead_us == 0.6


def test_ideal_changes_nothing() -> None:
    topology = machine("dgx2:2")
    assert used_by(topology, PROFILES["ideal"]) is topology


def test_links_between_hosts_are_nics() -> None:
    topology = machine("dgx_a100:2:all")
    kinds = dict(zip(map(topology.link_name, range(len(topology.links))), topology.link_kinds, strict=True))
    assert kinds["gpu0 -> nvswitch0"] == "nvlink"
    assert kinds["gpu0 -> pcie0.0"] == "pcie"
    assert kinds["pcie0.0 -> rail0"] == "nic"


@pytest.mark.parametrize(("name", "sms"), [("dgx1", 80), ("dgx_a100:2", 108), ("dgx_h100:1", 132), ("mi250:1", 104)])
def test_sms_of_real_machines(name: str, sms: int) -> None:
    assert sms_of(machine(name)) == sms


def test_sms_must_be_given_where_the_machine_names_no_model() -> None:
    assert sms_of(machine("torus:4x4"), 108) == 108
    with pytest.raises(
        InputError, match="the machine does not name its GPU model, so the number of SMs is not known; "
    ):
        sms_of(machine("torus:4x4"))


def test_a_profile_file_overrides_the_costs(tmp_path: Path) -> None:
    value = profile_to_json(PROFILES["mscclpp"])
    value["costs"]["nic"]["overhead_us"] = 3.6
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(value))
    profile = runtime_profile(str(path))
    assert (profile.name, profile.costs.nic.overhead_us) == ("mscclpp", 3.6)
    assert profile.costs.nvlink == PROFILES["mscclpp"].costs.nvlink


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"overhead_us": -1}, "costs.nic: overhead_us must be at least 0, got -1"),
        ({}, 'costs.nic: "overhead_us" is missing; write for example "overhead_us": 0.6'),
    ],
)
def test_bad_profile_files(tmp_path: Path, change: dict[str, float], message: str) -> None:
    value = profile_to_json(PROFILES["mscclpp"])
    value["costs"]["nic"] = change
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(value))
    with pytest.raises(InputError) as error:
        load_profile(path)
    assert str(error.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("local", "message"),
    [
        ({}, "local must be a list, got an object"),
        ([{"operation": "copy"}], r'local\[0\]: "overhead_us" is missing; write for example "overhead_us": 0.4'),
        (
            [{"operation": "copy", "overhead_us": -1}],
            r"local\[0\]: overhead_us must be a number of at least 0 .*, got -1",
        ),
        ([{"operation": 3, "overhead_us": 1}], r"local\[0\]: operation must be a string, got 3"),
        ([{"operation": "copy", "overhead_us": 1, "GBps": "x"}], r'local\[0\]: GBps must be a number .*, got "x"'),
    ],
)
def test_bad_local_costs(tmp_path: Path, local: object, message: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_to_json(PROFILES["mscclpp"]) | {"local": local}))
    with pytest.raises(FileError, match=message):
        load_profile(path)


def test_an_unknown_runtime_names_the_known_ones() -> None:
    with pytest.raises(InputError) as error:
        runtime_profile("msccl++")
    assert str(error.value).endswith("known runtimes: ideal, mscclpp, msccl, executor, rccl")


def test_a_size_that_is_served_stays_and_others_are_raised_to_blocks_that_can_be_halved():
    """1 MB on 16 GPUs is not a multiple of 256 bytes; 123 times 8,192 bytes are 0.8 % more, and halve five times."""
    assert served_bytes(4_000_000, 16) == 4_000_000
    assert served_bytes(1_000_000, 16) == 123 * 8192
    assert served_bytes(100, 16) == 256
    assert served_bytes(4_000_000, 16, chunks=2) == 984 * 4096  # 15,625 units have no halves
