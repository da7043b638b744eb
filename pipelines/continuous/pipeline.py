"""Text or class to image with continuous tokens: MAR's pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from diffusers import AutoencoderKL
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5EncoderModel

from ...devices import wait
from ...errors import InputError
from ...methods import Modality, ResolvedConfig
from ...models.distinct import distinct
from ...models.mar.autoencoder import decode_tokens, downsample_factor
from ...models.mar.denoiser import PackedHead
from ...models.mar.iterations import GuidanceSchedule, HeadPrediction, MarBackbone, MarPlan
from ...models.mar.published import load_kl, load_mar
from ...models.mar.transformer import MarTransformer
from ...models.text_encoder import encode_captions
from ..arguments import checked
from ..base import OnStep, SpeculativePipeline, owned, row_seeds
from ..costs import Costs
from ..fitting import check_captioned, check_channels, check_same
from ..load_switch import switched
from ..output import ContinuousOutput
from ..prompts import (
    Labels,
    check_between,
    check_guidance,
    check_tensor_inputs,
    negatives,
    told,
)
from .speculation import ContinuousSpeculation, check_plan
from .stats import ContinuousStats

OutputType = Literal["pil", "np", "pt", "latent"]
_SAME = (
    *("token_dim", "grid", "buffer_size", "noise_schedule"),
    *("condition", "class_num", "caption_dim"),
)
# arguments of a call in the order of `MarPlan`
_PLANNED = (
    *("num_iterations", "guidance_scale", "guidance_schedule", "temperature"),
    *("diffusion_steps", "learned_variance"),
)


class ContinuousImagePipeline(SpeculativePipeline):
    """MAR: a masked autoregressive backbone over continuous tokens, a diffusion head, a decoder.

    Args:
        transformer: the target, told captions or classes.
        vae: KL autoencoder whose latents are the tokens.
        text_encoder, tokenizer: T5 encoder and its tokenizer, of a target that is told captions.
        drafter: a smaller model of the same tokens, for methods that have a draft model.

    Raises:
        InputError: the parts do not fit each other.
    """

    embedded = "mar"
    modality: ClassVar[Modality] = "continuous"
    without: ClassVar[str] = "gamma-maximal"
    instead: ClassVar = SpeculativePipeline.instead | {
        "num_inference_steps": "give num_iterations, the backbone's calls, or diffusion_steps, the "
        "head's"
    }

    def __init__(
        self,
        transformer: MarTransformer,
        vae: AutoencoderKL,
        text_encoder: T5EncoderModel | None = None,
        tokenizer: PreTrainedTokenizerFast | None = None,
        drafter: MarTransformer | None = None,
    ) -> None:
        super().__init__(locals())
        self._costs = Costs()
        config, wide = transformer.config, vae.config.latent_channels
        check_channels("the autoencoder's latents", wide, config.token_dim)
        if self.captioned:
            check_captioned(text_encoder, tokenizer)
            wide = self.text_encoder.config.d_model
            check_channels("the text encoder's features", wide, config.caption_dim)
        check_same("drafter", drafter, transformer, _SAME)

    def enable_vae_slicing(self) -> None:
        """Decode pictures one by one, which takes less memory."""
        self.vae.enable_slicing()

    def disable_vae_slicing(self) -> None:
        """Decode all pictures at once."""
        self.vae.disable_slicing()

    @property
    def captioned(self) -> bool:
        """True if the target is told captions, False if classes."""
        return bool(self.transformer.config.condition == "caption")

    @property
    def class_count(self) -> int | None:
        """Classes of a target that is told them; None: it is told captions."""
        return None if self.captioned else int(self.transformer.config.class_num)

    @property
    def default_size(self) -> int:
        """Side in pixels of a picture."""
        return int(self.transformer.config.grid) * downsample_factor(self.vae)

    @checked
    @switched
    @torch.inference_mode()
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        negative_prompt: str | list[str] | None = None,
        class_labels: Labels | None = None,
        height: int | None = None,
        width: int | None = None,
        num_iterations: int | None = None,
        guidance_scale: float | None = None,
        guidance_schedule: GuidanceSchedule = "linear",
        temperature: float | None = None,
        diffusion_steps: int | tuple[int, int] = 100,
        learned_variance: bool = True,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | list[torch.Generator] | None = None,
        output_type: OutputType = "pil",
        return_dict: bool = True,
        callback_on_step_end: OnStep | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
    ) -> ContinuousOutput | tuple[Any, ContinuousStats]:
        """Draw pictures.

        Args:
            prompt: caption or captions; of a target that is told classes, their numbers.
            negative_prompt: what the unconditional rows are told; None: the learned "nothing".
            class_labels: class or classes, of a target that is told classes.
            height, width: pixels; there is one size.
            num_iterations: calls of the backbone; None: one a token, as the published figures are
                drawn. Fewer are faster: the tokens of an iteration know nothing of each other.
            guidance_scale: classifier-free guidance s; 1 switches it off; None: the model's own.
            guidance_schedule: "linear" grows from 1 to s as tokens get known, "constant" is s.
            temperature: of the diffusion head; it scales the noise of every step; None: the model's
                own.
            diffusion_steps: of the head; a pair (first, last), such as (50, 5), shrinks from the
                first iteration to the last (DiSA).
            learned_variance: True: the head says how much noise a step adds, as published; False:
                it is the least that the schedule allows.
            num_images_per_prompt: pictures per caption or class.
            generator: one for all pictures, or a list with one each; the same seed gives the same
                picture, alone or in a batch.
            output_type: "pil", "np", "pt" or "latent": the tokens `[B, L, C]`.
            return_dict: a `ContinuousOutput`, else the tuple (images, stats).
            callback_on_step_end: called as `callback(pipe, iteration, tokens so far, {"latents":
                …, "positions": …, "drafted": …, "stats": …})` after every iteration, or several
                that are drawn together: all tokens `[B, L, C]`, the positions `[B, K]` of those
                just drawn, of their denoising steps that may be drafted the share `[B, K]` that
                was and stood (`cspd` drafts one, the last noisy step, for all before it), and the
                stats so far.
                Set `pipe.interrupt = True` in it to stop: tokens that are not drawn then are 0.
                What it returns is not read.
            callback_on_step_end_tensor_inputs: as in Diffusers; there are the latents alone.

        Raises:
            InputError: an argument is out of range, or does not fit the model or the method.
        """
        shown = told(prompt, class_labels, self.class_count)
        self.check_size(height, width)
        check_between("num_images_per_prompt", num_images_per_prompt, 1, 1024)
        check_tensor_inputs(callback_on_step_end_tensor_inputs)
        plan = self.plan(
            num_iterations,
            guidance_scale,
            guidance_schedule,
            temperature,
            diffusion_steps,
            learned_variance,
        )
        rows = len(shown) * num_images_per_prompt
        seeds = row_seeds(generator, rows)
        stats = ContinuousStats(pictures=rows)
        self.interrupt = False
        config = self.speculation.resolve(self.modality)
        with stats.phase("encode"):
            features = [
                None if part is None else part.repeat_interleave(num_images_per_prompt, 0)
                for part in self.features(shown, negative_prompt, plan.guided)
            ]
            model = self.drafter if config.drafter_only else self.transformer
            asked = features, plan, seeds
            backbone, small = self.backbone(model, config.weights, *asked), None
            if config.needs and not config.drafter_only:
                small = self.backbone(self.drafter, config.draft_weights, *asked)
            wait(self.device)
        speculation = ContinuousSpeculation(
            config, plan, len(features), small, stats, self.on_engine, self.switch.guard
        )
        with ExitStack() as running:
            running.enter_context(self.rounded(model, config.weights))
            if small is not None:
                running.enter_context(self.rounded(self.drafter, config.draft_weights))
            tokens = self._draw(backbone, speculation, rows, callback_on_step_end)
        with stats.phase("decode"):
            if output_type == "latent":
                images = owned(tokens)
            else:
                pixels = decode_tokens(self.vae, tokens.to(self.vae.dtype)).float()
                images = self.pictures(pixels.clamp(-1, 1) / 2 + 0.5, output_type)
        return ContinuousOutput(images=images, stats=stats) if return_dict else (images, stats)

    def _check_given(self, config: ResolvedConfig, given: Mapping[str, Any]) -> None:
        self.check_size(given["height"], given["width"])
        check_plan(config, self.plan(*(given[name] for name in _PLANNED)))

    def plan(self, *given: Any) -> MarPlan:
        """Drawing plan of a call; the arguments are `_PLANNED`, None is the model's own.

        Raises:
            InputError: a value is out of range.
        """
        config, length = self.transformer.config, self.transformer.length
        own = {
            "num_iterations": length,
            "guidance_scale": config.sample_guidance,
            "temperature": config.sample_temperature,
        }
        asked: dict[str, Any] = dict(zip(_PLANNED, given, strict=True))
        check_guidance(asked["guidance_scale"])
        asked |= {name: value for name, value in own.items() if asked[name] is None}
        return MarPlan(length, *asked.values())

    def check_size(self, height: int | None, width: int | None) -> None:
        """Raise an `InputError` for a size that this model does not draw."""
        side = self.default_size
        if any(size not in (None, side) for size in (height, width)):
            raise InputError(f"this model draws {side}×{side} px, not {height}×{width}")

    def _draw(
        self,
        backbone: MarBackbone,
        speculation: ContinuousSpeculation,
        rows: int,
        callback: OnStep | None,
    ) -> Tensor:
        """Tokens `[B, L, C]`, iteration by iteration."""
        plan, weight, stats = backbone.plan, backbone.head.weight, speculation.stats
        shape = (rows, plan.length, self.transformer.config.token_dim)
        tokens = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        predictions = backbone.predictions(tokens, speculation.spans())
        prediction: HeadPrediction | None = None
        with self.progress_bar(total=plan.length * rows) as bar:
            while True:
                with stats.phase("backbone"):
                    last, prediction = prediction, next(predictions, None)
                    wait(self.device)
                if prediction is None:
                    break
                if not speculation.config.drafter_only:
                    stats.observe_backbone(len(backbone.buffer))
                drawn = speculation.draw(prediction).to(tokens)
                positions = prediction.positions[..., None].expand(-1, -1, shape[-1])
                tokens.scatter_(1, positions, drawn.unflatten(0, (rows, -1)))
                done = prediction.known.shape[1] + prediction.positions.shape[1]
                bar.update(done * rows - bar.n)
                state = {"latents": tokens, "positions": prediction.positions}
                state["drafted"] = speculation.drafted.unflatten(0, (rows, -1))
                if callback is not None:  # it may keep and edit what it is given
                    state = {name: owned(tensor) for name, tensor in state.items()}
                over = prediction.iterations.stop
                if self._after_round(callback, over, done, **state, stats=stats):
                    return tokens
        if last is not None and speculation.config.drafts and speculation.guard is None:
            plain = self._costs.plain(last.denoiser, last.condition, plan, stats.pictures)
            plain += plan.iterations * stats.seconds["backbone"] / stats.backbone_calls
            self._notices.check(stats, plain)
        return tokens

    def backbone(
        self,
        model: MarTransformer,
        weights: str | None,
        features: list[Tensor | None],
        plan: MarPlan,
        seeds: list[int],
    ) -> MarBackbone:
        """A model at work, its head rounded, told of every row what `features` says."""
        head = self.built(model.head, None, lambda: PackedHead(model.head, weights), weights)
        tell = model.captions if self.captioned else model.classes
        nothing = model.nothing(len(seeds))
        buffer = torch.cat([nothing if part is None else tell(part) for part in features])
        return MarBackbone(model, head, buffer, plan, seeds)

    def features(
        self, shown: list[str] | list[int], negative: str | list[str] | None, guided: bool
    ) -> list[Tensor | None]:
        """Text features `[B, T, D]` or classes `[B]`; guided, then the unconditional rows'.

        None: the learned "nothing".
        """
        if negative is not None and not self.captioned:
            raise InputError("this model is told classes: it has no negative_prompt")

        def embedded(told: Any) -> Tensor | None:
            if told is None or not self.captioned:
                return None if told is None else torch.tensor(told, device=self.device)
            length, (several, rows) = self.transformer.prefix_length, distinct(told)
            return encode_captions(self.tokenizer, self.text_encoder, several, length)[0][rows]

        unwanted = [embedded(negatives(negative, shown))] if guided else []
        return [embedded(shown), *unwanted]

    @classmethod
    def from_mar(
        cls,
        transformer: str | Path,
        vae: str | Path,
        drafter: str | Path | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> ContinuousImagePipeline:
        """The released MAR files, told ImageNet classes.

        Args:
            transformer: `checkpoint-last.pth` of MAR-B, -L or -H.
            vae: `kl16.ckpt`.
            drafter: `checkpoint-last.pth` of a smaller one.
            dtype: of the weights.

        Raises:
            InputError: a file is unreadable or a tensor does not fit.
        """
        small = None if drafter is None else load_mar(drafter, dtype)
        return cls(load_mar(transformer, dtype), load_kl(vae, dtype=dtype), drafter=small)
