"""A folder with a draft head: its configuration and its tensors, whatever the format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....errors import InputError
from ....files import read_object
from ...loading import check_tensors, weight_files
from ...weights import check_regular, read_heads, read_some, read_tensors
from ..published.sizes import HeadSizes

SAFETENSORS = ("model.safetensors", "medusa_lm_head.safetensors", "hydra_lm_head.safetensors")
PICKLES = ("pytorch_model.bin", "medusa_lm_head.pt", "hydra_lm_head.pt", "model.bin")

Layout = tuple[dict[str, Any], dict[str, Tensor], str]
"""Configuration, tensors, and the name of the file that they go into."""

_PREDICTION = re.compile(
    r"(mtp\.)fc\.weight|(mtp_layers\.\d+\.)input_proj\.weight|(.+\.)eh_proj\.weight"
)


def layer_prefixes(names: Iterable[str]) -> list[str]:
    """Prefixes of the multi-token prediction layers' tensors among a folder's names."""
    matches = (match for name in names if (match := _PREDICTION.fullmatch(name)))
    return sorted({next(filter(None, match.groups())) for match in matches})


@dataclass
class HeadFiles:
    """Configuration and tensors of a folder.

    Attributes:
        folder: for messages.
        config: of `config.json`.
        tensors: by name.
        files: names of the files that the tensors are from.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: dict[str, Tensor]
    files: Sequence[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: str | Path) -> HeadFiles:
        """Read a folder; safetensors go before pickles, which are read with `weights_only`.

        Of a target's own checkpoint with a layer of multi-token prediction, that layer alone.

        Raises:
            InputError: there is no configuration, no weights, or one that is damaged or holds code.
        """
        folder = Path(folder)
        config = read_object(folder / "config.json")
        paths = cls._weights(folder)
        if paths[0].suffix == ".safetensors":
            names = read_heads(paths)
            own = tuple(layer_prefixes(names))
            if own:
                wanted = [name for name in names if name.startswith(own)]
                if "speculators_model_type" in config:
                    wanted = list(names)
                return cls(folder, config, read_some(paths, wanted), [p.name for p in paths])
        tensors: dict[str, Tensor] = {}
        for path in paths:
            check_regular(path)
            tensors.update(read_tensors(path))
        if not tensors:
            raise InputError(f"{folder} has a config.json, and no tensors in {paths[0].name}")
        return cls(folder, config, tensors, [path.name for path in paths])

    @staticmethod
    def _weights(folder: Path) -> list[Path]:
        for name in SAFETENSORS:
            if (folder / name).exists() or (folder / f"{name}.index.json").exists():
                return weight_files(folder, name)
        for name in PICKLES:
            if (folder / name).exists():
                return [folder / name]
            if (folder / f"{name}.index.json").exists():
                return weight_files(folder, name)
        known = ", ".join((*SAFETENSORS, *PICKLES))
        raise InputError(f"{folder} holds no weights: none of {known}")

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor.

        Raises:
            InputError: there is none of that name.
        """
        if name not in self.tensors:
            raise InputError(f"{self.folder} lacks the tensor {name}")
        return tuple(self.tensors[name].shape)

    def rows(self, name: str) -> int | None:
        """First size of a tensor, such as a vocabulary; None: there is no such tensor."""
        return len(self.tensors[name]) if name in self.tensors else None

    def layers(self) -> int:
        """Number of decoder layers, `layers.0.` and on."""
        return len({name.split(".")[1] for name in self.tensors if name.startswith("layers.")})

    def check_says(self, config: Mapping[str, Any], **found: Any) -> None:
        """Refuse a configuration that contradicts the tensors; keys that it lacks are not compared.

        Raises:
            InputError: they differ, so one of the two is of another head or not all there; or some
                layers have a sliding window, which is not supported.
        """
        windows = [kind for kind in config.get("layer_types") or () if kind != "full_attention"]
        if windows:
            raise InputError(f"{self.folder}: layers of {windows[0]!r} are not supported yet")
        for name, value in found.items():
            said = config.get(name)
            if said is not None and said != value:
                raise InputError(
                    f"{self.folder}: config.json says {name} {said}, and by the tensors it is "
                    f"{value}; is this the whole file, and its own config?"
                )

    def sizes(self, config: Mapping[str, Any]) -> HeadSizes:
        """Sizes of the layers by a configuration, and what the tensors tell of them."""
        attention = "layers.0.self_attn."
        return HeadSizes.of(
            config,
            qkv_bias=f"{attention}q_proj.bias" in self.tensors,
            qk_norm=f"{attention}q_norm.weight" in self.tensors,
        )

    def shapes(self, prefix: str) -> HeadSizes:
        """Sizes of a layer by its tensors alone.

        Its heads count as heads of one number, until the head takes their size from its target.
        """
        attention = f"{prefix}self_attn."
        width, queries = self.shape(f"{attention}o_proj.weight")
        return HeadSizes(
            width,
            self.shape(f"{prefix}mlp.gate_proj.weight")[0],
            queries,
            self.shape(f"{attention}k_proj.weight")[0],
            1,
            qkv_bias=f"{attention}q_proj.bias" in self.tensors,
        )

    def renamed(self, *pairs: tuple[str, str]) -> HeadFiles:
        """The same tensors; a prefix that is first in a pair becomes the second."""

        def name(old: str) -> str:
            for before, after in pairs:
                if old.startswith(before):
                    return after + old[len(before) :]
            return old

        tensors = {name(key): value for key, value in self.tensors.items()}
        return HeadFiles(self.folder, self.config, tensors, self.files)

    def load(self, network: nn.Module, but: Sequence[str] = ()) -> None:
        """Put the tensors into `network`, strictly.

        Args:
            but: names that are not the network's and have been read elsewhere.

        Raises:
            InputError: a tensor is missing, unexpected, of another shape, or holds NaN.
        """
        weights = {name: value for name, value in self.tensors.items() if name not in but}
        check_tensors(network.state_dict(), weights, self.folder, type(network).__name__)
        broken = [
            name
            for name, value in weights.items()
            if value.is_floating_point() and not bool(torch.isfinite(value).all())
        ]
        if broken:
            raise InputError(
                f"{self.folder}: {', '.join(broken[:3])} holds NaN or infinity; tensors that were "
                "never filled are stored so: export the head again"
            )
        network.load_state_dict(weights, assign=True)
