"""Machines from other tools' files: links and bandwidths, notes on assumptions, and messages for invalid files."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flowccl.cli import main
from flowccl.errors import FileError, InputError
from flowccl.synthesis import synthesize
from flowccl.topology.files import load_topology
from flowccl.topology.importers import ImportOptions, import_machine
from flowccl.topology.machines import machine
from flowccl.topology.topology import Topology

DATA = Path(__file__).parent.parent / "data"


def kinds_of(topology: Topology) -> Counter[tuple[str, str, float]]:
    """Number of links by the kinds of their ends and their GB/s."""
    kind = [node.kind for node in topology.nodes]
    return Counter((kind[k.src], kind[k.dst], round(k.bandwidth_GBps, 2)) for k in topology.links)


def synthesizes(topology: Topology, name: str = "allgather") -> None:
    assert len(synthesize(topology, name, 1_000_000, chunks=1, steps=1, method="greedy").schedule) > 0


# -- NCCL ---------------------------------------------------------------------------------------------------------


def test_nvswitch_with_8_nics() -> None:
    """18 NVLinks of 20.6 GB/s per GPU to one switch, which is four chips in the file; 400 Gb/s per NIC."""
    one = import_machine(DATA / "nccl/nvswitch-8-nics.xml", "nccl-topo")
    assert kinds_of(one.topology) == {("gpu", "switch", 370.8): 8, ("switch", "gpu", 370.8): 8}
    assert one.topology.nodes[8].copies
    assert one.topology.nodes[8].reduces
    assert [nic.gpus for nic in one.nics] == [(rank,) for rank in range(8)]
    assert {nic.bandwidth_GBps for nic in one.nics} == {50.0}
    assert any("gpu7 = 0000:80:01.0" in note for note in one.notes)
    two = import_machine(DATA / "nccl/nvswitch-8-nics.xml", "nccl-topo", hosts=2, network="rail:50GBps").topology
    assert kinds_of(two)["gpu", "switch", 50.0] == 16
    assert [node.name for node in two.nodes[16:]] == ["nvswitch.0", "nvswitch.1", *(f"rail{i}" for i in range(8))]
    assert two.hosts == ("host0", "host1")
    assert not two.limits
    synthesizes(one.topology, "allreduce")
    synthesizes(two)


def test_pcie_is_kept_on_request() -> None:
    topology = import_machine(DATA / "nccl/nvswitch-8-nics.xml", "nccl-topo", ImportOptions(pcie=True)).topology
    found = kinds_of(topology)
    assert found["gpu", "switch", 48.0] == 8  # Gen5 x16
    assert found["switch", "switch", 48.0] == 16  # eight PCIe switches with their CPUs
    assert found["switch", "switch", 22.0] == 2  # between Sapphire Rapids
    synthesizes(topology)


def test_direct_nvlinks() -> None:
    """V100: 20 GB/s per link, one or two links per pair; two GPUs share a NIC."""
    one = import_machine(DATA / "nccl/direct-nvlink.xml", "nccl-topo")
    assert kinds_of(one.topology) == {("gpu", "gpu", 40.0): 16, ("gpu", "gpu", 20.0): 16}
    pairs = {(k.src, k.dst): k.bandwidth_GBps / 20 for k in one.topology.links}
    assert pairs == {(k.src, k.dst): k.bandwidth_GBps / 25 for k in machine("dgx1").links}
    assert [nic.gpus for nic in one.nics] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    two = import_machine(DATA / "nccl/direct-nvlink.xml", "nccl-topo", hosts=2, network="switch").topology
    assert len(two.limits) == 16
    assert {limit.bandwidth_GBps for limit in two.limits} == {12.5}  # 100 Gb/s, from the file
    synthesizes(two)


def test_amd_xgmi() -> None:
    one = import_machine(DATA / "nccl/amd-xgmi.xml", "nccl-topo").topology
    assert kinds_of(one) == {("gpu", "gpu", 72.0): 4, ("gpu", "gpu", 36.0): 4}
    synthesizes(one, "alltoall")


def test_a_missing_link_is_a_warning_and_pcie_connects_gpus_without_links(tmp_path: Path) -> None:
    text = (DATA / "nccl/amd-xgmi.xml").read_text()
    dump = tmp_path / "broken.xml"
    dump.write_text(text.replace('<xgmi target="0000:cd:00.0" count="1" tclass="0x038000"/>', "", 1))
    notes = import_machine(dump, "nccl-topo").notes
    assert any("gpu3 -> gpu0 has 36 GB/s, the reverse direction 0 GB/s" in note for note in notes)
    lines = [line for line in text.splitlines() if "xgmi" not in line]
    dump.write_text("\n".join(lines))
    topology = import_machine(dump, "nccl-topo").topology
    assert kinds_of(topology) == {("gpu", "switch", 24.0): 4, ("switch", "gpu", 24.0): 4}
    synthesizes(topology)


BOMB = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><system>&b;</system>'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "<!DOCTYPE and <!ENTITY are refused"),
        ("<system>", "not XML"),
        ("", "not XML"),
        ("<graph/>", "must begin with <system>, got <graph>"),
        ('<system version="1"><cpu/></system>', "has no <gpu>"),
        ("<system><cpu><pci><gpu dev='x'/></pci></cpu></system>", "dev must be a number"),
        ("<system><cpu><pci>" + "<gpu dev='0'/>" * 2 + "</pci></cpu></system>", "two GPUs have the same dev"),
        ("<system><cpu>" + "<pci>" * 100 + "</pci>" * 100 + "</cpu></system>", "nested more than"),
        ("<system><cpu><pci><gpu dev='0'><nvlink target='fffffff:ffff:ff'/></gpu></pci></cpu></system>", "sm must be"),
    ],
)
def test_bad_dumps_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "topo.xml").write_text(text)
    with pytest.raises(FileError, match=words):
        import_machine(tmp_path / "topo.xml", "nccl-topo")


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "topo.xml").open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(FileError, match="larger than 4 MB"):
        import_machine(tmp_path / "topo.xml", "nccl-topo")


# -- nvidia-smi ---------------------------------------------------------------------------------------------------


def test_the_same_number_on_all_pairs_is_one_switch() -> None:
    one = import_machine(DATA / "nvidia_smi/h100-nvswitch.txt", "nvidia-smi", ImportOptions(gpu="h100"))
    assert kinds_of(one.topology) == {("gpu", "switch", 370.8): 8, ("switch", "gpu", 370.8): 8}
    assert [nic.gpus for nic in one.nics] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    synthesizes(one.topology)


def test_different_numbers_are_direct_links() -> None:
    one = import_machine(DATA / "nvidia_smi/dgx1-v100.txt", "nvidia-smi", ImportOptions(gpu="V100"))
    assert kinds_of(one.topology) == {("gpu", "gpu", 40.0): 16, ("gpu", "gpu", 20.0): 16}
    two = import_machine(
        DATA / "nvidia_smi/dgx1-v100.txt", "nvidia-smi", ImportOptions(gpu="v100"), hosts=2, network="rail:12.5GBps"
    )
    assert kinds_of(two.topology)["gpu", "switch", 12.5] == 16
    synthesizes(two.topology)


def test_pcie_only(tmp_path: Path) -> None:
    rows = ["\tGPU0\tGPU1\tGPU2\tCPU Affinity", "GPU0\t X \tPIX\tSYS\t0-3", "GPU1\tPIX\t X \tSYS\t0-3"]
    (tmp_path / "topo.txt").write_text("\n".join([*rows, "GPU2\tSYS\tSYS\t X \t4-7"]))
    topology = import_machine(tmp_path / "topo.txt", "nvidia-smi", ImportOptions(gpu="a100")).topology
    assert kinds_of(topology)["gpu", "switch", 24.0] == 3
    assert kinds_of(topology)["switch", "switch", 10.0] == 2
    synthesizes(topology)


def test_nvidia_smi_needs_the_model_and_a_whole_matrix(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give the GPU model with --gpu"):
        import_machine(DATA / "nvidia_smi/dgx1-v100.txt", "nvidia-smi")
    for text, words in (
        ("hello", "no header line with GPU0"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV2\n", "no row GPU1"),
        ("\tGPU0\tGPU1\nGPU0\tX\n", "row GPU0 has 1 cells, the header has 2"),
        ("\tGPU0\tGPU1\nGPU0\tX\tZZ\nGPU1\tZZ\tX\n", "unknown cell 'ZZ'"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV1\nGPU1\tNV2\tX\n", "GPU0 to GPU1 is NV1, but GPU1 to GPU0 is NV2"),
    ):
        (tmp_path / "topo.txt").write_text(text)
        with pytest.raises(FileError, match=words):
            import_machine(tmp_path / "topo.txt", "nvidia-smi", ImportOptions(gpu="h100"))


# -- TACCL and TE-CCL ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["1KB", "32KB", "1MB"])
def test_taccl_profiles_of_all_sizes_are_the_same_machine(size: str) -> None:
    """The links of NDv2 with 23 and 46 us/MB, for every chunk size and factor of the profile."""
    topology = import_machine(DATA / f"taccl/topo-ndv2-{size}.json", "taccl").topology
    double = {(k.src, k.dst): k.bandwidth_GBps == 50 for k in machine("dgx1").links}
    for link in topology.links:
        rate = 1000 / 23 if double.pop((link.src, link.dst)) else 1000 / 46
        assert link.bandwidth_GBps == pytest.approx(rate, rel=0.01)
        assert link.latency_us == 0.3
    assert not double
    synthesizes(topology)


def test_taccl_with_a_sketch() -> None:
    def sketched(profile: str, sketch: str) -> Topology:
        options = ImportOptions(sketch=DATA / f"taccl/{sketch}.json")
        return import_machine(DATA / f"taccl/{profile}.json", "taccl", options).topology

    ndv2 = sketched("topo-ndv2-1MB", "sk1-ndv2-n2")
    assert [(k.src, k.dst) for k in ndv2.links if k.latency_us == 2.6] == [(0, 9), (8, 1)]
    assert kinds_of(ndv2)["gpu", "gpu", 9.52] == 2
    full = sketched("topo-ndv2-1MB", "sk2-ndv2-n2")
    assert kinds_of(full)["gpu", "gpu", 9.52] == 128
    assert [len(limit.links) for limit in full.limits] == [64] * 4  # one NIC per host, both directions
    dgx2 = sketched("topo-dgx2-1MB", "sk1-dgx2-n2")
    assert kinds_of(dgx2) == {("gpu", "switch", 125.0): 32, ("switch", "gpu", 125.0): 32, ("gpu", "gpu", 9.52): 16}
    assert not dgx2.limits
    shared = sketched("topo-dgx2-1MB", "sk2-dgx2-n2")
    assert [len(limit.links) for limit in shared.limits] == [2] * 32  # 16 GPUs per host on 8 NICs
    for topology in (ndv2, full, dgx2, shared, sketched("topo-dgx2-1KB", "sk1-dgx2-n1")):
        synthesizes(topology)


def test_a_custom_taccl_profile(tmp_path: Path) -> None:
    profile = {
        "name": "pair",
        "gpus_per_node": 2,
        "alpha": 1,
        "links": [[0, 2], [1, 0]],
        "betas": [[0, 50], [40, 0]],
    }
    (tmp_path / "custom.json").write_text(json.dumps(profile))
    topology = import_machine(tmp_path / "custom.json", "taccl", ImportOptions(scale=1.0)).topology
    assert {(k.src, k.dst): k.bandwidth_GBps for k in topology.links} == {(1, 0): 40.0, (0, 1): 25.0}


@pytest.mark.parametrize(
    ("file", "name"), [("ndv2_input", "ndv2:2"), ("dgx2_sample", "dgx2:2"), ("amd_sample", "mi250:1")]
)
def test_teccl_files_name_known_machines(file: str, name: str) -> None:
    topology = import_machine(DATA / f"teccl/{file}.json", "teccl").topology
    known = machine(name)
    assert [(k.src, k.dst, k.bandwidth_GBps) for k in topology.links] == [
        (k.src, k.dst, k.bandwidth_GBps) for k in known.links
    ]
    if name != "mi250:1":  # this file has no alpha, so TE-CCL's latency is 0
        assert topology == known
    synthesizes(topology)


def test_teccl_meshes_and_latencies(tmp_path: Path) -> None:
    params = {"name": "Mesh", "side_length": 3, "alpha": [7e-7, 0]}
    (tmp_path / "in.json").write_text(json.dumps({"TopologyParams": params}))
    topology = import_machine(tmp_path / "in.json", "teccl").topology
    assert (topology.num_gpus, len(topology.links)) == (9, 24)
    assert {(k.bandwidth_GBps, k.latency_us) for k in topology.links} == {(100.0, 0.7)}


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("taccl", [], "must contain a JSON object"),
        ("taccl", {"name": "x"}, '"gpus_per_node" is missing'),
        ("taccl", {"intranode_sketch": {}}, "is a TACCL sketch, not a machine"),
        ("taccl", {"name": "x", "gpus_per_node": 8, "alpha": 1, "node_betas_list": [0]}, "number above 0"),
        ("taccl", {"name": "x", "gpus_per_node": 4, "alpha": 1, "node_betas_list": [1, 2]}, "the 8 GPUs of NDv2"),
        ("taccl", {"name": "x", "gpus_per_node": 2, "alpha": 1, "links": 3}, "links must be 2 rows"),
        ("teccl", {}, '"TopologyParams" is missing'),
        ("teccl", {"TopologyParams": {"name": "TPU"}}, "must be one of DGX1"),
        ("teccl", {"TopologyParams": {"name": "NDv2", "chassis": 0}}, "chassis: must be a whole number"),
        ("teccl", {"TopologyParams": {"name": "DGX1", "alpha": 3}}, "alpha must be two numbers"),
        ("networkx", {"nodes": []}, 'must have "nodes" and "edges"'),
        ("networkx", {"nodes": [1], "edges": []}, 'must be an object with "id"'),
        ("networkx", {"nodes": [{"id": 0}, {"id": 1}], "edges": [{"source": 0, "target": 1}]}, "has no bandwidth"),
        ("networkx", {"nodes": [{"id": 0, "kind": "tpu"}], "edges": []}, "kind must be gpu, switch or memory"),
    ],
)
def test_bad_json_is_refused(kind: str, value: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps(value))
    with pytest.raises(InputError, match=words):
        import_machine(tmp_path / "in.json", kind)


# -- networkx -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["edges", "links"])  # networkx changed the name with 3.4
def test_networkx_node_link_data(key: str, tmp_path: Path) -> None:
    value = {
        "directed": False,
        "multigraph": False,
        "graph": {"name": "mine"},
        "nodes": [{"id": 0}, {"id": 1}, {"id": "tor", "kind": "switch", "copies": True}],
        key: [
            {"source": 0, "target": "tor", "bandwidth": "400Gb/s", "latency": "500ns"},
            {"source": "tor", "target": 1, "bandwidth": 25},
        ],
    }
    (tmp_path / "graph.json").write_text(json.dumps(value))
    imported = import_machine(tmp_path / "graph.json", "networkx")
    topology = imported.topology
    assert topology.name == "mine"
    assert [node.name for node in topology.nodes] == ["gpu0", "gpu1", "tor"]
    assert kinds_of(topology)["gpu", "switch", 50.0] == 1
    assert len(topology.links) == 4
    assert any("one per direction" in note for note in imported.notes)
    synthesizes(topology)


# -- hosts and the command ----------------------------------------------------------------------------------------


def test_hosts_requires_network() -> None:
    dump = DATA / "nccl/amd-xgmi.xml"
    for options, words in (
        ({"hosts": 2}, "give --hosts and --network together"),
        ({"network": "rail:50GBps"}, "give --hosts and --network together"),
        ({"hosts": 2, "network": "ring:50GBps"}, "--network must be rail or switch"),
        ({"hosts": 2, "network": "rail:fast"}, "cannot read 'fast'"),
        ({"hosts": 2, "network": "rail"}, "the file has no bandwidth for nic0"),
    ):
        with pytest.raises(InputError, match=words):
            import_machine(dump, "nccl-topo", **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="already has 2 hosts"):
        import_machine(DATA / "teccl/ndv2_input.json", "teccl", hosts=2, network="rail:50GBps")
    four = import_machine(dump, "nccl-topo", hosts=3, network="rail:50GBps")
    assert four.topology.num_gpus == 12
    assert any("has no NIC: assuming one NIC per GPU" in note for note in four.notes)


def test_the_command_writes_a_machine_that_synth_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cluster.json"
    dump = str(DATA / "nccl/nvswitch-8-nics.xml")
    assert (
        main(["import", dump, "--from", "nccl-topo", "--hosts", "2", "--network", "rail:50GBps", "--out", str(out)])
        == 0
    )
    output = capsys.readouterr().out
    assert "assumptions:" in output
    assert "every NIC has 50 GB/s per direction" in output
    assert load_topology(out).num_gpus == 16
    assert main(["synth", str(out), "allgather", "--size", "1MB", "--steps", "1", "--chunks", "1", "--quiet"]) == 0


def test_the_command_writes_nothing_for_invalid_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "topo.xml").write_text(BOMB)
    out = tmp_path / "machine.json"
    assert main(["import", str(tmp_path / "topo.xml"), "--from", "nccl-topo", "--out", str(out)]) == 2
    assert "are refused" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "none.xml"), "--from", "nccl-topo", "--out", str(out)]) == 2
    assert not out.exists()
