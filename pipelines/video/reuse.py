"""Cross-block caching in a video call: who reuses, and what does not go with it."""

from __future__ import annotations

from ...errors import InputError
from ...methods import ResolvedConfig
from ...methods.parts.blocks import RankOptions
from ...methods.parts.reuse import ChanceReuseOptions, NearReuseOptions, ReuseOptions
from ...models.wan.clips import WanClips
from ...models.wan.reuse import BlockReuse, ChanceGate, DistanceGate, Gate
from ...models.wan.sampler import FewStepSampler


def reuses(config: ResolvedConfig) -> bool:
    """True if layers of the target may add what they added to the block before."""
    kept = (options for _, options in config.chosen if isinstance(options, ReuseOptions))
    return any(options.approximates() for options in kept)


def let_reuse(config: ResolvedConfig, clips: WanClips, seeds: list[int]) -> None:
    """Let the target's clips, one a seed, reuse residuals as a configuration says.

    Raises:
        InputError: see `check_steps`.
    """
    check_steps(config, clips.sampler)
    if reuses(config):
        how, near = config.of(ReuseOptions), config.of(NearReuseOptions).reuse_threshold
        share = config.of(ChanceReuseOptions).reuse_share
        gates: list[Gate] = [
            DistanceGate(near) if near else ChanceGate(share, seed) for seed in seeds
        ]
        clips.reuse([BlockReuse(gate, how.reuse_blocks, how.reuse_layers) for gate in gates])


def check_pace(config: ResolvedConfig) -> None:
    """Raise an `InputError` if a speed-up is asked that nobody could tell."""
    if config.of(RankOptions).target_speedup is not None and reuses(config):
        raise InputError(
            "target_speedup is over plain generation, which makes no block where reuse_threshold "
            "is above 0; leave one of them out"
        )


def check_steps(config: ResolvedConfig, sampler: FewStepSampler) -> None:
    """Raise an `InputError` if there is no step that could reuse anything.

    A block's first step writes the keys and values of the block before it, so all layers run.
    """
    if reuses(config) and len(sampler.steps) < 2:
        raise InputError(
            "a block's first step reuses nothing, and there is no other; set num_inference_steps "
            "to 2 or more, or leave reuse out (method 'plain', or reuse_threshold 0)"
        )
