"""The training loop that every recipe shares: schedule, averaging, checkpoints, log, progress.

A recipe says what is trained and how a loss comes about; the trainer knows nothing of either.
Batches depend on (seed, step) alone, so a resumed run sees the data of an unbroken one, whatever
the number of processes that draw them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm

from ..errors import InputError, reason
from ..files import to_json
from ..progress import no_bars, say
from .feature_cache import write_cached
from .kept import averaged
from .muon import Muon
from .parallel import Processes
from .reference import CHECKPOINT
from .stopping import Stateful, heard


@dataclass(frozen=True)
class TrainConfig:
    """Length, data and device of a training.

    `steps` is the length; with `max_minutes` the schedule ends at whichever comes first, so that a
    run on a slow or busy machine still decays to zero.
    """

    out: Path
    steps: int
    batch_size: int
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"  # or "bfloat16": autocast, weights stay float32
    warmup: int = 100
    decay: float = 0.3  # the last part of the run over which the rate falls to zero
    ema: float = 0.998
    clip: float = 1.0
    save_minutes: float = 3.0
    evaluate_every: int = 500
    max_minutes: float | None = None
    workers: int = 0  # processes that draw batches ahead; a GPU outruns one
    repeat: int | None = None  # steps after which the data of the first come again
    keep: float = 0.0  # share of the first weights in the exported average, see `kept`


# fields of `TrainConfig` that a resumed run may have otherwise: how long, where and how it is told
FREE = {"out", "steps", "max_minutes", "device", "workers", "save_minutes", "evaluate_every"}

Draw = Callable[[np.random.Generator, int], Any]
Loss = tuple[Tensor, dict[str, float]]
"""A loss, and figures to log beside it."""


class Recipe(Protocol):
    """Protocol of a recipe: all that the trainer needs of it.

    Attributes:
        done: the part of the run that is over, by steps or by time; the trainer says so before
            every step.
    """

    done: float

    @property
    def model(self) -> nn.Module:
        """The network whose weights are averaged, saved and exported."""

    @property
    def draw(self) -> Draw:
        """Draws the data of a step; can be pickled, and needs no weights."""

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """Optimizers over `model`; their rates are scaled by the schedule."""

    def loss(self, batch: Any, rng: np.random.Generator, step: int) -> Loss:
        """The loss on what `draw` gave; `rng` is for other chance."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Held-out figures of `model` (the averaged weights)."""

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        """Write the trained component and its card."""


class Batches(Dataset[Any]):
    """The data of every step; with `repeat` those of so many, again and again."""

    def __init__(self, draw: Draw, seed: int, repeat: int | None = None) -> None:
        self.draw, self.seed, self.repeat = draw, seed, repeat

    def __getitem__(self, step: int) -> Any:
        if self.repeat is not None:
            step %= self.repeat
        return self.draw(np.random.default_rng([self.seed, step]), step)


