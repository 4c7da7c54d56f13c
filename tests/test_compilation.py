"""The cache of compiled loops, and compiling by several processes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flowccl
from flowccl import compilation, compile_cache

LOOP = "from flowccl.compiled import compiled\n\n@compiled\ndef loop(x):\n    return x + {}\n"
CALL = (
    "import sys; sys.path.insert(0, sys.argv[1]); from flowccl_loop import loop; "
    "print(loop(40), sum(loop.stats.cache_hits.values()), loop._cache.cache_path)"
)


def _call(path: Path, **environment: str) -> list[str]:
    """Result, cache hits and cache folder of the loop, in a process of its own."""
    unset = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    command = [sys.executable, "-c", CALL, str(path)]
    run = subprocess.run(command, env=unset | environment, capture_output=True, text=True, check=True)
    return run.stdout.split()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with nothing in it."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_machine_code_lies_beside_the_module(tmp_path: Path):
    (tmp_path / "flowccl_loop.py").write_text(LOOP.format(1))
    assert _call(tmp_path) == ["41", "0", str(tmp_path / "__pycache__")]
    assert _call(tmp_path) == ["41", "1", str(tmp_path / "__pycache__")]


def test_machine_code_lies_in_the_users_folder_where_the_package_is_read_only(tmp_path: Path):
    """A file in the place of `__pycache__` keeps even the superuser from writing there."""
    package, user = tmp_path / "package", tmp_path / "user"
    package.mkdir()
    (package / "flowccl_loop.py").write_text(LOOP.format(1))
    (package / "__pycache__").write_text("")
    for hits in ("0", "1"):
        found = _call(package, XDG_CACHE_HOME=str(user))
        assert found[:2] == ["41", hits]
        assert Path(found[2]).parent == user / "flowccl" / "numba"
    given = tmp_path / "given"
    assert Path(_call(package, NUMBA_CACHE_DIR=str(given))[2]).parent == given


def test_loops_run_where_no_folder_is_writable(tmp_path: Path):
    (tmp_path / "flowccl_loop.py").write_text(LOOP.format(1))
    (tmp_path / "__pycache__").write_text("")
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    assert _call(tmp_path, XDG_CACHE_HOME=str(blocked), HOME=str(blocked)) == ["41", "0", "None"]


def test_an_index_never_names_machine_code_of_other_source(tmp_path: Path):
    """A process that is stopped between the two writes leaves an index that names files that are there."""
    module = tmp_path / "flowccl_loop.py"
    module.write_text(LOOP.format(1))
    _call(tmp_path)
    cache = tmp_path / "__pycache__"
    old = {path.name: path.read_bytes() for path in cache.iterdir()}
    module.write_text(LOOP.format(2))
    assert _call(tmp_path)[:2] == ["42", "0"]
    code = {path.name for path in cache.glob("*.nbc")}
    assert len(code) == 1
    assert not code & set(old)
    index = next(path for path in cache.glob("*.nbi"))
    index.write_bytes(old[index.name])  # the machine code was written, the index was not
    assert _call(tmp_path)[:2] == ["42", "0"]
    assert _call(tmp_path)[:2] == ["42", "1"]


def test_a_method_counts_as_compiled_while_its_files_are_there(empty_cache: Path):
    code = empty_cache / "code.nbc"
    code.write_text("")
    assert not compile_cache.is_compiled("greedy")
    compile_cache.record_compiled("greedy", [str(code)])
    assert compile_cache.is_compiled("greedy")
    assert not compile_cache.is_compiled("lns")
    code.unlink()
    assert not compile_cache.is_compiled("greedy")


def test_a_method_does_not_count_as_compiled_after_a_change_of_source(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    compile_cache.record_compiled("greedy", [])
    monkeypatch.setattr(compile_cache, "_fingerprint", lambda: "other")
    assert not compile_cache.is_compiled("greedy")


def test_the_digest_follows_imports(tmp_path: Path):
    shutil.copytree(Path(flowccl.__file__).parent, tmp_path / "flowccl", ignore=shutil.ignore_patterns("__pycache__"))
    module = "flowccl.schedule.generation.generation_kernels"
    before = compile_cache.source_digest([module], tmp_path)
    assert before == compile_cache.source_digest([module])
    with (tmp_path / "flowccl" / "compile_cache.py").open("a") as file:
        file.write("# changed\n")
    assert compile_cache.source_digest([module], tmp_path) != before


def test_one_process_at_a_time_holds_a_lock(empty_cache: Path):
    with compile_cache.lock("greedy", wait=False) as first, compile_cache.lock("greedy", wait=False) as second:
        assert first
        assert not second
    with compile_cache.lock("greedy", wait=False) as again:
        assert again


def test_only_what_is_missing_is_compiled_and_other_processes_help(empty_cache: Path, monkeypatch: pytest.MonkeyPatch):
    helped: list[list[str]] = []
    loaded: list[str] = []
    phases: list[str] = []

    class Helper:
        def __init__(self, command: list[str], **_: object) -> None:
            helped.append(command[1:])

        def wait(self) -> None:
            pass

    monkeypatch.setattr(subprocess, "Popen", Helper)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(compilation, "compile_now", loaded.append)
    monkeypatch.setattr(compilation, "_LOADED", set())
    compile_cache.record_compiled("greedy", [])
    assert compilation.compile_missing(["greedy", "reroute", "lns"], phases.append) > 0
    assert loaded == ["reroute", "lns"]
    assert helped == [["-m", "flowccl.compilation", "lns", "reroute"]]
    assert phases == ["compiling, once per installation: reroute, lns"]
    assert compilation.compile_missing(["greedy"], phases.append) == 0.0
    assert len(helped) == len(phases) == 1


def test_a_unit_is_loaded_once_in_a_process(empty_cache: Path, monkeypatch: pytest.MonkeyPatch):
    loaded: list[str] = []
    monkeypatch.setattr(compilation, "compile_now", loaded.append)
    monkeypatch.setattr(compilation, "_LOADED", set())
    compilation.load(["direct", "greedy"])
    compilation.load(["direct", "reroute"])
    assert loaded == ["direct", "greedy", "reroute"]


def test_a_loaded_function_can_be_compiled_into_another_one(tmp_path: Path):
    """What the cache keeps for that is read only then."""
    (tmp_path / "flowccl_loop.py").write_text(LOOP.format(1))
    assert _call(tmp_path)[:2] == ["41", "0"]
    outer = "from flowccl.compiled import compiled\nfrom flowccl_loop import loop\n\n@compiled\ndef outer(x):\n"
    (tmp_path / "flowccl_outer.py").write_text(f"{outer}    return 2 * loop(x)\n")
    script = f"from flowccl_outer import outer; {CALL}; print(outer(20))".replace("import sys;", "", 1)
    script = f"import sys; sys.path.insert(0, sys.argv[1]); {script}"
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout.split()[:2] == ["41", "1"]
    assert run.stdout.split()[-1] == "42"


def test_a_unit_that_does_not_exist_is_refused_with_the_list(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        compilation.main(["gredy"])
    assert stop.value.code == 2
    assert "there is no unit 'gredy'; the units are direct, hierarchical, " in capsys.readouterr().err


def test_help_lists_the_units(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        compilation.main(["--help"])
    assert stop.value.code == 0
    assert ", ".join(compilation.all_units()) in capsys.readouterr().out


def test_two_processes_do_not_compile_the_same_function(tmp_path: Path):
    """Both need it at once; the one that has to wait loads what the other one compiled."""
    (tmp_path / "flowccl_loop.py").write_text(LOOP.format(1))
    command = [sys.executable, "-c", CALL, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [process.communicate(timeout=120)[0].split() for process in both]
    assert [answer[0] for answer in found] == ["41", "41"]
    assert sorted(int(answer[1]) for answer in found) == [0, 1]  # loaded from the cache


def test_two_signatures_never_share_a_file(tmp_path: Path):
    """Processes that compile at the same time do not see each other's entries of the index."""
    (tmp_path / "flowccl_loop.py").write_text(LOOP.format(1))
    _call(tmp_path)
    index = next((tmp_path / "__pycache__").glob("*.nbi"))
    index.unlink()
    floats = CALL.replace("loop(40)", "loop(40.0)")
    run = subprocess.run([sys.executable, "-c", floats, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout.split()[0] == "41.0"
    assert len(list((tmp_path / "__pycache__").glob("*.nbc"))) == 2
