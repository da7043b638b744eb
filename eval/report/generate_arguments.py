"""Trials of the arguments of transformers' `generate`: is each honoured under speculation?"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ...errors import InputError, reason
from ...models.transformers.tiny import tiny
from ...pipelines.vlm.generate import disable_speculation, enable_speculation
from .generate_trials import NEW, TRIALS, Trial
from .table import escape


@dataclass(frozen=True)
class ArgumentTrial:
    """Outcome of one argument.

    Attributes:
        name: of the argument.
        verdict: "honoured", "without effect", "refused", or "refused by transformers" for models of
            this kind; in capitals what must not be.
        note: what the refusal says, why it has no effect, or what else to know.
    """

    name: str
    verdict: str
    note: str = ""


def argument_trials(method: str = "sjd") -> Iterator[ArgumentTrial]:
    """Generate with and without speculation, with and without each argument.

    The model is a tiny random one of Llama's kind in float64. With speculation the outcome is
    transformers' own, and an argument that is honoured changes it.
    """
    model = tiny("llama", torch.float64)
    model.generation_config.eos_token_id = None
    for name in TRIALS:
        yield _tried(model, method, name)


def generate_arguments(method: str = "sjd") -> str:
    """The trials as a table in Markdown."""
    lines = ["| argument | under speculation | note |", "|---|---|---|"]
    for one in argument_trials(method):
        lines.append(f"| `{one.name}` | {one.verdict} | {escape(one.note)} |")
    return f"With transformers {transformers.__version__}:\n\n" + "\n".join(lines) + "\n"


def _tried(model: PreTrainedModel, method: str, name: str) -> ArgumentTrial:
    trial = TRIALS[name]
    theirs, fault = _outcome(model, name)
    without, _ = _outcome(model, name, bare=True)
    enable_speculation(model, method)
    try:
        ours = _said(model, name, trial)
    except InputError as error:
        return ArgumentTrial(name, "refused", _short(error))
    except Exception as error:
        if fault is None or type(error) is not type(fault):
            raise
        return ArgumentTrial(name, "refused by transformers", _short(error))
    finally:
        disable_speculation(model)
    if not _all_alike(ours, theirs):
        return ArgumentTrial(name, "NOT HONOURED", "" if fault is None else _short(fault))
    given = trial.value is not None or trial.make is not None
    idle = given and _all_alike(ours, without)
    if idle != bool(trial.idle):
        return ArgumentTrial(name, "NOT SHOWN" if idle else "HAS AN EFFECT", trial.idle)
    return ArgumentTrial(name, "without effect" if idle else "honoured", trial.idle or trial.note)


def _outcome(
    model: PreTrainedModel, name: str, bare: bool = False
) -> tuple[list[Any], Exception | None]:
    """Hear what transformers' own loop makes of an argument, or only of what stands beside it."""
    try:
        return _said(model, name, TRIALS[name], bare), None
    except Exception as error:  # whatever it raises
        return [], error


def _said(model: PreTrainedModel, name: str, trial: Trial, bare: bool = False) -> list[Any]:
    """Collect what a trial reads of a call; `bare` goes without the argument."""
    asked: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, **trial.beside}
    value = None
    if not bare:
        value = trial.value if trial.make is None else trial.make(model)
    if value is not None:
        asked = {name: value} if trial.alone else asked | {name: value}
    if trial.prompts is not None:
        ids = torch.tensor(trial.prompts)
        asked |= {"inputs": ids, "attention_mask": (ids > 0).long()}
    with torch.random.fork_rng(), trial.around():
        torch.manual_seed(0)
        out = model.generate(**asked)
    return trial.read(out, value)


def _all_alike(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(map(_alike, ours, theirs))


def _alike(ours: Any, theirs: Any) -> bool:
    """True for the same tokens; scores agree but for rounding, and behind a row's end with none."""
    if not isinstance(ours, Tensor):
        return bool(ours == theirs)
    if ours.shape != theirs.shape or not ours.is_floating_point():
        return torch.equal(ours, theirs)
    return torch.allclose(ours, theirs, atol=1e-5)


def _short(error: Exception) -> str:
    """The first sentence of what an error says."""
    return reason(error).split(". ")[0].partition("; ")[0][:110]


def arguments() -> set[str]:
    """Names of the arguments that this transformers' `generate` takes, by name or in a config."""
    named = set(inspect.signature(transformers.GenerationMixin.generate).parameters)
    return named | set(GenerationConfig().to_dict())
