"""Units on a local Ray cluster against those done here; workers that die, raise or do not start."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from mmspec.errors import InputError
from mmspec.eval.data.prompts import load_prompts
from mmspec.eval.measure.timing import rotated
from mmspec.eval.run import ray_executor
from mmspec.eval.run.executor import LocalExecutor, make_executor
from mmspec.eval.run.job import Job, Outcome, Unit
from mmspec.eval.run.ray_executor import RayExecutor, connect, shares
from mmspec.eval.run.run_folder import RunFolder
from mmspec.eval.suite import Suite
from mmspec.methods import SpecConfig

pytestmark = pytest.mark.slow

# what a clock or a meter gives; all else is a function of the job
MEASURED = {"seconds", "decode_seconds", "bare_seconds", "phase_seconds", "latency", "costs"}
MEASURED |= {"peak_memory", "energy"}
METHODS = {name: SpecConfig(method=name) for name in ("plain", "draft", "sjd")}
QUALITY = [Unit("quality", first, 3, method) for first in (0, 3) for method in METHODS]


class Watched(dict):
    """Configurations that note which process looks one up, and may kill it there and then.

    Args:
        notes: file of process and method, a line for each look.
        once, always: methods at whose first, or every, look the process is killed, as if from
            outside and in the middle of a unit.
    """

    def __init__(
        self,
        configs: dict[str, SpecConfig],
        notes: Path,
        once: tuple[str, ...] = (),
        always: tuple[str, ...] = (),
    ) -> None:
        super().__init__(configs)
        self.notes, self.once, self.always = notes, once, always

    def __reduce__(self) -> Any:
        return Watched, (dict(self), self.notes, self.once, self.always)

    def __getitem__(self, method: str) -> SpecConfig:
        first = method not in self.looks()
        with self.notes.open("a") as notes:
            notes.write(f"{os.getpid()} {method}\n")
        if method in self.always or (method in self.once and first):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(method)

    def looks(self) -> list[str]:
        """The methods, in the order in which they were looked up."""
        return [line.split()[1] for line in self._lines()]

    def processes(self) -> set[str]:
        """Processes that ever looked."""
        return {line.split()[0] for line in self._lines()}

    def _lines(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Cluster for the tests; its processes know this module's classes."""
    here = sys.modules[__name__]
    ray.cloudpickle.register_pickle_by_value(here)
    connect(None, workers=5)
    yield
    assert ray.is_initialized()  # no executor has closed what it did not open
    ray.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(here)


@pytest.fixture(scope="module")
def job(tiny_folder) -> Job:
    suite = Suite(
        "tiny", "", "prompts", ("geneval",), prompts=("shapes-held-out.jsonl",), quality=6
    )
    prompts = load_prompts(suite, None)[:5]
    call = {"guidance_scale": 2.0, "top_k": 100}
    return Job(suite, prompts, METHODS, call, seed=3, model=str(tiny_folder), threads=1)


@pytest.fixture(scope="module")
def two(cluster, job, tmp_path_factory) -> Iterator[RayExecutor]:
    """Two actors, for tests that leave them alive."""
    watched = Watched(METHODS, tmp_path_factory.mktemp("two") / "notes")
    executor = RayExecutor(replace(job, configs=watched), workers=2)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def mortal(cluster, job, tmp_path_factory) -> Iterator[RayExecutor]:
    """Two actors, of which one dies at the first look at "sjd", and any one of "deadly"."""
    configs = {**METHODS, "deadly": SpecConfig(), "wrong": SpecConfig(rule="greedy")}
    notes = tmp_path_factory.mktemp("mortal") / "notes"
    watched = Watched(configs, notes, once=("sjd",), always=("deadly",))
    executor = RayExecutor(replace(job, configs=watched), workers=2)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def here(job) -> dict[Unit, Outcome]:
    """Outcomes of units in this process."""
    units = [Unit("target", 0, 3), *(Unit("variation", method=m) for m in ("draft", "sjd"))]
    return by_unit(LocalExecutor(job).run([*units, *QUALITY]))


def by_unit(outcomes: Iterable[Outcome]) -> dict[Unit, Outcome]:
    outcomes = list(outcomes)
    done = {outcome.unit: outcome for outcome in outcomes}
    assert len(done) == len(outcomes)
    return done


