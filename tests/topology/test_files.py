"""Topology JSON: round trips, and exact messages for invalid files."""

import copy
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowccl.errors import FileError, TopologyError
from flowccl.topology import files
from flowccl.topology.files import load_topology, read_machine, save_topology, topology_from_json, topology_to_json
from flowccl.topology.machines import MACHINES, machine
from flowccl.topology.topology import Limit, Link, Node, Topology
from tests.strategies import topologies

ROOT = Path(__file__).parents[2]
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((ROOT / "flowccl" / "topology" / "topology.schema.json").read_text(encoding="utf-8"))
)
DOC_EXAMPLES = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "topology.md").read_text(encoding="utf-8"), re.DOTALL)


def small(**changes):
    """Three GPUs in a line and a switch, with some top-level keys changed, or removed if the change is None."""
    value = {
        "format": "flowccl-topology",
        "version": 1,
        "name": "small",
        "nodes": ["gpu0", "gpu1", "gpu2", {"name": "sw", "kind": "switch"}],
        "links": [
            {"src": "gpu0", "dst": "gpu1", "bandwidth": "25GB/s", "latency": "0.7us", "both": True},
            {"src": "gpu1", "dst": "gpu2", "bandwidth": 12.5, "both": True, "name": "slow"},
        ],
    }
    return {key: entry for key, entry in (value | changes).items() if entry is not None}


def link(**changes):
    return {"src": "gpu0", "dst": "gpu1", "bandwidth": 25} | changes


# -- round trip -------------------------------------------------------------------------------------------------------


@given(topologies(buffers=True, overheads=True), st.text(max_size=5))
def test_a_random_machine_round_trips_through_json(topology, name):
    topology = replace(topology, name=name)
    value = json.loads(json.dumps(topology_to_json(topology)))
    SCHEMA.validate(value)
    assert topology_from_json(value, "x") == topology


@given(topologies())
def test_random_machines_connect_all_gpus(topology):
    for gpu in range(topology.num_gpus):
        seen, todo = {gpu}, [gpu]
        while todo:
            node = todo.pop()
            new = {k.dst for k in topology.links if k.src == node} - seen
            seen |= new
            todo += new
        assert seen >= set(range(topology.num_gpus))


@given(st.lists(st.text(min_size=1), min_size=2, max_size=4, unique=True), st.floats(1e-6, 1e9), st.floats(0, 1e9))
def test_any_name_and_any_number_round_trip_through_json(names, bandwidth, latency):
    nodes = [Node(name=name, host=name) for name in names]
    links = [Link(src=0, dst=1, bandwidth_GBps=bandwidth, latency_us=latency), Link(src=1, dst=0, bandwidth_GBps=1)]
    topology = Topology(
        "t", tuple(nodes), tuple(links), (Limit(name=names[0], links=(1, 0), bandwidth_GBps=bandwidth),)
    )
    assert topology_from_json(json.loads(json.dumps(topology_to_json(topology))), "x") == topology


@pytest.mark.parametrize("name", [kind.example for kind in MACHINES.values()])
def test_every_named_machine_round_trips_through_a_file(name, tmp_path):
    topology = machine(name)
    path = tmp_path / "m.json"
    save_topology(topology, path)
    loaded = load_topology(path)
    assert loaded == topology
    assert loaded.fingerprint == topology.fingerprint
    SCHEMA.validate(json.loads(path.read_text()))


def test_compressed_files(tmp_path):
    path = tmp_path / "m.json.gz"
    save_topology(machine("ndv2:2"), path)
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert load_topology(path) == machine("ndv2:2")


def test_limits_keep_parallel_links_and_their_order():
    nodes = (Node(name="gpu0"), Node(name="gpu1"))
    links = [Link(src=a, dst=1 - a, bandwidth_GBps=25.0 + k) for k, a in enumerate((0, 0, 1, 0))]
    topology = Topology("t", nodes, tuple(links), (Limit(name="shared", links=(3, 2, 0), bandwidth_GBps=30.0),))
    value = topology_to_json(topology)
    assert value["limits"][0]["links"] == [3, ["gpu1", "gpu0"], 0]
    assert topology_from_json(value, "x") == topology


def test_written_numbers_are_plain():
    value = topology_to_json(machine("line:2"))
    assert value["links"][0] == {"src": "gpu0", "dst": "gpu1", "bandwidth": 25.0, "latency": 0.7}
    assert value["nodes"][0] == {"name": "gpu0", "kind": "gpu"}


