"""Training in several processes: the step of their mean gradient, and Muon's work shared out."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

PAIR = """
import itertools
import sys
import time
from pathlib import Path
from types import SimpleNamespace
import torch
from torch import nn
from mmspec.train import trainer
from mmspec.train.parallel import Processes
from mmspec.train.trainer import TrainConfig, Trainer

ARRIVED = Path(sys.argv[1]) / "arrived"

class Told(Processes):
    def wait(self):
        if not self.first:
            ARRIVED.touch()
        super().wait()

def draw(rng, step):
    return torch.from_numpy(rng.standard_normal((4, 3))).float()

class Both:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model, self.draw = nn.Linear(3, 2, bias=False), draw
        self.model.unused = nn.Linear(2, 2)
    def optimizers(self):
        return [torch.optim.SGD(self.model.parameters(), 0.3)]
    def loss(self, batch, rng, step):
        return self.model(batch).square().mean(), {}
    def evaluate(self, model):
        return {"held_out": 0.0}
    def export(self, model, record):
        while not ARRIVED.exists():  # the other one waits for what it writes
            time.sleep(0.05)
        time.sleep(1)
        torch.save(self.model.weight.detach(), Path(sys.argv[1]) / "weight.pt")

processes = Told(*vars(Processes.launched("cpu")).values())
# clocks that differ by far, of which the first one's counts: how fast this machine is does not
ticks = itertools.count(step=1.0 if processes.first else 10_000.0)
trainer.time = SimpleNamespace(monotonic=lambda: next(ticks))
config = TrainConfig(Path(sys.argv[1]), 5, 4, seed=processes.seed(7), warmup=1, max_minutes=60.0)
record = Trainer(Both(processes.index), config, None, processes).run()  # first weights differ
assert processes.count == record["processes"] == 2
assert processes.first == bool(record["held_out"])
assert (Path(sys.argv[1]) / "weight.pt").exists()
if processes.first:
    Trainer(Both(0), config, None, processes).load()  # what it saved can be gone on from

# Muon's work is shared out, and its weights are those of one process
from mmspec.train import muon
orthogonalize, mine = muon.orthogonalize, []

def counted(g):
    mine.append(g)
    return orthogonalize(g)

muon.orthogonalize = counted
torch.manual_seed(1)
alone = [nn.Parameter(torch.randn(4 + n, 6)) for n in range(5)]
shared = [nn.Parameter(p.detach().clone()) for p in alone]
ours, theirs = muon.Muon(shared, 0.1), muon.Muon(alone, 0.1)
ours.processes = processes
for step in range(3):
    for one, other in zip(alone, shared):
        one.grad = torch.randn_like(one)
        other.grad = one.grad.clone()
    mine.clear()
    ours.step()
    assert len(mine) in (2, 3)
    theirs.step()
assert all(torch.equal(one, other) for one, other in zip(alone, shared))
processes.wait()  # none leaves while another one may still hear from it
"""


@pytest.mark.slow
def test_two_processes_take_the_step_of_their_mean_gradient(tmp_path):
    script = tmp_path / "pair.py"
    script.write_text(PAIR)
    # what `accelerate launch` itself calls for several GPUs
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ]
    command = [*launch, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    torch.manual_seed(0)
    weight = nn.Linear(3, 2, bias=False).weight.detach()
    for step in range(5):
        gradient = torch.zeros_like(weight)
        for seed in (7, 7 + 1_000_003):
            x = torch.from_numpy(np.random.default_rng([seed, step]).standard_normal((4, 3)))
            gradient += 2 * (x.float() @ weight.T).T @ x.float() / 8 / 2
        norm = float(gradient.norm())
        rate = 0.3 * min(1.0, (1 - step / 5) / 0.3)
        weight = weight - rate * gradient / max(1.0, norm)
    assert torch.allclose(torch.load(tmp_path / "weight.pt", weights_only=True), weight, atol=1e-5)
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1
