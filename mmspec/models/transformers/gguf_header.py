"""The header of a GGUF file, and what it says that transformers' reader leaves out.

That reader knows of a rotary embedding its base alone, where it knows that. Scaling lies in fields
(`ARCHITECTURE.rope.scaling.*`) or, as one factor a frequency, in tensors; llama.cpp's converter
writes those of Llama 3 as `rope_freqs.weight`.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...errors import InputError

_FACTORS = "rope_freqs.weight"  # of every frequency
_LONG = "rope_factors_long.weight"  # of contexts beyond those that it was trained on
# of all models with this kind of scaling that are published; they differ in the factor
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


class GgufHeader:
    """Fields and tensors of a file, which stays on the disk.

    Args:
        file: its path.
    """

    def __init__(self, file: Path) -> None:
        import gguf

        self.file = file
        self._reader = gguf.GGUFReader(file)
        self.tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.architecture = self.field("general.architecture")

    def field(self, name: str) -> Any:
        """The value of a field; None: there is none."""
        found = self._reader.get_field(name)
        return None if found is None else found.contents()

    def check_whole(self) -> None:
        """Raise an `InputError` if the file is a part of a model in several."""
        if (count := self.field("split.count") or 1) > 1:
            raise InputError(
                f"{self.file} is one of {count} files of a model: join them with llama.cpp's "
                "llama-gguf-split --merge"
            )

    def check_biases(self, model: PreTrainedModel) -> None:
        """Raise an `InputError` if there are more biases than the model takes.

        transformers' reader drops what it knows no place for.
        """
        named = re.compile(r"\.(attn|ffn)_\w+\.bias$")
        here = sum(math.prod(t.shape) for n, t in self.tensors.items() if named.search(n))
        state = model.state_dict().items()
        taken = sum(weight.numel() for name, weight in state if name.endswith("bias"))
        if int(here) > taken:
            raise InputError(
                f"{self.file} has biases that {type(model).__name__} has no place for: as "
                f"{self.architecture} it is not read whole; take the model's own folder"
            )

    def factors(self) -> Tensor | None:
        """Divisors of the frequencies; None: nothing is said."""
        tensor = self.tensors.get(_FACTORS)
        return None if tensor is None else torch.tensor(tensor.data).float().flatten()


def take_rotary(model: PreTrainedModel, header: GgufHeader) -> None:
    """Let a model turn its keys as the file says.

    Raises:
        InputError: the file scales them in a way that is not known here.
    """
    config = model.config.get_text_config()
    known = getattr(config, "rope_parameters", None) or {}
    if "rope_type" not in known:  # there is no such embedding, or one for each kind of layers
        if known and (_FACTORS in header.tensors or _scaling(header, 1.0)):
            raise InputError(
                f"{header.file}: scaling of positions is not read for {header.architecture}, whose "
                "layers are of several kinds; take the model's own folder"
            )
        return
    told = dict(known)
    base = header.field(f"{header.architecture}.rope.freq_base")
    if base is not None and not math.isclose(base, known["rope_theta"], rel_tol=1e-5):
        told["rope_theta"] = float(base)
    if known["rope_type"] == "default":
        told |= _scaling(header, told["rope_theta"])
    if told != known:
        config.rope_parameters = told
        _turn(model, config)


def _scaling(header: GgufHeader, base: float) -> dict[str, Any]:
    """The part of `rope_parameters` that the reader leaves out."""
    fields = f"{header.architecture}.rope.scaling"
    kind, factors = header.field(f"{fields}.type"), header.factors()
    if factors is not None:
        most = float(factors.max())
        made = {"rope_type": "llama3", "factor": most, **_LLAMA3}
        if torch.allclose(factors, _llama3(len(factors), base, most), rtol=1e-3):
            return made
        raise InputError(f"{header.file}: its {_FACTORS} are not those of Llama 3")
    if _LONG in header.tensors or kind not in (None, "none", "linear"):
        named = _LONG if _LONG in header.tensors else f"{fields}.type {kind!r}"
        raise InputError(
            f"{header.file}: rotary embeddings with {named} are not read from GGUF files; take the "
            "model's own folder"
        )
    factor = float(header.field(f"{fields}.factor") or 1.0)
    return {"rope_type": "linear", "factor": factor} if kind == "linear" and factor != 1 else {}


def _llama3(count: int, base: float, factor: float) -> Tensor:
    """Llama 3's factors of `count` frequencies (transformers' `rope_type` "llama3")."""
    low, high, original = _LLAMA3.values()
    turns = base ** -(torch.arange(count) / count) * original / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - share) / factor + share)


def _turn(model: nn.Module, config: Any) -> None:
    """Make a model's rotary embeddings anew."""
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if type(child).__name__.endswith("RotaryEmbedding") and hasattr(child, "rope_type"):
                setattr(module, name, type(child)(config=config))