# -- handwritten files ------------------------------------------------------------------------------------------------


def test_doc_has_examples():
    assert len(DOC_EXAMPLES) == 2


@pytest.mark.parametrize("text", DOC_EXAMPLES)
def test_examples_of_the_doc_load_and_match_the_schema(text, tmp_path):
    path = tmp_path / "m.json"
    path.write_text(text)
    topology = load_topology(path)
    SCHEMA.validate(json.loads(text))
    assert topology_from_json(topology_to_json(topology), "x") == topology


def test_the_first_example_of_the_doc_is_a_star():
    topology = topology_from_json(json.loads(DOC_EXAMPLES[0]), "doc")
    assert topology == replace(machine("star:4"), name="four on a switch")


def test_the_second_example_of_the_doc():
    topology = topology_from_json(json.loads(DOC_EXAMPLES[1]), "doc")
    assert (topology.num_gpus, len(topology.nodes), len(topology.links)) == (8, 15, 44)
    assert topology.hosts == ("a", "b")
    assert [len(limit.links) for limit in topology.limits] == [4, 4, 3]
    nic = next(k for k in topology.links if k.src == 0 and topology.nodes[k.dst].name == "network")
    assert (nic.bandwidth_GBps, nic.latency_us, nic.changes) == (25.0, 1.3, ((1000.0, 12.5),))
    assert topology.nodes[topology.index["a.memory"]].buffer_bytes == 64 * 10**9


def test_all_forms_of_a_link():
    topology = topology_from_json(small(), "x")
    assert topology.links == (
        Link(src=0, dst=1, bandwidth_GBps=25.0, latency_us=0.7),
        Link(src=1, dst=0, bandwidth_GBps=25.0, latency_us=0.7),
        Link(src=1, dst=2, bandwidth_GBps=12.5),
        Link(src=2, dst=1, bandwidth_GBps=12.5),
    )


def test_gpus_come_first_for_any_order_in_the_file():
    nodes = [{"name": "sw", "kind": "switch"}, "gpu2", {"name": "m", "kind": "memory"}, {"name": "gpu1"}, "gpu0"]
    topology = topology_from_json(small(nodes=nodes), "x")
    assert [node.name for node in topology.nodes] == ["gpu2", "gpu1", "gpu0", "sw", "m"]
    assert topology.link_name(0) == "gpu0 -> gpu1"


def test_count_numbers_nodes_and_links():
    nodes = [
        {"name": "gpu{}", "count": 3, "host": "host{}"},
        {"name": "sw{}", "count": 3, "kind": "switch", "copies": True},
    ]
    links = [{"src": "gpu{}", "dst": "sw{}", "count": 3, "bandwidth": 1, "both": True}]
    topology = topology_from_json(small(nodes=nodes, links=links), "x")
    assert topology.hosts == ("host0", "host1", "host2")
    assert all(node.copies for node in topology.nodes)
    assert [(k.src, k.dst) for k in topology.links] == [(0, 3), (3, 0), (1, 4), (4, 1), (2, 5), (5, 2)]


def test_braces_without_count_are_part_of_the_name():
    topology = topology_from_json(small(nodes=["{}", "gpu1"], links=[link(src="{}")]), "x")
    assert topology.nodes[0].name == "{}"


def test_limits_name_links_by_ends_by_name_and_by_position():
    limits = [{"name": "all", "bandwidth": "30GB/s", "links": ["slow", ["gpu1", "gpu0"]]}]
    limits.append({"name": "first", "bandwidth": 5, "links": [0]})
    topology = topology_from_json(small(limits=limits), "x")
    assert topology.limits == (
        Limit(name="all", links=(2, 3, 1), bandwidth_GBps=30.0),
        Limit(name="first", links=(0, 1), bandwidth_GBps=5.0),
    )


def test_a_pair_of_nodes_names_all_parallel_links():
    limits = [{"name": "all", "bandwidth": 30, "links": [["gpu0", "gpu1"]]}]
    topology = topology_from_json(small(links=[link(), link()], limits=limits), "x")
    assert topology.limits[0].links == (0, 1)


def test_a_schema_reference_is_ignored():
    assert topology_from_json(small(**{"$schema": "topology.schema.json"}), "x") == topology_from_json(small(), "x")


def test_units():
    entry = link(bandwidth="200Gb/s", latency="300ns", changes=[{"at": "1ms", "bandwidth": "900MB/s"}])
    topology = topology_from_json(small(links=[entry]), "x")
    assert topology.links[0] == Link(src=0, dst=1, bandwidth_GBps=25.0, latency_us=0.3, changes=((1000.0, 0.9),))


