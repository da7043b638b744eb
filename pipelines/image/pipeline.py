"""Text to image: LlamaGen's pipeline, and the door to those of other families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerFast, T5EncoderModel

from ...engine.laws import TargetError
from ...engine.loop import run
from ...errors import InputError
from ...methods import ResolvedConfig, SpecConfig
from ...methods.parts.pictures import MultiscaleOptions
from ...models.heads.judge import JudgeHead
from ...models.llamagen.decoder import LlamaGenDecoder
from ...models.llamagen.dflash_head import DFlashDecoder, DFlashHead
from ...models.llamagen.eagle_head import EagleDecoder, EagleHead
from ...models.llamagen.image_model import LlamaGenClassModel, LlamaGenImageModel
from ...models.llamagen.published import load_llamagen, load_vq
from ...models.llamagen.spatial_heads import SpatialDecoder, SpatialHeads
from ...models.llamagen.transformer import LlamaGenTransformer
from ...models.llamagen.upsampler import (
    SCALE,
    LatentUpsampler,
    LatentUpsampling,
    PixelUpsampler,
    Upsampler,
    nearest,
)
from ...models.llamagen.vq import VQModel
from ...models.loading import load_component
from ...models.placement import Placement
from ...models.token_grid import TokenGrid
from ..base import SpeculativePipeline
from ..device_map import placement
from ..fitting import check_captioned, check_channels, check_codes, check_same
from ..model_folders import locate
from ..output import ImageStats
from .drawing import Drawing
from .token_pipeline import TokenImagePipeline
from .transformers_pipeline import TransformersImagePipeline

_SAME = ("vocab_size", "model_type", "cls_token_num", "caption_dim", "num_classes")
HEADS: dict[str, Any] = {"eagle": EagleDecoder, "dflash": DFlashDecoder, "spatial": SpatialDecoder}
_SMALL = SpecConfig("scd", window=16)  # of the sibling, which is sped up itself
_OTHER = 2**61


class ImagePipeline(TokenImagePipeline):
    """LlamaGen: T5 features or a class, a transformer over VQ tokens, a VQ decoder.

    Args:
        transformer: the target, for pictures of its full grid.
        vq_model: image tokenizer.
        text_encoder, tokenizer: T5 encoder and its tokenizer, of a target that is told captions.
        drafter: smaller transformer of the same vocabulary, for methods that have a draft model.
        sibling: transformer of a smaller grid, for smaller pictures.
        upsampler: scales the sibling's tokens up, for "mulo-sd".
        eagle: one-layer head on the target's features, for "eagle".
        spatial: heads that look below and to the right, for "spatial-sd" and "spatial-exact".
        row_drafter: masked transformer of the same vocabulary, for "maskgit-rows".
        judge: says which drafted tokens will do, for "judge".
        dflash: head that denoises blocks, for "dflash" and "scd-dflash".
    """

    embedded = "image"
    spreads: ClassVar[bool] = True

    def __init__(
        self,
        transformer: LlamaGenTransformer,
        vq_model: VQModel,
        text_encoder: T5EncoderModel | None = None,
        tokenizer: PreTrainedTokenizerFast | None = None,
        drafter: LlamaGenTransformer | None = None,
        sibling: LlamaGenTransformer | None = None,
        upsampler: LatentUpsampler | None = None,
        eagle: EagleHead | None = None,
        spatial: SpatialHeads | None = None,
        row_drafter: LlamaGenTransformer | None = None,
        judge: JudgeHead | None = None,
        dflash: DFlashHead | None = None,
    ) -> None:
        super().__init__(locals())
        check_same("drafter", drafter, transformer, _SAME)
        check_same("row_drafter", row_drafter, transformer, _SAME)
        check_same("sibling", sibling, transformer, _SAME)
        for head in (judge, eagle, dflash, spatial):
            if head is not None:
                head.check(transformer)
        if self.captioned:
            check_captioned(text_encoder, tokenizer)
            wide = self.text_encoder.config.d_model
            check_channels("the text encoder's features", wide, transformer.config.caption_dim)
        check_codes(transformer, vq_model)
        if upsampler is not None:
            made = {n: upsampler.config[n] for n in ("codebook_size", "codebook_embed_dim")}
            codes = vq_model.quantize.embedding.weight.shape
            if tuple(made.values()) != tuple(codes):
                raise InputError(
                    f"the upsampler's codebook {list(made.values())} is not the image tokenizer's "
                    f"{list(codes)}"
                )

    @classmethod
    def openers(cls) -> tuple[type[SpeculativePipeline], ...]:
        return cls, TransformersImagePipeline

    @property
    def captioned(self) -> bool:
        """True if the target is told captions, False if classes."""
        return bool(self.transformer.config.model_type == "t2i")

    @property
    def class_count(self) -> int | None:
        return None if self.captioned else int(self.transformer.config.num_classes)

    @property
    def default_size(self) -> int:
        """Side in pixels of the target's full grid."""
        return self.image_model(self.transformer).default_size[0]

    def network(
        self, height: int | None, width: int | None, alone: bool = False
    ) -> tuple[nn.Module, TokenGrid]:
        if height is None:
            height = self.default_size if width is None else width
        width = height if width is None else width
        factor = self.vq_model.downsample_factor
        if height != width or height % factor or height < factor:
            raise InputError(
                f"pictures are square, a multiple of {factor} px; not {height}×{width}"
            )
        several = (self.drafter,) if alone else (self.sibling, self.transformer)
        networks = [n for n in several if n is not None]
        for network in networks:
            if network.grid * factor == height:
                return network, self.image_model(network).grid(height, width)
        known = " or ".join(f"{n.grid * factor}×{n.grid * factor}" for n in networks)
        drawing = "the drafter" if alone else "this model"
        raise InputError(f"{drawing} draws {known} px, not {height}×{width}")

    def _check_given(self, config: ResolvedConfig, given: Mapping[str, Any]) -> None:
        super()._check_given(config, given)
        network, grid = self.network(given["height"], given["width"])
        for name in ("judge", *HEADS):
            if name in config.needs:
                self._check_read(name, network)
        if "sibling" in config.needs:
            self._small_grid(grid)

    def _check_read(self, name: str, network: nn.Module) -> None:
        """Raise an `InputError` unless a head can read a network's hidden states."""
        if network is not self.transformer:
            raise InputError(
                f"component {name!r} reads the hidden states of {self.default_size} px"
            )

    def head(self, name: str, target: LlamaGenDecoder) -> Any:
        self._check_read(name, target.model)
        network = self.components[name]
        if name == "judge":
            return network
        return self.built(network, target, lambda: HEADS[name](network, target))

    def scaled_up(
        self, drawing: Drawing, config: ResolvedConfig, stats: ImageStats
    ) -> Callable[[], Tensor]:
        grid, small = drawing.grid, self._small_grid(drawing.grid)
        options = config.of(MultiscaleOptions)
        upsampler: Upsampler = nearest
        if options.upsampler == "pixels":
            upsampler = PixelUpsampler(self.vq_model)
        elif options.upsampler == "learned":
            upsampler = LatentUpsampling(self.upsampler, self.vq_model.quantize.codebook())
        scale = None if drawing.scale is None else options.draft_guidance
        warp = replace(drawing.warp, temperature=options.draft_temperature)
        # coins of their own: the target's must not have been seen before they judge
        seeds = [seed + _OTHER for seed in drawing.seeds]
        asked = replace(drawing, scale=scale, warp=warp, grid=small, seeds=seeds)

        def picture() -> Tensor:
            drawn, over = ImageStats(), lambda _: self.interrupt
            engine = self._engine(self.sibling, asked, _SMALL.resolve("image"), drawn)
            try:
                context = run(engine, len(seeds), small.length, drawn, over, self.device)
            except TargetError as error:
                raise ValueError(f"of the sibling: {error}") from error
            stats.sibling_calls = drawn.calls
            self._check_interrupt()
            return grid.tokens(upsampler(small.codes(context.tokens[:, : small.length]), small))

        return picture

    def _small_grid(self, grid: TokenGrid) -> TokenGrid:
        """Tokens of the small picture that is scaled up to a grid's; an `InputError` if none is."""
        family = self.image_model(self.sibling)
        small = family.grid(*family.default_size)
        if (grid.rows, grid.columns) != (SCALE * small.rows, SCALE * small.columns):
            pixels = SCALE * family.default_size[0]
            raise InputError(
                f"drafter 'multiscale' draws {pixels} px, {SCALE} times the sibling's size, and no "
                "other"
            )
        return small

    def image_model(self, network: Any) -> LlamaGenImageModel:
        kind = LlamaGenImageModel if self.captioned else LlamaGenClassModel
        return kind(network, self.vq_model, self.text_encoder, self.tokenizer)

    def _placement(self, network: Any) -> Placement | None:
        return placement(self, network)

    @classmethod
    def from_llamagen(
        cls,
        transformer: str | Path,
        vq_model: str | Path,
        text_encoder: str | Path | None = None,
        drafter: LlamaGenTransformer | None = None,
        dtype: torch.dtype = torch.float32,
        image_size: int | None = None,
    ) -> ImagePipeline:
        """The released LlamaGen files.

        Captions are cleaned as the authors clean them, and pictures drawn with their guidance and
        top-k unless a call says otherwise: 7.5 and 1000, told classes 4.0 and 2000.

        Args:
            transformer: `t2i_XL_stage1_256.pt`, `c2i_XL_384.pt`, or one like them.
            vq_model: `vq_ds16_t2i.pt` or `vq_ds16_c2i.pt`.
            text_encoder: folder or hub id of flan-t5-xl, with its tokenizer; of a transformer that
                is told classes, None.
            drafter: a smaller transformer of the same vocabulary.
            dtype: of the weights.
            image_size: side in pixels of the pictures that it was trained on, which few files tell.

        Raises:
            InputError: a file is unreadable, a tensor does not fit, or `image_size` is needed.
        """
        image_tokenizer = load_vq(vq_model, dtype)
        grid, rest = divmod(image_size or 0, image_tokenizer.downsample_factor)
        if rest or (image_size is not None and grid < 1):
            factor = image_tokenizer.downsample_factor
            raise InputError(f"image_size must be a multiple of {factor}, not {image_size}")
        network = load_llamagen(transformer, dtype, grid or None)
        encoder = words = None
        if text_encoder is not None:
            folder = locate(text_encoder, "")
            encoder = load_component(T5EncoderModel, folder, dtype)
            words = load_component(AutoTokenizer, folder, dtype)
        return cls(network, image_tokenizer, encoder, words, drafter)
