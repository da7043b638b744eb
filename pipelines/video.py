"""Text to video, block by block: a block-causal Wan's pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, T5EncoderModel, UMT5EncoderModel

from ..config import SpecConfig
from ..engine.types import Context
from ..errors import InputError
from ..methods import Modality
from ..models.loading import load_component, read_json
from ..models.published_wan import load_wan
from ..models.text import encode_prompt
from ..models.video_target import VideoTarget
from ..models.wan import TIMESTEPS, WanTransformer
from ..models.wan_clips import WanClips
from ..models.wan_sampler import FewStepSampler
from ..models.wan_window import ContextWindow
from ..registry import check_name
from ..rewards.base import Reward
from ..rewards.frames import FrameJudge
from ..rewards.registry import REWARDS, load_reward
from .base import SpeculativePipeline, owned, row_seeds
from .output import VideoBlock, VideoOutput
from .prompts import check_prompts, negatives
from .video_frames import OutputType, ShownFrames, emitted
from .video_sizes import VideoSizes
from .video_speculation import Snapshot, VideoRun, judged, make_routing_rule, seeds_of
from .video_stats import VideoStats

_SAME = ("in_dim", "num_frame_per_block", "text_dim")


class VideoPipeline(SpeculativePipeline):
    """A block-causal Wan, a streaming autoencoder, and maybe a small model that drafts.

    Args:
        transformer: the target.
        vae: its latents are what is denoised.
        text_encoder, tokenizer: (U)MT5 encoder and its tokenizer.
        drafter: a smaller model of the same latents, blocks and text features.

    Attributes:
        reward: judges frames in place of the one that `SpecConfig.reward` names; None: that one.

    Raises:
        InputError: the parts do not fit each other.
    """

    embedded = "video"
    modality: ClassVar[Modality] = "video"
    without: ClassVar[str] = "plain"
    _optional_components: ClassVar = ["drafter"]
    component_classes: ClassVar = {
        "transformer": WanTransformer,
        "vae": AutoencoderKLWan,
        "text_encoder": T5EncoderModel,
        "tokenizer": PreTrainedTokenizerFast,
        "drafter": WanTransformer,
    }
    reward: Reward | None = None

    def __init__(
        self,
        transformer: WanTransformer,
        vae: AutoencoderKLWan,
        text_encoder: T5EncoderModel | UMT5EncoderModel,
        tokenizer: Any,
        drafter: WanTransformer | None = None,
    ) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer,
            vae=vae,
            text_encoder=text_encoder,
            tokenizer=tokenizer,
            drafter=drafter,
        )
        for whose, found, wanted in (
            ("the autoencoder's latents have", vae.config.z_dim, transformer.config.in_dim),
            (
                "the text encoder's features have",
                text_encoder.config.d_model,
                transformer.config.text_dim,
            ),
        ):
            if found != wanted:
                raise InputError(f"{whose} {found} channels, the target reads {wanted}")
        for name in _SAME:
            own, wanted = (m.config[name] for m in (drafter or transformer, transformer))
            if own != wanted:
                raise InputError(f"the drafter's {name} ({own}) is not the target's ({wanted})")
        self._loaded: tuple[str, Reward] | None = None
        self._at_work: VideoRun | None = None

    @torch.inference_mode()
    def __call__(
        self,
        prompt: str | list[str],
        negative_prompt: str | list[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_frames: int | None = None,
        num_inference_steps: int = 4,
        timesteps: Sequence[float] | None = None,
        shift: float = 5.0,
        guidance_scale: float = 1.0,
        window: ContextWindow | None = None,
        generator: torch.Generator | list[torch.Generator] | None = None,
        resume: Snapshot | None = None,
        output_type: OutputType = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callable[[Any, int, int, dict[str, Any]], Any] | None = None,
        callback_on_block: Callable[[Any, VideoBlock], Any] | None = None,
    ) -> VideoOutput | tuple[Any, VideoStats]:
        """Make clips, one a prompt, all of the same length.

        Args:
            prompt: what a clip shows, or several.
            negative_prompt: what the unconditional rows are told under guidance; None: nothing.
            height, width: pixels (default: what the model was made for).
            num_frames: of whole blocks (default: what the model was made for).
            num_inference_steps: from noise to a block, evenly from 1000.
            timesteps: these steps in their place, falling from 1000.
            shift: warps the steps, see `FewStepSampler`.
            guidance_scale: classifier-free guidance s; 1: none, as few-step models want it.
            window: which earlier blocks are read (default: the model's own); with a rolling one
                memory does not grow with the clip.
            generator: one for all clips, or a list with one each; the same seed gives the same
                clip, alone or in a batch.
            resume: what `snapshot` gave: go on with those clips up to `num_frames` in all. Seeds
                are theirs, and what is returned is what was made since. The prompt may be another.
            output_type: "pil", "np", "pt", "latent", or "none": frames are only streamed.
            return_dict: a `VideoOutput`, else the tuple (frames, stats).
            callback_on_step_end: called as `callback(pipe, round, blocks so far, {"latents": …})`
                after every block, with its latents `[B, F, C, h, w]`; set `pipe.interrupt = True`
                in it to stop.
            callback_on_block: called as `callback(pipe, block)` for every clip's block as soon as
                it stands, see `VideoBlock`.

        Raises:
            InputError: an argument is out of range, or does not fit the model or the method.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        check_prompts(prompts)
        steps = timesteps or [
            TIMESTEPS * (1 - n / num_inference_steps) for n in range(num_inference_steps)
        ]
        sampler = FewStepSampler(tuple(steps), shift, guidance_scale)
        sizes = VideoSizes(self.transformer, self.vae)
        size, blocks = sizes.latents(height, width), sizes.blocks(num_frames)
        seeds, done = (
            (row_seeds(generator, len(prompts)), 0) if resume is None else seeds_of(resume)
        )
        if resume is not None and (generator is not None or len(seeds) != len(prompts)):
            raise InputError(
                f"resume goes on with {len(seeds)} clips and their seeds: give as many prompts and "
                "no generator"
            )
        if done >= blocks:
            raise InputError(
                f"the clips have {sizes.frames(done)} frames already; num_frames is of the whole "
                "clip, and must be more"
            )
        stats = VideoStats()
        config = self.speculation.serving(self.modality)
        with stats.phase("encode"):
            texts = self._texts(prompts, negative_prompt, sampler.guided)
            made = [
                None if model is None else WanClips(model, texts, *size, sampler, blocks, window)
                for model in self._models(config)
            ]
            judge = (
                FrameJudge(self._reward(config), prompts) if judged(config) and made[1] else None
            )
        assert made[0] is not None
        target = VideoTarget(made[0], self.vae, judge, stats.part)
        work = VideoRun(config, target, made[1], judge, seeds, stats, self.on_engine)
        if resume is not None:
            work.restore(resume)
        self._at_work, self._interrupt = work, False
        shown = ShownFrames(output_type, len(prompts), self.pictures)
        with self.progress_bar(total=blocks - done) as bar:

            def on_block(context: Context) -> bool:
                bar.update()
                for block in emitted(work):
                    shown.add(block)
                    if callback_on_block is not None:
                        callback_on_block(self, block)
                if callback_on_step_end is not None:
                    latents = owned(context.last[:, 0])
                    callback_on_step_end(self, context.round, work.blocks, {"latents": latents})
                return self._interrupt

            work.run(blocks - done, on_block)
        frames = shown.frames()
        if not return_dict:
            return frames, stats
        return VideoOutput(frames=frames, stats=stats, made_by=stats.made_by, rewards=stats.rewards)

    def snapshot(self) -> Snapshot:
        """What `resume` needs to go on with the clips of the last call, or of the one that a
        callback interrupts: tensors by name, for a safetensors file too.

        Raises:
            InputError: there are none.
        """
        if self._at_work is None:
            raise InputError("there are no clips to go on with; make some first")
        return self._at_work.snapshot()

    @property
    def nbytes(self) -> int:
        """Bytes that the last call's caches and decoder states take; 0 before the first."""
        return 0 if self._at_work is None else self._at_work.nbytes

    def check_speculation(self, config: SpecConfig) -> None:
        """Raise an `InputError` if `config` can't run here."""
        super().check_speculation(config)
        parts = config.serving(self.modality)
        make_routing_rule(parts)
        if judged(parts) and self.reward is None:
            check_name(REWARDS.kind, parts.reward, REWARDS.names())

    @classmethod
    def component_class(cls, name: str, folder: Path) -> Any:
        config = folder / "config.json"
        if name == "text_encoder" and config.exists():
            return (
                UMT5EncoderModel
                if read_json(config).get("model_type") == "umt5"
                else T5EncoderModel
            )
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
        """The released files of Wan2.1, Self-Forcing or CausVid.

        Args:
            transformer: of the target, see `load_wan`.
            parts: folder with `vae`, `text_encoder` and `tokenizer`, as in
                Wan-AI/Wan2.1-T2V-1.3B-Diffusers.
            drafter: of a smaller model.
            dtype: of the weights.
            options: of both, such as `window`, see `load_wan`.

        Raises:
            InputError: a file is unreadable or a tensor does not fit.
        """
        home = Path(parts)
        others = {
            name: load_component(cls.component_class(name, home / name), home / name, dtype)
            for name in ("vae", "text_encoder", "tokenizer")
        }
        small = None if drafter is None else load_wan(drafter, dtype, **options)
        return cls(load_wan(transformer, dtype, **options), **others, drafter=small)

    # --- parts of a call --------------------------------------------------------------------------

    def _models(self, config: SpecConfig) -> tuple[WanTransformer, WanTransformer | None]:
        """What makes blocks in the target's place, and what drafts."""
        if config.drafter_only:
            return self.drafter, None
        return self.transformer, self.drafter if config.needs else None

    def _texts(
        self, prompts: list[str], negative: str | list[str] | None, guided: bool
    ) -> list[Tensor]:
        """Text features of every clip `[G, T, D]`, told before untold."""
        length, told = self.transformer.config.text_len, [prompts]
        if guided:
            told.append(negatives(negative, prompts) or [""] * len(prompts))
        features = [
            [encode_prompt(self.tokenizer, self.text_encoder, text, length) for text in texts]
            for texts in told
        ]
        return [pad_sequence(list(each), batch_first=True) for each in zip(*features, strict=True)]

    def _reward(self, config: SpecConfig) -> Reward:
        if self.reward is not None:
            return self.reward
        if self._loaded is None or self._loaded[0] != config.reward:
            self._loaded = config.reward, load_reward(config.reward, device=str(self.device))
        return self._loaded[1]