@pytest.mark.parametrize(("buffer", "size"), [(0, 0), (10**18 + 1, 10**18 + 1), ("64MB", 64 * 10**6), ("1KiB", 1024)])
def test_buffers(buffer, size):
    topology = topology_from_json(small(nodes=[{"name": "gpu0", "buffer": buffer}], links=[]), "x")
    assert topology.nodes[0].buffer_bytes == size


# -- invalid files ----------------------------------------------------------------------------------------------------

NOT_IN_SCHEMA = [  # errors that a schema cannot express: names, order, totals
    ({"links": [link(dst="gpu9")]}, 'links[0] (gpu0 -> gpu9): there is no node "gpu9"; nearest is "gpu0"'),
    ({"links": [link(src="nvswitch")]}, 'links[0] (nvswitch -> gpu1): there is no node "nvswitch"'),
    (
        {"links": [link(dst="gpu0")]},
        'links[0] (gpu0 -> gpu0): a link must connect two different nodes, got "gpu0" twice',
    ),
    ({"nodes": ["gpu0", "gpu0"]}, 'nodes[1]: "gpu0" is already the name of nodes[0]; names must differ'),
    (
        {"nodes": ["gpu2", {"name": "gpu{}", "count": 3}]},
        'nodes[1]: "gpu2" is already the name of nodes[0]; names must differ',
    ),
    ({"nodes": [{"name": "sw", "kind": "switch"}]}, "nodes: a machine needs at least one gpu"),
    (
        {"nodes": [{"name": "gpu0", "stores": False}]},
        "nodes[0]: node gpu0: a gpu owns data, so stores cannot be false",
    ),
    (
        {"nodes": ["gpu0", {"name": "s", "kind": "switch", "buffer": 5}]},
        "nodes[1]: node s: buffer_bytes needs a node that stores; a switch does not",
    ),
    (
        {"links": [link(name="a"), link(name="a")]},
        'links[1] (gpu0 -> gpu1): "a" is already the name of a link; names must differ',
    ),
    (
        {"links": [link(changes=[{"at": 5, "bandwidth": 1}, {"at": 3, "bandwidth": 2}])]},
        "links[0] (gpu0 -> gpu1): changes[1]: times must be above 0 and increase, got 3 us after 5 us",
    ),
    (
        {"links": [link(changes=[{"at": 0, "bandwidth": 1}])]},
        "links[0] (gpu0 -> gpu1): changes[0]: times must be above 0 and increase, got 0 us after 0 us",
    ),
    (
        {"limits": [{"name": "a", "bandwidth": 1, "links": [["gpu0", "gpu2"]]}]},
        'limits[0] (a): links[0]: there is no link from "gpu0" to "gpu2"',
    ),
    (
        {"limits": [{"name": "a", "bandwidth": 1, "links": [["gpu0", "gpx1"]]}]},
        'limits[0] (a): links[0]: there is no node "gpx1"; nearest is "gpu1"',
    ),
    (
        {"limits": [{"name": "a", "bandwidth": 1, "links": ["slwo"]}]},
        'limits[0] (a): links[0]: there is no link named "slwo"; nearest is "slow"',
    ),
    (
        {"limits": [{"name": "a", "bandwidth": 1, "links": [2]}]},
        "limits[0] (a): links[0]: there is no link at position 2",
    ),
    (
        {"limits": [{"name": "a", "bandwidth": 1, "links": [1, "slow"]}]},
        "limits[0] (a): links[1]: names a link that is already part of this limit",
    ),
    (
        {"limits": [{"name": "a", "bandwidth": 1, "links": [0]}, {"name": "a", "bandwidth": 1, "links": [1]}]},
        'limits[1]: "a" is already the name of a limit; names must differ',
    ),
    (
        {"links": [link(src="gpu{}", count=6_000_000, both=True)]},
        "links[0] (gpu{} -> gpu1): a machine has at most 10,000,000 links",
    ),
    ({"links": [link(bandwidth="1e-9GB/s")]}, "links[0] (gpu0 -> gpu1): bandwidth must be between 1e-6 and 1e9 GB/s,"),
    ({"links": [link(bandwidth="0GB/s")]}, "links[0] (gpu0 -> gpu1): bandwidth must be > 0, got 0GB/s"),
    ({"name": "\ud800"}, 'name must be a string that can be encoded as UTF-8, got "\\ud800"'),
]