def unmeasured(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines without what a clock gave."""
    lines = [{key: value for key, value in line.items() if key not in MEASURED} for line in lines]
    for line in lines:
        if "stats" in line:
            line["stats"] = {k: v for k, v in line["stats"].items() if k not in MEASURED}
    return lines


# --- what is done ---------------------------------------------------------------------------------


def test_same_lines_and_pictures_as_in_this_process(here, two):
    there = by_unit(two.run(list(here)))
    assert set(there) == set(here)
    for unit, outcome in here.items():
        assert unmeasured(there[unit].lines) == unmeasured(outcome.lines)
        assert there[unit].files == outcome.files
    assert sum(len(outcome.files) for outcome in there.values()) == 6 * len(METHODS)


def test_alone_is_one_after_the_other_on_one_actor(two, tmp_path):
    watched = two._job.configs
    watched.notes.unlink(missing_ok=True)
    units = [Unit("speed", first) for first in range(4)]
    with RunFolder(tmp_path, {}) as folder:
        for outcome, unit in zip(two.run(units, alone=True), units, strict=True):
            assert outcome.unit == unit
            folder.add(outcome)
    assert len(watched.processes()) == 1
    # methods take turns, and the log has their lines in that order
    lines = map(json.loads, (tmp_path / "samples.jsonl").read_text().splitlines())
    timed = [(line["index"], line["method"]) for line in lines if line["kind"] == "speed"]
    assert timed == [(turn, name) for turn in range(4) for name in rotated(METHODS, turn)]
    assert watched.looks()[-len(timed) :] == [name for _, name in timed]


def test_who_does_not_start_is_not_waited_for(two, monkeypatch):
    assert len(list(two.run(QUALITY[:1], alone=True))) == 1  # both are there by then
    monkeypatch.setattr(two, "_count", 3)
    monkeypatch.setattr(two, "_share", {"num_cpus": 99})
    monkeypatch.setattr(ray_executor, "START_SECONDS", 0.5)
    assert set(by_unit(two.run(QUALITY[:2], alone=True))) == set(QUALITY[:2])
    assert two._count == 2


def test_nobody_starts(cluster, job, monkeypatch):
    executor = RayExecutor(job, workers=2)
    monkeypatch.setattr(executor, "_share", {"num_cpus": 99})
    monkeypatch.setattr(ray_executor, "START_SECONDS", 0.5)
    with pytest.raises(InputError, match=r"no Ray worker started within 0\.5 s"):
        list(executor.run(QUALITY))
    executor.close()


def test_nothing_to_do(two):
    assert list(two.run([])) == []


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_killed_worker_is_replaced_and_its_unit_done_again(mortal, here, tmp_path):
    with RunFolder(tmp_path, {}) as folder:
        for outcome in mortal.run(QUALITY):
            folder.add(outcome)  # which refuses what is there already
        assert folder.log.done == {unit.key for unit in QUALITY}
        indices = Counter((line["method"], line["index"]) for line in folder.log.of("quality"))
        assert indices == Counter((m, i) for m in METHODS for i in range(6))
        for unit in QUALITY:
            for name, content in here[unit].files.items():
                assert (tmp_path / name).read_bytes() == content
    assert mortal._job.configs.looks().count("sjd") >= 2  # by who died of it, and by another


def test_a_worker_that_raises_is_heard_here(job, mortal):
    """Errors of a worker are raised in this process, and the worker goes on to work."""
    unit = Unit("quality", 0, 1, "wrong")  # the greedy rule has no use for temperature 1
    with pytest.raises(InputError) as local:
        list(LocalExecutor(replace(job, configs={"wrong": SpecConfig(rule="greedy")})).run([unit]))
    with pytest.raises(InputError) as remote:
        list(mortal.run([unit]))
    assert type(remote.value) is InputError
    assert str(remote.value) == str(local.value)
    with pytest.raises(KeyError, match="unheard-of"):
        list(mortal.run([Unit("quality", 0, 1, "unheard-of")]))
    plain = [unit for unit in QUALITY if unit.method == "plain"]
    assert set(by_unit(mortal.run(plain))) == set(plain)


def test_a_unit_that_kills_every_worker(mortal, monkeypatch):
    monkeypatch.setattr(ray_executor, "RESTARTS", 1)
    with pytest.raises(InputError, match=r"quality/deadly/0\+1 ended 2 Ray workers") as error:
        list(mortal.run([Unit("quality", 0, 1, "deadly")]))
    assert "\n" not in str(error.value)
    assert mortal._job.configs.looks().count("deadly") == 2


def test_another_version_is_refused(cluster, job, monkeypatch):
    monkeypatch.setattr(ray_executor, "versions", lambda: {"mmspec": "9.9", "torch": "8.8"})
    executor = RayExecutor(job, workers=1)
    with pytest.raises(
        InputError, match=r"worker .* and this process mmspec 9\.9, torch 8\.8; inst"
    ):
        list(executor.run(QUALITY))
    executor.close()


class Unimportable:
    """Object of a package that a node lacks."""

    def __reduce__(self) -> Any:
        return importlib.import_module, ("no_such_package",)


def test_a_node_without_a_package(cluster, job):
    executor = RayExecutor(replace(job, call={"absent": Unimportable()}), workers=1)
    with pytest.raises(InputError, match=r"can't start: ModuleNotFoundError: .*'no_such_package'"):
        list(executor.run(QUALITY))
    executor.close()


def test_no_room(cluster, job):
    with pytest.raises(InputError, match="no room for 6 workers, but for 5 of 1 CPU threads"):
        RayExecutor(job, workers=6)


def test_connected_elsewhere(cluster, job):
    with pytest.raises(InputError, match=r"connected to the Ray cluster at .* already"):
        RayExecutor(job, "192.0.2.1:6379")


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1", "a:b:c", ""])
def test_no_cluster_answers(monkeypatch, address):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    # which would try for long
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray is asked all the same"))
    with pytest.raises(InputError, match="no Ray cluster answers at") as error:
        connect(address, 2)
    assert "\n" not in str(error.value)


def test_without_ray(monkeypatch, job):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "mmspec.eval.run.ray_executor")
    with pytest.raises(InputError, match=r"pip install -e '\.\[ray\]'"):
        make_executor("ray", job)


# a shell's background jobs, and what they start, ignore interrupts
INTERRUPTED = """
import signal
import sys
from pathlib import Path
import psutil, ray
from mmspec.methods import SpecConfig
from mmspec.eval.data.prompts import load_prompts
from mmspec.eval.run.job import Job, Unit
from mmspec.eval.run.ray_executor import RayExecutor
from mmspec.eval.suite import Suite

suite = Suite("tiny", "", "prompts", prompts=("shapes-held-out.jsonl",), speed=1)
job = Job(suite, load_prompts(suite, None)[:1], {"plain": SpecConfig("plain")}, {})
executor = RayExecutor(job)
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    list(executor.run([Unit("target")] * 100))
except KeyboardInterrupt:
    print("interrupted")
finally:
    executor.close()
    assert not ray.is_initialized()
"""


def test_an_interrupt_ends_the_cluster_that_was_started_here():
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        cluster = [int(pid) for pid in process.stdout.readline().split()]
        assert len(cluster) > 1
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=180)
    assert (process.returncode, output, errors) == (0, "interrupted\n", "")
    _, alive = psutil.wait_procs([psutil.Process(p) for p in cluster if psutil.pid_exists(p)], 120)
    assert not alive


# --- what is asked of a cluster -------------------------------------------------------------------


GPU_NODES = [{"CPU": 32.0, "GPU": 8.0}, {"CPU": 32.0, "GPU": 4.0}, {"CPU": 4.0}]


@pytest.mark.parametrize(
    ("nodes", "changes", "workers", "expected"),
    [
        (GPU_NODES, {}, None, (12, {"num_gpus": 1, "num_cpus": 0})),
        (GPU_NODES, {}, 3, (3, {"num_gpus": 1, "num_cpus": 0})),
        (GPU_NODES, {}, 13, "no room for 13 workers, but for 12 of 1 GPU"),
        (GPU_NODES, {"device_map": "auto"}, None, (2, {"num_gpus": 4, "num_cpus": 0})),
        (GPU_NODES, {"device_map": "auto"}, 4, (4, {"num_gpus": 2, "num_cpus": 0})),
        (GPU_NODES, {"device_map": "auto"}, 99, "no room for 99 workers, but for 12 of 1 GPU"),
        (GPU_NODES[2:], {"device_map": "auto"}, None, (2, {"num_cpus": 2})),
        (GPU_NODES[2:], {}, 3, "no room for 3 workers, but for 2 of 2 CPU threads"),
        (GPU_NODES[2:], {"device": "cuda"}, None, "no node of the Ray cluster has a GPU"),
    ],
)
def test_shares_of_a_cluster(monkeypatch, job, nodes, changes, workers, expected):
    dead = {"Alive": False, "Resources": {"CPU": 99.0, "GPU": 99.0}}
    alive = [{"Alive": True, "Resources": resources} for resources in nodes]
    monkeypatch.setattr(ray, "nodes", lambda: [dead, *alive])
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            shares(replace(job, **changes), workers, cpus=2)
    else:
        assert shares(replace(job, **changes), workers, cpus=2) == expected


def test_paths_and_device_of_an_actor(job, tmp_path, monkeypatch):
    (tmp_path / "judge").mkdir()
    monkeypatch.chdir(tmp_path)
    given = replace(job, model="owner/name", files={"hpsv2": "judge", "reference": "absent"})
    found = ray_executor._anywhere(given, on_gpu=True)
    assert (found.model, found.device) == ("owner/name", "cuda")
    assert found.files == {"hpsv2": str(tmp_path / "judge"), "reference": "absent"}
    assert ray_executor._anywhere(replace(given, model=None), on_gpu=False).device == "cpu"
