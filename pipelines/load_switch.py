"""Choice of a call's drafts, or of plain decoding, by what they have brought so far.

A processor that is busy with many rows has no time to spare for drafts. Within a call a `Guard`
leaves out those that do not pay, round by round. Between calls the sizes of drafts are compared,
with what a drafter reads of the prompts, so that windows which get better from round to round are
compared as wholes; and where none pays, calls are plain and no drafter is there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch

from ..draft.guarded import GuardedDrafter
from ..draft.null import NullDrafter
from ..engine.length.guard import Guard, GuardedLength
from ..engine.length.ledger import OWED, Ledger, octave
from ..engine.protocols import Engine
from ..errors import InputError
from ..methods import PIPELINES, Modality, SpecConfig
from ..methods.tree_sizes import sized_trees
from .arguments import is_chat

F = TypeVar("F", bound=Callable[..., Any])
AUTO = "auto"  # the length policy that asks for such a choice
_PLAIN = 1  # number of the choice that is plain
_PATIENCE = 8  # calls until another choice is tried again, doubled whenever it loses
_LONGEST = 128  # that patience grows to
_SEEDS = 2**32  # people set smaller ones; torch begins with 64 random bits
_GOES_ON = ("resume", "memory")  # arguments that hold what another call has left
_SIZES = ("height", "width", "num_frames", "num_iterations")
_STEPS = ("num_inference_steps", "timesteps", "diffusion_steps")
_any_sample: ContextVar[bool] = ContextVar("any_sample", default=False)


@contextmanager
def any_sample(free: bool = True) -> Iterator[None]:
    """Let seeds give other samples of the same law while the block runs, if they are `free` to.

    For callers that give generators and keep no seed, such as servers and measurements of speed.
    """
    token = _any_sample.set(free)
    try:
        yield
    finally:
        _any_sample.reset(token)


@dataclass
class _Turns:
    """Calls of one octave of rows: since when the best choice runs, and when another is tried."""

    since: int = 0
    patience: int = _PATIENCE
    turn: int = 0

    def told(self, tried: bool, changed: bool) -> None:
        """Hear of a call: whether it was such a try, and whether another choice is best now."""
        if changed:
            self.since, self.patience = 0, _PATIENCE
        elif tried:
            self.since, self.patience = 0, min(2 * self.patience, _LONGEST)
            self.turn += 1
        else:
            self.since += 1


@dataclass
class LoadSwitch:
    """Choice among configurations, by how much faster than plain decoding each has been.

    What is known of so many rows, by powers of two, decides; or else of more rows, if drafts paid
    with them, or of fewer, if they did not. Sizes of which nothing is known are tried in a call
    each, under a `Guard`, and now and then another one than the best; all at the expense of one
    `Ledger`, which bounds what is lost against plain decoding.

    Attributes:
        ledgers: by choices and place.
        guard: of the call that runs; None: there is none, or its choice is fixed.
    """

    ledgers: dict[Any, Ledger] = field(default_factory=dict)
    guard: Guard | None = None
    _turns: dict[Any, _Turns] = field(default_factory=dict)

    @contextmanager
    def call(
        self,
        choices: Sequence[SpecConfig],
        rows: int,
        place: object = None,
        grows: bool = False,
        trial: int | None = None,
    ) -> Iterator[tuple[SpecConfig, Callable[..., None]]]:
        """Choose for a call of so many rows; the function is to be told of its end.

        It takes the tokens of the samples and how many of them had a row at a time, see
        `Guard.close`.

        Args:
            choices: the first runs where nothing is known, the second is plain.
            rows: 1 or more.
            place: what else calls must have in common to be compared, such as a device or a size.
            grows, trial: see `Guard`.
        """
        key = tuple(choices), place
        # drafts that get better have to be paid for until they are
        ledger = self.ledgers.setdefault(key, Ledger(2 * OWED if grows else OWED))
        turns = self._turns.setdefault((key, octave(rows)), _Turns())
        arms = [number for number in range(len(choices)) if number != _PLAIN]
        best = _best(ledger, arms, rows)
        arm, tried = _chosen(ledger, arms, rows, best, turns)
        guard = Guard(ledger, arm, grows, trial)

        def told(tokens: Sequence[int] = (), at_once: int | None = None) -> None:
            if guard.spent:
                guard.close(rows, tokens, at_once)
                turns.told(tried, _best(ledger, arms, rows) != best)

        self.guard = guard
        try:
            yield choices[_PLAIN if arm is None else arm], told
        finally:
            guard.leave(rows)
            self.guard = None


def _best(ledger: Ledger, arms: Sequence[int], rows: int) -> int | None:
    """The arm that is known to be the fastest; None: plain decoding is."""
    known = {arm: ledger.gain(ledger.calls, arm, rows) for arm in arms}
    rates = {arm: gain.rate for arm, gain in known.items() if gain is not None}
    found = max(rates, key=rates.__getitem__, default=None)
    return None if found is None or rates[found] <= 1 else found


def _chosen(
    ledger: Ledger, arms: Sequence[int], rows: int, best: int | None, turns: _Turns
) -> tuple[int | None, bool]:
    """The arm that a call takes, and whether that is a try of one that is not the best."""
    if not ledger.may_draft(rows):
        return best if ledger.may_draft(rows, paid=True) else None, False
    for arm in arms:
        if ledger.gain(ledger.calls, arm, rows) is None:
            return arm, False
    others = [arm for arm in arms if arm != best]
    if turns.since < turns.patience or not others:
        return best, False
    return others[turns.turn % len(others)], True


def watched(engine: Engine, guard: Guard | None, prompted: bool = True) -> Engine:
    """Let a guard watch over an engine's rounds; None, or drafts that nobody judges: nobody does.

    `prompted`: see `GuardedLength`.
    """
    drafter = engine.drafter
    if guard is not None and isinstance(drafter, GuardedDrafter | NullDrafter):
        engine.length = GuardedLength(engine.length, guard, prompted)
        if isinstance(drafter, GuardedDrafter):
            drafter.guard = guard
    return engine


def automatic(config: SpecConfig, modality: Modality) -> SpecConfig:
    """A method that is named without settings, with length "auto" if its output is exact.

    A lossy method, whose output plain decoding would not give, stays as it is; so does one whose
    drafts take no other size.
    """
    resolved = config.resolve(modality)
    plain = config != SpecConfig(config.method) or not resolved.drafts
    if plain or resolved.contract != "exact":
        return config
    try:
        made = config.replace(length=AUTO)
        made.resolve(modality)
    except InputError:
        return config
    return made


@lru_cache(maxsize=256)
def choices_of(config: SpecConfig, modality: Modality) -> tuple[SpecConfig, ...]:
    """Configurations that length "auto" chooses from: its own size, none, twice and half of it.

    A size that is set is the only one beside none; without "auto" there is one choice. Of trees the
    size is their number of nodes.
    """
    resolved = config.resolve(modality)
    if not resolved.length.switches:
        return (config,)
    own = config.replace(length=None)
    answers = {f"target_{n}" for n in ("weights", "compressor", "keep", "cache")}
    answers |= resolved.target_options
    kept = {name: value for name, value in own.to_dict().items() if name in answers}
    found = [own, SpecConfig("plain", **kept), *sizes(own, modality)]
    return tuple(found)


def sizes(own: SpecConfig, modality: Modality) -> list[SpecConfig]:
    """Configurations with drafts of twice the size, and of half; those that there can be."""
    resolved = own.resolve(modality)
    if resolved.drafter.fixed:
        return []
    if resolved.drafter.tree and not resolved.drafter.window:
        changes = sized_trees(resolved)
    else:
        knob = resolved.drafter.knob or resolved.drafter.depth or ""
        usual = resolved.options.get(knob)
        if not isinstance(usual, int) or knob in own.options:
            return []
        # heads, and models that say blocks, were trained for so many tokens at most
        bounded = resolved.head is not None or resolved.drafter.model == "block"
        several = (usual // 2,) if bounded else (2 * usual, usual // 2)
        changes = [{knob: size} for size in several]
    found = []
    for change in changes:
        try:
            made = own.replace(**change)
            drafted = made.resolve(modality).draft_size().most_drafted
        except InputError:
            continue  # out of range, or too large a tree
        if drafted != resolved.draft_size().most_drafted:
            found.append(made)
    return found


def switched(function: F) -> F:
    """Decorate a pipeline's `__call__`: for this call, set the choice of its `switch`.

    Nothing is chosen, nor looked at within the call, and the first choice runs, where the call's
    sample would be another one: it is given a generator, or torch has been seeded, and it isn't
    greedy; or it goes on with what another call has left. `any_sample` lifts the first.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(pipe: Any, *args: Any, **kwargs: Any) -> Any:
        before = pipe.speculation
        choices = choices_of(before, pipe.modality)
        if choices == (before,):
            return function(pipe, *args, **kwargs)
        bound = signature.bind(pipe, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        try:
            if not _free(pipe.modality, given):
                pipe.speculation = choices[0]
                return function(pipe, *args, **kwargs)
            place = str(pipe.device), str(pipe.dtype), *_laid_out(given)
            steps = PIPELINES[pipe.modality].tokens == "vectors"
            grows = choices[0].resolve(pipe.modality).drafter.window
            with pipe.switch.call(choices, _rows(given), place, grows, 1 if steps else None) as (
                pipe.speculation,
                told,
            ):
                out = function(pipe, *args, **kwargs)
                stats = out[1] if isinstance(out, tuple) else out.stats
                if not pipe.interrupt:
                    told(() if steps else stats.emitted, given.get("batch_size"))
        finally:
            pipe.speculation = before
        return out

    return call  # type: ignore[return-value]  # the same signature


def _laid_out(given: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides which network a call's rounds run, how many tokens and rows in them, and stand.

    Of blocks and vectors the steps decide what one takes. Fewer drafts stand where tokens are drawn
    than where the likeliest one is taken.
    """
    alike = given.get("guidance_scale") == 1, given.get("temperature") == 0
    steps = (given.get(name) for name in _STEPS)
    told = (tuple(each) if isinstance(each, Sequence) else each for each in steps)
    return *(given.get(name) for name in _SIZES), *told, *alike


def _free(modality: Modality, given: Mapping[str, Any]) -> bool:
    """True if a call's output may be another sample, or is the same by every exact method."""
    if any(given.get(name) is not None for name in _GOES_ON):
        return False
    greedy = PIPELINES[modality].tokens == "ids" and given.get("temperature") == 0
    return greedy or any_seed(given.get("generator"))


def any_seed(given: Any = None) -> bool:
    """True if nobody keeps the seed of a call's sample: none is `given` to it, nor to torch."""
    return (given is None and torch.initial_seed() >= _SEEDS) or _any_sample.get()


def _rows(given: Mapping[str, Any]) -> int:
    """Rows that a call runs at a time."""
    told = given.get("prompt")
    told = given.get("class_labels") if told is None else told
    one = isinstance(told, str | Mapping) or is_chat(told) or not getattr(told, "ndim", 1)
    count = len(told) if isinstance(told, Sized) and not one else 1
    for name in ("num_images_per_prompt", "num_videos_per_prompt"):
        count *= given.get(name) or 1
    return max(1, min(count, given.get("batch_size") or count))