IN_SCHEMA = [
    ({"format": None}, 'write "format": "flowccl-topology" at the top'),
    ({"format": "teccl"}, 'write "format": "flowccl-topology" at the top, got "teccl"'),
    ({"version": None}, 'write "version": 1 at the top'),
    ({"version": 2}, 'write "version": 1 at the top, got 2'),
    ({"version": True}, 'write "version": 1 at the top, got true'),
    ({"name": None}, '"name" is missing; write for example "name": "my machine"'),
    ({"name": 5}, "name must be a string, got 5"),
    ({"nodes": None}, '"nodes" is missing; write for example "nodes": ["gpu0", "gpu1"]'),
    ({"nodes": {}}, "nodes must be a list, got an object"),
    ({"nodes": []}, "nodes: a machine needs at least one gpu"),
    ({"links": None}, '"links" is missing; write for example "links": []'),
    ({"limits": 5}, "limits must be a list, got 5"),
    ({"limit": []}, 'unknown key "limit"; nearest is "limits"'),
    ({"zzz": []}, 'unknown key "zzz"; known keys are format, version, name, nodes, links, limits, $schema'),
    ({"nodes": [5]}, "nodes[0]: must be an object, got 5"),
    ({"nodes": [""]}, "nodes[0]: the name of a node must be a non-empty string, got ''"),
    ({"nodes": [{}]}, 'nodes[0]: "name" is missing; write for example "name": "gpu0"'),
    ({"nodes": [{"name": None}]}, "nodes[0]: name must be a string, got null"),
    ({"nodes": [{"name": "a", "hots": "b"}]}, 'nodes[0]: unknown key "hots"; nearest is "host"'),
    (
        {"nodes": [{"name": "a", "kind": "npu"}]},
        "nodes[0]: node a: kind must be gpu, switch or memory, got 'npu'",
    ),
    ({"nodes": [{"name": "a", "kind": ["gpu"]}]}, "nodes[0]: kind must be a string, got a list"),
    ({"nodes": [{"name": "a", "copies": 1}]}, "nodes[0]: copies must be true or false, got 1"),
    (
        {"nodes": [{"name": "a", "crossing": "fast"}]},
        "nodes[0]: node a: crossing must be cut-through or store-and-forward, got 'fast'",
    ),
    ({"nodes": [{"name": "a", "buffer": -1}]}, "nodes[0]: buffer: size -1: must not be negative"),
    (
        {"nodes": [{"name": "a", "buffer": []}]},
        "nodes[0]: buffer: size must be a number or a string with a unit, got an empty list",
    ),
    ({"nodes": [{"name": "a{}", "count": 0}]}, "nodes[0]: count must be a whole number of at least 1, got 0"),
    ({"nodes": [{"name": "a{}", "count": 1.5}]}, "nodes[0]: count must be a whole number of at least 1, got 1.5"),
    ({"nodes": [{"name": "a{}", "count": None}]}, "nodes[0]: count must be a whole number of at least 1, got null"),
    ({"nodes": [{"name": "a{}", "count": 10**12}]}, "nodes[0]: a machine has at most 1,000,000 nodes"),
    ({"nodes": [{"name": "a", "count": 2}]}, 'nodes[0]: count needs {} in name for the number, as in "gpu{}"'),
    (
        {"nodes": [{"name": "a" * 1000 + "{}", "count": 2}]},
        "nodes[0]: name with count must be at most 1,000 characters, got 1,002",
    ),
    ({"links": [[0, 1]]}, "links[0]: must be an object, got a list"),
    ({"links": [{"src": "gpu0"}]}, 'links[0]: "dst" is missing; write for example "dst": "gpu1"'),
    ({"links": [link(src=0)]}, "links[0]: src must be a string, got 0"),
    (
        {"links": [{"src": "gpu0", "dst": "gpu1"}]},
        'links[0] (gpu0 -> gpu1): "bandwidth" is missing; write for example "bandwidth": "25GB/s"',
    ),
    ({"links": [link(bandwith=5)]}, 'links[0]: unknown key "bandwith"; nearest is "bandwidth"'),
    ({"links": [link(bandwidth=0)]}, "links[0] (gpu0 -> gpu1): bandwidth must be > 0, got 0"),
    ({"links": [link(bandwidth=-5)]}, "links[0] (gpu0 -> gpu1): bandwidth must be > 0, got -5"),
    (
        {"links": [link(bandwidth=[])]},
        "links[0] (gpu0 -> gpu1): bandwidth must be a number or a string with a unit, got an empty list",
    ),
    ({"links": [link(bandwidth="25us")]}, "links[0] (gpu0 -> gpu1): bandwidth: cannot read '25us'; write for example"),
    ({"links": [link(bandwidth=10**400)]}, "links[0] (gpu0 -> gpu1): bandwidth is too large, got 10000000"),
    ({"links": [link(latency=-1)]}, "links[0] (gpu0 -> gpu1): latency must be >= 0, got -1"),
    (
        {"links": [link(latency=True)]},
        "links[0] (gpu0 -> gpu1): latency must be a number or a string with a unit, got true",
    ),
    ({"links": [link(both="yes")]}, 'links[0] (gpu0 -> gpu1): both must be true or false, got "yes"'),
    ({"links": [link(name=7)]}, "links[0] (gpu0 -> gpu1): name must be a string, got 7"),
    (
        {"links": [link(count=2)]},
        'links[0] (gpu0 -> gpu1): count needs {} in src or dst for the number, as in "gpu{}"',
    ),
    ({"links": [link(changes={})]}, "links[0] (gpu0 -> gpu1): changes must be a list, got an object"),
    (
        {"links": [link(changes=[{"at": 5}])]},
        'links[0] (gpu0 -> gpu1): changes[0]: "bandwidth" is missing; write for example "bandwidth": "5GB/s"',
    ),
    (
        {"links": [link(changes=[{"at": 5, "bandwidth": 0}])]},
        "links[0] (gpu0 -> gpu1): changes[0]: bandwidth must be > 0, got 0",
    ),
    ({"limits": [{}]}, 'limits[0]: "name" is missing; write for example "name": "pcie0"'),
    (
        {"limits": [{"name": "a", "links": [0]}]},
        'limits[0]: "bandwidth" is missing; write for example "bandwidth": "32GB/s"',
    ),
    (
        {"limits": [{"name": "a", "bandwidth": 1, "links": []}]},
        "limits[0] (a): links must be a list of at least one link, got an empty list",
    ),
    (
        {"limits": [{"name": "a", "bandwidth": 1, "links": [True]}]},
        'limits[0] (a): links[0]: must be ["src", "dst"], the name of a link, or its position in links, got true',
    ),
    (
        {"limits": [{"name": "a", "bandwidth": 1, "links": [["gpu0", 1]]}]},
        "limits[0] (a): links[0]: a node must be a string, got 1",
    ),
    (
        {"limits": [{"name": "a", "bandwidth": 1, "links": [-1]}]},
        "limits[0] (a): links[0]: there is no link at position -1",
    ),
    ({"limits": [{"name": "a", "bandwidth": 0, "links": [0]}]}, "limits[0] (a): bandwidth must be > 0, got 0"),
]


