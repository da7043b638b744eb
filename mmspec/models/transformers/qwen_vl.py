"""Qwen's vision-language models: positions on three axes, and pictures that reach deeper layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ...errors import InputError
from .prompted import EncodedPrompt
from .vlm import VisualPrompt, VlmDecoder, spans


class QwenVlDecoder(VlmDecoder):
    """`Qwen2VLForConditionalGeneration`, Qwen2.5-VL and Qwen3-VL.

    Time, row and column of a picture's columns are their positions; text goes on behind the
    largest. The model keeps how far that is from the column, and here it is left as it was.

    Qwen3-VL adds features of its vision tower's middle layers to the hidden states behind its
    first layers (DeepStack), in the pictures' columns alone: these are in the prompt, so only the
    calls that read prompts have any. They read neighbouring slots, the last of them in front of the
    prompt's last column.
    """

    guidable = False  # transformers turns the unconditional rows by the conditional ones' distance

    _deep: VisualPrompt | None = None  # the prompt, if it has deep features
    _ends_on_picture = False
    _last = 0  # slot of the prompt's last column, behind what is padding in every row
    _running: Sequence[int] | None = None  # rows of the prompt; None: all

    def prompt(self, ids: Tensor, mask: Tensor, limit: int, **inputs: Any) -> VisualPrompt:
        """Embed a prompt; `inputs` may have `image_grid_thw [pictures, 3]`, see the base."""
        grids = inputs.get("image_grid_thw")
        if grids is not None and inputs.get("position_ids") is None:
            self._check_grids(ids, grids)
            kinds = (ids == self.model.config.image_token_id).int()
            positions, _ = self.model.base_model.get_rope_index(
                ids, mm_token_type_ids=kinds, image_grid_thw=grids, attention_mask=mask.long()
            )
            inputs["position_ids"] = positions
        return super().prompt(ids, mask, limit, **inputs)

    def _placed(self, mask: Tensor, given: Tensor | None) -> Tensor:
        """`[3, R, T]`; of four axes the first is transformers' own, for packed texts."""
        if given is not None and given.ndim == 3:
            return given[-3:].expand(-1, len(mask), -1)
        return super()._placed(mask, given).expand(3, -1, -1)

    @contextmanager
    def generating(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        ids, grids = inputs.get("input_ids"), inputs.get("image_grid_thw")
        if ids is not None and grids is not None:
            self._check_grids(ids, grids)
        network: Any = self.model.base_model
        before = network.rope_deltas
        try:
            with super().generating(inputs):
                yield
        finally:
            network.rope_deltas = before

    def _check_grids(self, ids: Tensor, grids: Tensor) -> None:
        """Raise an `InputError` unless every picture has its placeholders, in one run."""
        config = self.model.config
        sizes = (grids.prod(-1) // config.vision_config.spatial_merge_size**2).tolist()
        runs = [n for row in spans(ids == config.image_token_id, []) for _, n in row]
        if runs != sizes:
            raise InputError(
                f"the prompts have runs of {runs} image tokens and the pictures take {sizes}; give "
                "every placeholder its picture, and both to the processor at once"
            )

    def place(self, prompt: EncodedPrompt) -> None:
        super().place(prompt)
        assert isinstance(prompt, VisualPrompt)
        self._deep = None if prompt.deep is None else prompt
        self._ends_on_picture = bool(prompt.visual[:, -1].any())
        self._last = int(prompt.mask.any(0).sum()) - 1
        self._running = None

    def narrow(self, rows: Sequence[int] | None) -> None:
        super().narrow(rows)
        self._running = rows

    def forward(self, x: Tensor, rotary: Tensor, *args: Any, **inputs: Any) -> Tensor:
        slots = args[1]
        reads = isinstance(slots, int) and slots < self._last
        # the prompt's last column is an input of the call behind
        if self._deep is not None and (reads or self._ends_on_picture):
            inputs |= deep_inputs(self._deep, rotary, self._running)
        return super().forward(x, rotary, *args, **inputs)


def deep_inputs(
    prompt: VisualPrompt, columns: Tensor, running: Sequence[int] | None = None
) -> dict[str, Any]:
    """Mask of the pictures among inputs at `columns [n]` or `[R, n]`, and their deep features.

    Columns behind the prompt are outputs. The rows are those of the prompt that are `running`.
    """
    assert prompt.deep is not None
    rows = slice(None) if running is None else list(running)
    order = (prompt.visual.flatten().cumsum(0) - 1).view_as(prompt.visual)[rows]
    shown, width = prompt.visual[rows], prompt.visual.shape[1]
    columns = columns.expand(len(shown), -1)
    at = columns.clamp_max(width - 1)
    visual = shown.gather(1, at) & (columns < width)
    deep = prompt.deep[:, order.gather(1, at)[visual]]
    return {"visual_pos_masks": visual, "deepstack_visual_embeds": list(deep)}
