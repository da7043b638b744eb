"""Text to image with a visual autoregressive model, plainly or speculatively."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast, T5EncoderModel

from ..config import SELF
from ..draft.guarded import GuardedDrafter
from ..draft.null import NullDrafter
from ..draft.self import SelfDrafter
from ..engine.coins import ProductionCoins
from ..engine.loop import run
from ..engine.stats import SpecStats
from ..engine.types import Context, Engine
from ..engine.warp import Warp
from ..errors import InputError
from ..models.decoder import Decoder
from ..models.guided import GuidedDecoder
from ..models.llamagen import LlamaGenTransformer
from ..models.loading import load_component
from ..models.published import load_llamagen, load_vq
from ..models.target import TokenTarget
from ..models.text import encode_captions
from ..models.vq import VQModel
from .base import SpeculativePipeline, locate, row_seeds
from .costs import Costs
from .notices import Notices
from .output import ImageOutput
from .parts import make_drafter, make_length, make_rule
from .spread import placement

OutputType = Literal["pil", "np", "pt", "tokens"]


class ImagePipeline(SpeculativePipeline):
    """LlamaGen text-to-image: T5 features, a transformer over VQ tokens, a VQ decoder.

    Args:
        transformer: the target, for pictures of its full grid.
        vq_model: image tokenizer.
        text_encoder, tokenizer: T5 encoder and its tokenizer.
        drafter: smaller transformer of the same vocabulary, for methods that have a draft model.
        sibling: transformer of a smaller grid, for smaller pictures.
    """

    embedded = "image"
    _optional_components: ClassVar = ["drafter", "sibling"]
    component_classes: ClassVar = {
        "transformer": LlamaGenTransformer,
        "vq_model": VQModel,
        "text_encoder": T5EncoderModel,
        "tokenizer": PreTrainedTokenizerFast,
        "drafter": LlamaGenTransformer,
        "sibling": LlamaGenTransformer,
    }

    def __init__(
        self,
        transformer: LlamaGenTransformer,
        vq_model: VQModel,
        text_encoder: T5EncoderModel,
        tokenizer: Any,
        drafter: LlamaGenTransformer | None = None,
        sibling: LlamaGenTransformer | None = None,
    ) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer,
            vq_model=vq_model,
            text_encoder=text_encoder,
            tokenizer=tokenizer,
            drafter=drafter,
            sibling=sibling,
        )
        for name, network in (("drafter", drafter), ("sibling", sibling)):
            for field in ("vocab_size", "cls_token_num", "caption_dim"):
                wanted = transformer.config[field]
                if network is not None and network.config[field] != wanted:
                    raise InputError(
                        f"the {name}'s {field} ({network.config[field]}) is not the target's "
                        f"({wanted})"
                    )
        self._decoders: dict[int, tuple[object, Decoder]] = {}
        self._notices = Notices()
        self._costs = Costs()

    @property
    def default_size(self) -> int:
        """Side in pixels of the target's full grid."""
        return int(self.transformer.grid * self.vq_model.downsample_factor)

    @torch.inference_mode()
    def __call__(
        self,
        prompt: str | list[str],
        negative_prompt: str | list[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: float = 2.0,
        temperature: float = 1.0,
        top_k: int = 100,
        top_p: float = 1.0,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | list[torch.Generator] | None = None,
        output_type: OutputType = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callable[[Any, int, int, dict[str, Any]], Any] | None = None,
    ) -> ImageOutput | tuple[Any, SpecStats]:
        """Draw pictures.

        Args:
            prompt: caption or captions.
            negative_prompt: what the unconditional rows are told; None: the learned "no caption".
            height, width: pixels; square, at most the target's full grid. The embedded model draws
                128 px, and 64 px with its sibling.
            guidance_scale: classifier-free guidance s; 1 switches it off.
            temperature, top_k, top_p: warpers, after guidance; temperature 0 is greedy.
            num_images_per_prompt: pictures per caption.
            generator: one for all pictures, or a list with one each; the same seed gives the same
                picture, alone or in a batch (goodput lengths follow the clock and may not).
            output_type: "pil", "np", "pt" or "tokens".
            return_dict: an `ImageOutput`, else the tuple (images, stats).
            callback_on_step_end: called as `callback(pipe, round, tokens so far, {"context": …})`
                after every verify round; set `pipe.interrupt = True` in it to stop: what is not
                drawn then is filled with token 0.

        Raises:
            InputError: an argument is out of range or does not fit the model.
        """
        captions = [prompt] if isinstance(prompt, str) else list(prompt)
        self.check_inputs(
            captions, guidance_scale, temperature, top_k, top_p, num_images_per_prompt
        )
        if output_type not in ("pil", "np", "pt", "tokens"):
            raise InputError(f"output_type must be pil, np, pt or tokens, not {output_type!r}")
        transformer, grid = self.network(height, width)
        if self.speculation.drafter_only:
            self.check_speculation(self.speculation)
            transformer = self.drafter
        rows = len(captions) * num_images_per_prompt
        seeds = row_seeds(generator, rows)
        stats = SpecStats()
        self._interrupt = False

        with stats.phase("encode"):
            prefix, mask = self._condition(
                captions, negative_prompt, guidance_scale, num_images_per_prompt
            )
        scale = guidance_scale if guidance_scale != 1 else None
        warp = Warp(temperature, top_k, top_p)
        engine = self._engine(transformer, prefix, mask, scale, warp, grid, seeds)
        if self.on_engine is not None:
            self.on_engine(engine)
        stats.method = self.speculation.method
        stats.contract = "lossy" if self.speculation.drafter_only else engine.rule.contract
        limit = grid * grid
        with self.progress_bar(total=limit * rows) as bar:

            def on_round(context: Context) -> bool:
                bar.update(sum(context.base) - bar.n)
                if callback_on_step_end is not None:
                    done = min(context.base)
                    callback_on_step_end(self, context.round, done, {"context": context})
                return self._interrupt

            context = run(engine, rows, limit, stats, on_round, self.device)

        if isinstance(engine.drafter, GuardedDrafter):
            stats.fault = engine.drafter.fault
            if isinstance(engine.drafter.drafter, SelfDrafter):
                stats.own_drafts = engine.drafter.drafter.share
            assert isinstance(engine.target, TokenTarget)
            self._notices.check(stats, self._costs.call(engine.target.model))
        drawn = torch.arange(limit, device=self.device) < context.lengths[:, None]
        tokens = context.tokens[:, :limit] * drawn
        with stats.phase("decode"):
            images = self._pictures(tokens, grid, output_type)
        return ImageOutput(images=images, stats=stats) if return_dict else (images, stats)

    def check_inputs(
        self,
        captions: list[str],
        guidance_scale: float,
        temperature: float,
        top_k: int,
        top_p: float,
        num_images_per_prompt: int,
    ) -> None:
        """One clear line for every argument out of range."""
        if not captions or not all(c.strip() for c in captions):
            raise InputError("the prompt is empty; say what to draw")
        for name, value, low, high in (
            ("guidance_scale", guidance_scale, 0, 100),
            ("top_k", top_k, 0, 2**31),
            ("num_images_per_prompt", num_images_per_prompt, 1, 1024),
        ):
            if not low <= value <= high:
                raise InputError(f"{name} must be from {low} to {high}, not {value}")
        # a smaller temperature would overflow the logits
        if temperature != 0 and not 1e-6 <= temperature <= 100:
            raise InputError(f"temperature must be 0 or from 1e-6 to 100, not {temperature}")
        if not 0 < top_p <= 1:
            raise InputError(f"top_p must be above 0 and at most 1, not {top_p}")

    @torch.no_grad()
    def token_laws(
        self,
        prompt: list[str],
        tokens: Tensor,
        guidance_scale: float = 2.0,
        temperature: float = 1.0,
        top_k: int = 100,
        top_p: float = 1.0,
        height: int | None = None,
        width: int | None = None,
        of_drafter: bool = False,
    ) -> Tensor:
        """The target's laws `[B, S, V]` at each of `tokens [B, S]`, given those before it.

        Arguments as in `__call__`, one caption per row; `of_drafter`: the draft model's laws.
        """
        network, grid = self.network(height, width)
        network = self.drafter if of_drafter else network
        features, mask = self._condition(prompt, None, guidance_scale, 1)
        scale = guidance_scale if guidance_scale != 1 else None
        warp = Warp(temperature, top_k, top_p)
        model = self._guided(network, features, mask, scale, warp, grid, scratch=1)
        model.start(len(prompt))
        inputs = torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1)
        return model.extend(inputs, [-1] * len(prompt))

    def network(self, height: int | None, width: int | None) -> tuple[LlamaGenTransformer, int]:
        """The network and the grid side for a picture of `height` by `width` pixels."""
        if height is None:
            height = self.default_size if width is None else width
        width = height if width is None else width
        factor = self.vq_model.downsample_factor
        if height != width or height % factor or height < factor:
            raise InputError(
                f"pictures are square, a multiple of {factor} px; not {height}×{width}"
            )
        grid = height // factor
        if self.sibling is not None and grid == self.sibling.grid:
            return self.sibling, grid
        if grid != self.transformer.grid:
            sizes = [n.grid * factor for n in (self.sibling, self.transformer) if n is not None]
            known = " or ".join(f"{s}×{s}" for s in sizes)
            raise InputError(f"this model draws {known} px, not {height}×{width}")
        return self.transformer, grid

    def _condition(
        self,
        captions: list[str],
        negative_prompt: str | list[str] | None,
        guidance_scale: float,
        copies: int,
    ) -> tuple[Tensor, Tensor]:
        """T5 features `[R, T, caption_dim]` and mask `[R, T]`, conditional rows first."""
        length = self.transformer.prefix_length
        features, mask = encode_captions(self.tokenizer, self.text_encoder, captions, length)
        if guidance_scale != 1:
            if negative_prompt is None:
                nothing = self.transformer.cls_embedding.get_buffer("uncond_embedding")
                without, without_mask = nothing.to(features).expand_as(features), mask
            else:
                negative = (
                    [negative_prompt] * len(captions)
                    if isinstance(negative_prompt, str)
                    else list(negative_prompt)
                )
                if len(negative) != len(captions):
                    raise InputError(
                        f"{len(negative)} negative prompts for {len(captions)} prompts"
                    )
                without, without_mask = encode_captions(
                    self.tokenizer, self.text_encoder, negative, length
                )
            repeat = [x.repeat_interleave(copies, 0) for x in (features, without)]
            masks = [x.repeat_interleave(copies, 0) for x in (mask, without_mask)]
            return torch.cat(repeat), torch.cat(masks)
        return features.repeat_interleave(copies, 0), mask.repeat_interleave(copies, 0)

    def _engine(
        self,
        transformer: LlamaGenTransformer,
        features: Tensor,
        mask: Tensor,
        scale: float | None,
        warp: Warp,
        grid: int,
        seeds: list[int],
    ) -> Engine:
        """Target, drafter, rule, length and coins of one generation."""
        config = self.speculation.resolved()

        def guided(network: LlamaGenTransformer) -> GuidedDecoder:
            return self._guided(network, features, mask, scale, warp, grid, config.most_read)

        if config.needs_model:
            self.check_speculation(config)
        target = guided(transformer)
        model = guided(self.drafter) if config.needs_model else None
        length = make_length(config, partial(self._costs.experience, config, target, model))
        vocab_size = transformer.config.vocab_size
        if config.drafter in SELF and target.layers < 2:
            raise InputError(f"{config.drafter} needs a target of two layers or more")
        if config.exit_layer is not None and config.exit_layer >= target.layers:
            raise InputError(
                f"exit_layer must be below the target's {target.layers} layers, "
                f"not {config.exit_layer}"
            )
        drafter = make_drafter(config, target, model, vocab_size, grid, length)
        if not isinstance(drafter, NullDrafter):
            drafter = GuardedDrafter(drafter, vocab_size, config.most_drafted)
        return Engine(
            TokenTarget(target),
            drafter,
            make_rule(config, warp.temperature),
            length,
            ProductionCoins(seeds, self.device),
        )

    def _guided(
        self,
        network: LlamaGenTransformer,
        features: Tensor,
        mask: Tensor,
        scale: float | None,
        warp: Warp,
        grid: int,
        scratch: int,
    ) -> GuidedDecoder:
        """A network with a cache of its own, under guidance and warpers."""
        prefix = network.cls_embedding(features)
        decoder, limit = self.decoder(network), grid * grid
        return GuidedDecoder(decoder, prefix, mask, scale, warp, limit, grid, scratch)

    def decoder(self, network: LlamaGenTransformer) -> Decoder:
        """The network's inference form, made again if its weights were moved, cast or edited.

        Edits through `.data` go unnoticed, as in autograd.
        """
        weights = [
            (p.data_ptr(), 0 if p.is_inference() else p._version) for p in network.parameters()
        ]
        made_of = weights, placement(self, network)
        found = self._decoders.get(id(network))
        if found is None or found[0] != made_of:
            found = self._decoders[id(network)] = made_of, Decoder(network, made_of[1])
        return found[1]

    def _pictures(self, tokens: Tensor, grid: int, output_type: OutputType) -> Any:
        pixels = tokens
        if output_type != "tokens":
            pixels = self.vq_model.decode(tokens, grid, grid).float().clamp(-1, 1) / 2 + 0.5
        if output_type in ("tokens", "pt"):
            with torch.inference_mode(False):  # a normal tensor, which its owner may edit
                return pixels.clone()
        array = pixels.permute(0, 2, 3, 1).cpu().numpy()
        return array if output_type == "np" else self.numpy_to_pil(array)

    @classmethod
    def from_llamagen(
        cls,
        transformer: str | Path,
        vq_model: str | Path,
        text_encoder: str | Path,
        drafter: LlamaGenTransformer | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> ImagePipeline:
        """The released LlamaGen files.

        Args:
            transformer: `t2i_XL_stage1_256.pt` or `t2i_XL_stage2_512.pt`.
            vq_model: `vq_ds16_t2i.pt`.
            text_encoder: folder or hub id of flan-t5-xl, with its tokenizer.
            drafter: a smaller transformer of the same vocabulary.
            dtype: of the weights.

        Raises:
            InputError: a file is unreadable or a tensor does not fit.
        """
        network, image_tokenizer = load_llamagen(transformer, dtype), load_vq(vq_model, dtype)
        folder = locate(text_encoder, "")
        return cls(
            network,
            image_tokenizer,
            load_component(T5EncoderModel, folder, dtype),
            load_component(AutoTokenizer, folder, dtype),
            drafter,
        )