@pytest.mark.parametrize(
    ("changes", "message"), NOT_IN_SCHEMA + IN_SCHEMA, ids=[m for _, m in NOT_IN_SCHEMA + IN_SCHEMA]
)
def test_messages_give_the_position_and_the_fix(changes, message):
    with pytest.raises(TopologyError) as error:
        topology_from_json(small(**changes), "cluster.json")
    assert str(error.value).startswith(f"cluster.json: {message}")
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(("changes", "message"), IN_SCHEMA, ids=[m for _, m in IN_SCHEMA])
def test_the_schema_also_refuses_it(changes, message):
    assert not SCHEMA.is_valid(small(**changes))


def test_the_schema_is_valid_and_accepts_a_valid_file():
    jsonschema.Draft202012Validator.check_schema(SCHEMA.schema)
    SCHEMA.validate(small())


@pytest.mark.parametrize("value", [[], 5, "x", None, True])
def test_refuses_values_that_are_not_objects(value):
    form = re.escape('m: must be an object {"format": "flowccl-topology", "version": 1, ...}, got ')
    with pytest.raises(TopologyError, match=form):
        topology_from_json(value, "m")


ODD = (None, True, 0, 1, -1, 2.5, float("nan"), 10**400, "", "gpu0", "gpu{}", "25GB/s", "\ud800", [], {}, [0], {"a": 1})


