"""Text to video, block by block: a block-causal Wan's pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import torch
from diffusers import AutoencoderKLWan
from transformers import PreTrainedTokenizerFast, T5EncoderModel, UMT5EncoderModel

from ...devices import wait
from ...engine.draft import Context
from ...errors import InputError
from ...files import read_object
from ...methods import Modality, ResolvedConfig, SpecConfig
from ...methods.parts.blocks import JudgedOptions
from ...methods.parts.routing import ADVANTAGE_ROUTER
from ...models.loading import load_component
from ...models.wan.clips import WanClips
from ...models.wan.frame_router import FrameRouter
from ...models.wan.oracle_target import OracleTarget
from ...models.wan.published import load_wan
from ...models.wan.target import VideoTarget
from ...models.wan.transformer import WanTransformer
from ...models.wan.window import ContextWindow
from ...registry import check_name
from ...rewards.base import BlockReward, Reward
from ...rewards.frames import FrameJudge
from ...rewards.registry import REWARDS, check_threshold, load_reward, reward_names
from ...rewards.router import AdvantageReward, RouterReward
from ..arguments import checked
from ..base import OnStep, SpeculativePipeline, owned
from ..fitting import check_channels, check_same
from ..load_switch import switched
from ..output import VideoBlock, VideoOutput
from ..prompts import captions_of, check_between, check_tensor_inputs, negatives
from . import components
from .components import VideoSizes
from .reuse import check_pace, check_steps, let_reuse, reuses
from .speculation import OutputType, Snapshot, VideoRun, begun, joined, judged
from .stats import VideoStats

_SAME = ("in_dim", "num_frame_per_block", "text_dim", "text_len")
_BIDIRECTIONAL = ("WanModel", "WanTransformer3DModel")  # in the original layout and in Diffusers'


class VideoPipeline(SpeculativePipeline):
    """A block-causal Wan, a streaming autoencoder, and maybe a cheap model that drafts.

    Args:
        transformer: the target.
        vae: its latents are what is denoised.
        text_encoder, tokenizer: (U)MT5 encoder and its tokenizer.
        drafter: a cheaper model of the same latents, blocks and text features: a smaller one, or
            one of fewer steps, without guidance.
        router: guesses how near the drafter's frames are to the target's own; reward "router".
        advantage_router: guesses how likely the target would do better than the drafter.

    Attributes:
        reward: judges frames in place of the one that `SpecConfig.reward` names; None: that one. A
            method that names none does not ask it.

    Raises:
        InputError: the parts do not fit each other.
    """

    embedded = "video"
    modality: ClassVar[Modality] = "video"
    without: ClassVar[str] = "plain"
    strangers: ClassVar = {
        "WanPipeline": "its frames all read each other, and block video needs a block-causal "
        "model: VideoPipeline.from_wan takes one, such as Self-Forcing's, and this folder as parts"
    }
    replaceable: ClassVar = ("router",)  # by a reward of the user's
    reward: Reward | BlockReward | None = None

    def __init__(
        self,
        transformer: WanTransformer,
        vae: AutoencoderKLWan,
        text_encoder: T5EncoderModel | UMT5EncoderModel,
        tokenizer: PreTrainedTokenizerFast,
        drafter: WanTransformer | None = None,
        router: FrameRouter | None = None,
        advantage_router: FrameRouter | None = None,
    ) -> None:
        super().__init__(locals())
        config, wide = transformer.config, text_encoder.config.d_model
        check_channels("the autoencoder's latents", vae.config.z_dim, config.in_dim)
        check_channels("the text encoder's features", wide, config.text_dim)
        check_same("drafter", drafter, transformer, _SAME)
        for what, one in (("router", router), ("advantage router", advantage_router)):
            if one is not None and (known := one.config.vocab_size) < len(tokenizer):
                words = len(tokenizer)
                raise InputError(f"the {what} knows {known} words, the tokenizer has {words}")
        self._loaded: tuple[tuple[str, str], Reward] | None = None  # by name and device
        self._at_work: VideoRun | None = None

    @checked
    @switched
    @torch.inference_mode()
    def __call__(
        self,
        prompt: str | list[str],
        negative_prompt: str | list[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_frames: int | None = None,
        num_inference_steps: int | None = None,
        timesteps: Sequence[float] | None = None,
        shift: float | None = None,
        guidance_scale: float | None = None,
        window: ContextWindow | None = None,
        num_videos_per_prompt: int = 1,
        generator: torch.Generator | list[torch.Generator] | None = None,
        resume: Snapshot | None = None,
        output_type: OutputType = "pil",
        return_dict: bool = True,
        callback_on_step_end: OnStep | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
        callback_on_block: Callable[[Any, VideoBlock], Any] | None = None,
    ) -> VideoOutput | tuple[Any, VideoStats]:
        """Make clips, all of the same length.

        Args:
            prompt: what a clip shows, or several.
            negative_prompt: what the unconditional rows are told under guidance; None: nothing.
            height, width: pixels (default: what the model was made for).
            num_frames: of whole blocks (default: what the model was made for).
            num_inference_steps: from noise to a block, evenly from 1000 (default: what the model
                was made for).
            timesteps: these steps in their place, falling from 1000.
            shift: warps the steps, see `FewStepSampler` (default: what the model was made for).
            guidance_scale: classifier-free guidance s; 1: none (default: what the model was made
                for, which of few-step models is none).
            window: which earlier blocks are read (default: the model's own); with a rolling one
                memory does not grow with the clip, but for latents that are wanted alone.
            num_videos_per_prompt: clips per prompt.
            generator: one for all clips, or a list with one each; the same seed gives the same
                clip, alone or in a batch.
            resume: what `snapshot` gave: go on with those clips up to `num_frames` in all. Seeds
                are theirs, and what is returned is what was made since. The prompt may be another.
            output_type: "pil", "np", "pt", "latent", or "none": frames are only streamed.
            return_dict: a `VideoOutput`, else the tuple (frames, stats).
            callback_on_step_end: called as `callback(pipe, round, blocks so far, {"latents": …,
                "stats": …})` after every block, with its latents `[B, F, C, h, w]` and the stats so
                far, such as who made it; set `pipe.interrupt = True` in it to stop. From another
                thread this ends the call before the target's next step: what is returned are the
                blocks that stand, and there is no `snapshot`. What it returns is not read.
            callback_on_step_end_tensor_inputs: as in Diffusers; there are the latents alone.
            callback_on_block: called as `callback(pipe, block)` for every clip's block as soon as
                it stands, see `VideoBlock`.

        Raises:
            InputError: an argument is out of range, or does not fit the model or the method.
        """
        captions = captions_of(prompt)
        check_between("num_videos_per_prompt", num_videos_per_prompt, 1, 1024)
        check_tensor_inputs(callback_on_step_end_tensor_inputs)
        prompts = [caption for caption in captions for _ in range(num_videos_per_prompt)]
        shown: list[list[Any]] = [[] for _ in prompts]
        how = num_inference_steps, timesteps, shift, guidance_scale
        sampler = components.target_sampler(self.transformer, *how)
        sizes = VideoSizes(self.transformer, self.vae)
        size, blocks = sizes.latents(height, width), sizes.blocks(num_frames)
        seeds, done = begun(len(prompts), generator, resume)
        if done >= blocks:
            raise InputError(
                f"the clips have {sizes.frames(done)} frames already; num_frames is of the whole "
                "clip, and must be more"
            )
        self._at_work, self.interrupt = None, False  # the last call's caches go

        config = self.check_speculation(self.speculation)  # a reward may have come, or gone, since
        stats = VideoStats(device=self.device)
        models = [self.drafter if config.drafter_only else self.transformer]
        models += [self.drafter] if "drafter" in config.needs and not config.drafter_only else []
        samplers = [
            sampler
            if model is self.transformer
            else components.drafter_sampler(self.drafter, sampler, config)
            for model in models
        ]
        guided = any(each.guided for each in samplers)
        untold = negatives(negative_prompt or "", captions) if guided else None
        reward = self._reward(config) if judged(config) else None
        with stats.phase("encode"):
            length = self.transformer.config.text_len
            heard = components.told(self.tokenizer, self.text_encoder, captions, untold, length)
            texts = [text for text in heard for _ in range(num_videos_per_prompt)]
            clips, *small = (
                WanClips(model, [t[: 1 + own.guided] for t in texts], *size, own, blocks, window)
                for model, own in zip(models, samplers, strict=True)
            )
            let_reuse(config, clips, seeds)
            wait(self.device)
        judge = None if reward is None else FrameJudge(reward, prompts)
        making = "draft" if config.drafter_only else "regenerate"
        kind = OracleTarget if config.drafts and config.rule.foresees else VideoTarget
        # of latents nobody sees frames; what is streamed must not grow with the clip: decode it
        looked_at = output_type != "latent" or callback_on_block is not None
        target = kind(clips, self.vae, judge, stats.part, making, looked_at)
        drafter = small[0] if small else None
        watched = self.on_engine, self.switch.guard
        work = VideoRun(config, target, drafter, judge, seeds, stats, *watched)
        if resume is not None:
            work.restore(resume)
        self._at_work = work
        clips.before_step = self._check_interrupt
        with self.progress_bar(total=blocks - done) as bar:

            def on_block(context: Context) -> bool:
                bar.update()
                for block in work.made():
                    if output_type == "latent":
                        shown[block.row].append(block.latents)
                    elif output_type != "none":
                        pixels = block.frames.float() / 2 + 0.5
                        shown[block.row].append(self.pictures(pixels, output_type))
                    if callback_on_block is not None:
                        callback_on_block(self, block)
                state = {"latents": owned(context.last[:, 0]), "stats": stats}
                return self._after_round(callback_on_step_end, context.round, work.blocks, **state)

            forms = config.weights, config.draft_weights
            with ExitStack() as running:
                for model, weights in zip(models, forms, strict=False):
                    running.enter_context(self.rounded(model, weights))
                work.run(blocks - done, on_block)
        told = drafter is not None and not self.interrupt and work.guard is None
        if told and not reuses(config) and work.pace.plain is not None:
            self._notices.check(stats, work.pace.plain, work.pace.spent)
        frames = joined(shown, output_type)
        if not return_dict:
            return frames, stats
        return VideoOutput(frames=frames, stats=stats, made_by=stats.made_by, rewards=stats.rewards)

    def snapshot(self) -> Snapshot:
        """State that `resume` needs to go on with the clips of the last call, or of the one that
        a callback interrupts: tensors by name, for a safetensors file too.

        Raises:
            InputError: there are none.
        """
        if self._at_work is None:
            raise InputError("there are no clips to go on with; make some first")
        return self._at_work.snapshot()

    @property
    def nbytes(self) -> int:
        """Bytes of the last call's caches, decoder states and undecoded blocks; 0 before one."""
        return 0 if self._at_work is None else self._at_work.nbytes

    def check_speculation(self, config: SpecConfig) -> ResolvedConfig:
        resolved = super().check_speculation(config)
        options = resolved.options
        check_pace(resolved)
        if not judged(resolved) or "reward" not in options:
            return resolved
        name = options["reward"] if self.reward is None else self.reward.name
        if self.reward is None:
            check_name("reward", name, REWARDS.names())
            if name == RouterReward.name and self.router is None:
                known = ", ".join(reward_names())
                told = f"train one, or name a reward: {known}"
                raise InputError(f"this pipeline has no router: {told}")
            if weights := REWARDS.get(name).weights:
                raise InputError(
                    f"reward {name!r} needs its weights: set pipe.reward = "
                    f"mmspec.rewards.registry.load_reward({name!r}, PATH), where PATH is {weights}"
                )
        if "tau" in options:  # what it usually is, is the router's alone
            usual = name == RouterReward.name
            check_threshold("tau", options["tau"] if usual else config.options.get("tau"), name)
        elif options.get("target_quality") is not None:
            check_threshold("target_quality", options["target_quality"], name)
        return resolved

    def _check_given(self, config: ResolvedConfig, given: Mapping[str, Any]) -> None:
        sizes = VideoSizes(self.transformer, self.vae)
        how = ("num_inference_steps", "timesteps", "shift", "guidance_scale")
        sampler = components.target_sampler(self.transformer, *(given[name] for name in how))
        if self.drafter is not None:
            components.drafter_sampler(self.drafter, sampler, config)
        check_steps(config, sampler)
        sizes.latents(given["height"], given["width"])
        sizes.blocks(given["num_frames"])

    @classmethod
    def component_class(cls, name: str, folder: Path) -> Any:
        config = folder / "config.json"
        if name == "text_encoder" and config.exists():
            several = read_object(config).get("model_type") == "umt5"
            return UMT5EncoderModel if several else T5EncoderModel
        return super().component_class(name, folder)

    @classmethod
    def from_wan(
        cls,
        transformer: str | Path,
        parts: str | Path,
        drafter: str | Path | None = None,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> VideoPipeline:
        """The released files of Self-Forcing or CausVid, and what they share with Wan2.1.

        Args:
            transformer: of the target, see `load_wan`; block-causal, which Wan2.1's own is not.
            parts: folder with `vae`, `text_encoder` and `tokenizer`, as in
                Wan-AI/Wan2.1-T2V-1.3B-Diffusers.
            drafter: of a cheaper model.
            dtype: of the weights.
            options: of both, such as `window`, see `load_wan`.

        Raises:
            InputError: a file is unreadable, a tensor does not fit, or a model is not block-causal.
        """
        for model in (transformer, drafter):
            config = Path(model or "") / "config.json"
            kind = read_object(config).get("_class_name") if config.exists() and model else None
            if kind in _BIDIRECTIONAL:  # a file does not tell
                raise InputError(
                    f"{model} holds a {kind}, whose frames all read each other; give a "
                    "block-causal model, such as Self-Forcing's or CausVid's"
                )
        home, found = Path(parts), {}
        for name in ("vae", "text_encoder", "tokenizer"):
            kind = cls.component_class(name, home / name)
            found[name] = load_component(kind, home / name, dtype)
        small = None if drafter is None else load_wan(drafter, dtype, **options)
        return cls(load_wan(transformer, dtype, **options), **found, drafter=small)

    def _reward(self, config: ResolvedConfig) -> Reward | BlockReward:
        if ADVANTAGE_ROUTER in config.needs:
            return AdvantageReward(self.advantage_router, self.tokenizer)
        if self.reward is not None:
            return self.reward
        name = config.of(JudgedOptions).reward
        if name == RouterReward.name:
            return RouterReward(self.router, self.tokenizer)
        wanted = name, str(self.device)
        if self._loaded is None or self._loaded[0] != wanted:
            self._loaded = wanted, load_reward(name, device=str(self.device))
        return self._loaded[1]