class Trainer:
    """Runs a recipe: `Trainer(recipe, config).run()`.

    Args:
        before: the record of the weights that the recipe's model starts from; None: there is none.
        processes: those that train together, each with a recipe and a seed of its own.
        arguments: the recipe's, plain values by name; like all of `config` that is not `FREE` they
            are stored in checkpoints, and a resumed run must share them.
    """

    def __init__(
        self,
        recipe: Recipe,
        config: TrainConfig,
        before: dict[str, Any] | None = None,
        processes: Processes | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.recipe, self.config, self.before = recipe, config, before
        self.processes = processes or Processes(device=config.device)
        self.model = recipe.model.to(config.device)
        self.optimizers = list(recipe.optimizers())
        for optimizer in self.optimizers:
            if isinstance(optimizer, Muon):
                optimizer.processes = self.processes
        self.rates = [[group["lr"] for group in o.param_groups] for o in self.optimizers]
        self.average = torch.optim.swa_utils.AveragedModel(
            self.model,
            multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(config.ema),
            use_buffers=True,
        )
        weights = self.model.named_parameters() if config.keep else ()
        self.first = {name: weight.detach().clone() for name, weight in weights}
        # masks and the like, which are no weights: an average of infinities is no number
        stored = self.model.state_dict()
        both = zip(self.average.module.buffers(), self.model.named_buffers(), strict=True)
        self.constants = [(average, own) for average, (name, own) in both if name not in stored]
        self.settings = self._settings(arguments or {})
        self.step, self.seconds = 0, 0.0
        self.checkpoint = config.out / CHECKPOINT

    def run(self) -> dict[str, Any]:
        """Train to `config.steps` or the time limit; returns the record that the card shows.

        Of several processes only the first writes; the record of the others has no figures.

        Raises:
            InputError: the folder holds a checkpoint of other settings, or one that can't be read,
                or can't be written to.
        """
        config, first = self.config, self.processes.first
        config.out.mkdir(parents=True, exist_ok=True)
        if self.checkpoint.exists():
            self.load()
        self._share_first()
        started = saved = time.monotonic()
        before = self.seconds
        loader: DataLoader[Any] = DataLoader(
            Batches(self.recipe.draw, config.seed, config.repeat),
            batch_size=None,  # a step's data is a batch already
            sampler=range(self.step, config.steps),
            num_workers=config.workers,
        )
        batches = iter(loader)
        bar = tqdm(
            total=config.steps,
            initial=self.step,
            desc=config.out.name,
            mininterval=5,
            disable=no_bars() if first else True,
        )
        figures: dict[str, float] = {}
        ending = heard(self.processes.count == 1)
        with (config.out / "log.jsonl").open("a") as log, ending as stop:
            while self.done < 1:
                metrics = self._train_step(next(batches))
                self.seconds = self.processes.agreed(before + time.monotonic() - started)
                bar.update()
                if self.step % 20 == 0:
                    bar.total = max(self.step, round(self.step / self.done))  # time may end it
                    bar.set_postfix({k: f"{v:.4g}" for k, v in metrics.items()}, refresh=False)
                if first and (self.step % config.evaluate_every == 0 or self.done >= 1):
                    figures = self.recipe.evaluate(self.exported)
                    left = self.seconds * (1 / self.done - 1)
                    told = {"step": self.step, "seconds": round(self.seconds, 1)}
                    told["seconds_left"] = round(max(0.0, left), 1)
                    line = to_json({**told, **metrics, **figures})
                    log.write(line + "\n")
                    log.flush()
                    if not no_bars():
                        bar.write(line, file=sys.stderr)
                if first and (stop.number or time.monotonic() - saved > 60 * config.save_minutes):
                    self.save()
                    saved = time.monotonic()
                stop.end()
        bar.close()
        say("writing the weights")
        record = {
            "config": {k: v for k, v in asdict(config).items() if not isinstance(v, Path)},
            "step": self.step,
            "minutes": round(self.seconds / 60, 1),
            "threads": torch.get_num_threads(),
            "device": config.device,
            "processes": self.processes.count,
            "torch": torch.__version__,
            "held_out": figures,
            "before": self.before,
        }
        if first:
            self.save()
            record["held_out"] = figures or self.recipe.evaluate(self.exported)
            self.recipe.export(self.exported, record)
        self.processes.wait()  # the next stage of every process starts from what was written
        return record

    def _share_first(self) -> None:
        """Take the first process's weights and buffers: each has made its own, some from data."""
        if self.processes.count > 1:
            with torch.no_grad():
                for x in (*self.model.parameters(), *self.model.buffers()):
                    x.copy_(self.processes.told(x, 0))
            for own in self._vocabularies():
                own.ids = self.processes.told(own.ids.to(self.config.device), 0)

    def _vocabularies(self) -> list[Any]:
        """What says which tokens a draft head's output layer is of: counted, in data of its own."""
        both = (getattr(model, "vocabulary", None) for model in (self.model, self.average.module))
        return [own for own in both if own is not None]

    def _train_step(self, batch: Any) -> dict[str, float]:
        config = self.config
        scale = self.schedule()
        for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * scale
        self.model.train()
        rng = np.random.default_rng([config.seed, self.step, 1])
        # of what a loss draws and layers leave out: a resumed run goes on as an unbroken one
        torch.manual_seed(int(np.random.default_rng([config.seed, self.step, 2]).integers(2**63)))
        self.recipe.done = self.done
        bf16 = config.precision == "bfloat16"
        with torch.autocast(torch.device(config.device).type, torch.bfloat16, enabled=bf16):
            loss, metrics = self.recipe.loss(batch, rng, self.step)
        loss.backward()
        self.processes.share_gradients(self.model.parameters())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"gradient is not finite at step {self.step}; lower the rate")
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.average.update_parameters(self.model)
        for average, constant in self.constants:
            average.copy_(constant)
        self.step += 1
        return {"loss": float(loss.detach()), **metrics}

    @property
    def exported(self) -> nn.Module:
        """The averaged weights, with the share that is kept of the first ones."""
        return averaged(self.average.module.eval(), self.first, self.config.keep)

    @property
    def done(self) -> float:
        """The part of the run that is over, by steps or by time."""
        config = self.config
        by_time = self.seconds / (60 * config.max_minutes) if config.max_minutes else 0.0
        return max(self.step / config.steps, by_time)

    def schedule(self) -> float:
        """Linear warm-up, flat, linear decay to zero over the last `decay` of the run."""
        left = (1 - self.done) / max(1e-9, self.config.decay)
        return max(0.0, min(1.0, (self.step + 1) / max(1, self.config.warmup), left))

    def save(self) -> None:
        """Write everything a resumed run needs, atomically."""
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "settings": self.settings,
            "before": self.before,
            "first": self.first,
            "vocabularies": [own.ids for own in self._vocabularies()],
            "recipe": self.recipe.state() if isinstance(self.recipe, Stateful) else {},
        }
        write_cached(self.checkpoint, state)

    def load(self) -> None:
        """Resume from `checkpoint.pt` in the output folder.

        Raises:
            InputError: it can't be read, is of other settings, or does not fit the model.
        """
        file, afresh = self.checkpoint, "delete it to train from the start"
        try:
            state = torch.load(file, map_location=self.config.device, weights_only=True)
        except Exception as error:  # torch.load raises what its parsers raise
            what = f"can't read checkpoint {file}: {reason(error)}"
            raise InputError(f"{what}; {afresh}") from error
        self._check(state["settings"] if isinstance(state, dict) and "settings" in state else {})
        try:
            self.model.load_state_dict(state["model"])
            self.average.load_state_dict(state["average"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.step, self.seconds = int(state["step"]), float(state["seconds"])
            # what a run began from may be its own export by now
            self.before = state.get("before", self.before)
            self.first = state.get("first", self.first)
            for own, ids in zip(self._vocabularies(), state.get("vocabularies", ()), strict=False):
                own.ids = ids
            if isinstance(self.recipe, Stateful):
                self.recipe.resume(state.get("recipe", {}))
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            what = f"checkpoint {file} does not fit what is trained here: {reason(error)}"
            raise InputError(f"{what}; {afresh}") from error

    def _settings(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Settings that the weights depend on, as read back; the first process's seed."""
        own = {name: value for name, value in asdict(self.config).items() if name not in FREE}
        own["seed"] = self.processes.run_seed(own["seed"])
        return json.loads(to_json({**own, "processes": self.processes.count, **arguments}))

    def _check(self, stored: Mapping[str, Any]) -> None:
        """Raise an `InputError` unless a checkpoint's settings are this run's.

        Checkpoints of earlier versions store none, or not those that there are now.
        """
        known = {field.name: field.default for field in fields(self.config)} | {**stored}
        for name, own in self.settings.items() if stored else ():
            if known.get(name) != own:
                before, now = ("none" if v is None else v for v in (known.get(name), own))
                raise InputError(
                    f"{self.checkpoint} has {name} {before}, and this run has {now}: resume it as "
                    "it began, or delete it to train from the start"
                )