def spots(value, path=()):
    """Yield the paths of all values inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inside:
        yield (*path, key)
        yield from spots(entry, (*path, key))


RICH = json.loads(DOC_EXAMPLES[1])


@given(st.sampled_from(list(spots(RICH))), st.sampled_from(ODD))
def test_any_value_anywhere_is_accepted_or_refused_without_a_crash(path, odd):
    value = copy.deepcopy(RICH)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = odd
    try:
        topology = topology_from_json(value, "m")
    except TopologyError:
        return
    SCHEMA.validate(value)
    assert topology_from_json(topology_to_json(topology), "m") == topology


def test_size_limits_count_all_nodes_and_all_links(monkeypatch):
    monkeypatch.setattr(files, "MAX_NODES", 4)
    assert topology_from_json(small(), "m").num_gpus == 3
    with pytest.raises(TopologyError, match=r"m: nodes\[1\]: a machine has at most 4 nodes"):
        topology_from_json(small(nodes=[{"name": "gpu{}", "count": 3}, {"name": "a{}", "count": 2}]), "m")
    monkeypatch.setattr(files, "MAX_LINKS", 3)
    with pytest.raises(TopologyError, match=r"m: links\[1\] \(gpu1 -> gpu2\): a machine has at most 3 links"):
        topology_from_json(small(), "m")


def test_limits_cannot_name_too_many_links_in_total(monkeypatch):
    monkeypatch.setattr(files, "MAX_LINKS", 5)
    limits = [{"name": name, "bandwidth": 1, "links": [0, 1]} for name in "ab"]
    with pytest.raises(TopologyError, match=r"m: limits\[1\] \(b\): limits may name at most 5 links in total"):
        topology_from_json(small(limits=limits), "m")


# -- files ------------------------------------------------------------------------------------------------------------


def test_messages_name_the_file(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(small(links=[link(dst="gpu9")])))
    with pytest.raises(TopologyError) as error:
        load_topology(path)
    assert str(error.value) == f'{path}: links[0] (gpu0 -> gpu9): there is no node "gpu9"; nearest is "gpu0"'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON: the file is empty"),
        (b'{"format": "flowccl-topology",}', "not JSON: "),
        (b"\xff", "not JSON: "),
        (b"[" * 100_000, "cannot be read: nested too deeply"),
        (b'{"version": NaN}', "NaN is not a number that JSON allows"),
        (b'{"name": 1, "name": 2}', "key 'name' appears twice in one object"),
        (gzip.compress(b"{}", mtime=0)[:-9], "cannot be read: "),
    ],
)
def test_broken_files(data, message, tmp_path):
    path = tmp_path / "m.json"
    path.write_bytes(data)
    with pytest.raises(FileError, match=re.escape(f"{path}: {message}")):
        load_topology(path)


def test_files_that_are_missing_or_too_large(tmp_path, monkeypatch):
    with pytest.raises(FileError, match=r"none.json: no such file"):
        load_topology(tmp_path / "none.json")
    path = tmp_path / "m.json"
    save_topology(machine("ring:4"), path)
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100)
    with pytest.raises(FileError, match=r"larger than 100 B, the size limit"):
        load_topology(path)


def test_read_machine_accepts_names_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ring = machine("ring:4")
    for name in ("m.json", "m.json.gz", "m"):
        save_topology(ring, name)
        assert read_machine(name) == ring
        assert read_machine(f"./{name}") == ring
        assert read_machine(str(tmp_path / name)) == ring
    assert read_machine("ring:4") == ring
    assert read_machine("ring:4:bandwidth=50GB/s").name == "ring:4:bandwidth=50GB/s"


def test_read_machine_names_the_missing_file_or_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match=r"^none.json: no such file"):
        read_machine("none.json")
    with pytest.raises(FileError, match=r"^./none: no such file|^none/none: no such file"):
        read_machine("none/none")
    with pytest.raises(TopologyError, match='there is no machine "rng"; nearest is "ring"'):
        read_machine("rng:4:bandwidth=50GB/s")
    with pytest.raises(TopologyError, match='there is no machine "' + "x" * 5000):
        read_machine("x" * 5000)


@pytest.mark.parametrize("name", ["machines", "./machines", "machines.json"])
def test_read_machine_refuses_a_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    with pytest.raises(FileError) as error:
        read_machine(name)
    assert str(error.value) == f"{name}: is a folder; give a topology file or the name of a machine such as ndv2:2"


@pytest.mark.parametrize("data", [b"", b"{", json.dumps(small()).encode()], ids=["empty", "broken", "plain JSON"])
def test_a_gz_file_that_is_not_gzip(data, tmp_path):
    path = tmp_path / "m.json.gz"
    path.write_bytes(data)
    with pytest.raises(FileError) as error:
        load_topology(path)
    assert str(error.value) == f"{path}: is not a gzip file; compress it or remove .gz from its name"
