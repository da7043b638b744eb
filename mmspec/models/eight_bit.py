"""Weights at rest in eight bits: half the room of half precision, unpacked before use.

A file `NAME.int8.safetensors` stands for `NAME.safetensors`. A large tensor is cut, flattened, into
blocks of 64 values, kept as whole multiples of a step of the block's own, its largest value over
127: so a value moves by at most 0.4 % of that largest one. Small tensors stay as they are, and the
tables of tokens at a language model's two ends, by which draft heads know their target. So does a
head's `fc`: it joins pictures, text and hidden states of very different sizes.

`python -m mmspec.models.eight_bit pack FOLDER OUT` copies a trained model so, `unpack` back.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from ..errors import InputError
from ..files import atomic, atomic_folder
from ..progress import bar
from .weights import read_tensors

PACKED = ".int8.safetensors"
PLAIN = ".safetensors"
BLOCK = 64
_STEPS = ":steps"  # behind a tensor's name: the steps of its blocks
_LEAST = 4096  # values of a tensor that is worth packing
_WHOLE = ("embed_tokens.weight", "lm_head.weight")


def pack(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file in eight bits, each with its steps `[blocks]` beside it."""
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        whole = name == "fc.weight" or name.endswith(_WHOLE)
        if whole or weight.numel() < _LEAST or not weight.is_floating_point():
            packed[name] = weight
            continue
        blocks = _blocks(weight.float())
        steps = (blocks.abs().amax(-1) / 127).half()
        codes = (blocks / steps.float().clamp(min=1e-12)[:, None]).round().clamp(-127, 127)
        packed[name] = codes.to(torch.int8).flatten()[: weight.numel()].view(weight.shape)
        packed[name + _STEPS] = steps
    return packed


def unpack(
    packed: dict[str, Tensor], told: Callable[[int], object] | None = None
) -> dict[str, Tensor]:
    """Undo `pack`, but for its rounding; the weights are in half precision.

    `told` hears the packed bytes of every tensor as it is done.
    """
    weights: dict[str, Tensor] = {}
    for name, codes in packed.items():
        steps = packed.get(name + _STEPS)
        if steps is not None:
            values = _blocks(codes.float()) * steps.float()[:, None]
            weights[name] = values.flatten()[: codes.numel()].view(codes.shape).half()
        elif not name.endswith(_STEPS):
            weights[name] = codes
        if told is not None:
            told(codes.nbytes)
    return weights


def is_packed(folder: Path) -> bool:
    """True if a model's folder, that of a component or of a draft head, holds packed weights."""
    return any(any(folder.glob(pattern + PACKED)) for pattern in ("*", "*/*", "heads/*/*"))


def pack_folder(source: Path, out: Path) -> None:
    """Copy a trained model's folder with its weights packed, and without its trainings."""
    with atomic_folder(out) as part:
        others = shutil.ignore_patterns("training")
        shutil.copytree(source, part, ignore=others, dirs_exist_ok=True)
        for file in [file for file in part.rglob("*" + PLAIN) if not file.name.endswith(PACKED)]:
            packed = file.with_name(file.name.removesuffix(PLAIN) + PACKED)
            _write(pack(read_tensors(file)), packed)
            file.unlink()


def unpack_folder(folder: Path) -> None:
    """Put plain files in the place of all packed ones.

    Raises:
        InputError: a file can't be read.
    """
    files = sorted(folder.rglob("*" + PACKED))
    with bar("unpacking", "B", sum(file.stat().st_size for file in files)) as shown:
        for file in files:
            weights = unpack(read_tensors(file), shown.update)
            _write(weights, file.with_name(file.name.removesuffix(PACKED) + PLAIN))
            file.unlink()


def _blocks(values: Tensor) -> Tensor:
    """Values in rows of a block each, the last filled up with zeros."""
    flat = values.flatten()
    return F.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)


def _write(weights: dict[str, Tensor], file: Path) -> None:
    with atomic(file) as part:
        save_file(weights, part, metadata={"format": "pt"})
        part.chmod(0o644)  # it is written as its owner's alone


def main() -> None:
    """The command in the head of this file."""
    parser = argparse.ArgumentParser(description="weights at rest in eight bits, and back")
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, help="a new folder")
    args = parser.parse_args()
    if not args.folder.is_dir():
        parser.error(f"no folder {args.folder}")
    if args.out.exists():
        parser.error(f"{args.out} exists; name a new folder")
    try:
        if args.what == "pack":
            pack_folder(args.folder, args.out)
            return
        with atomic_folder(args.out) as part:
            shutil.copytree(args.folder, part, dirs_exist_ok=True)
            unpack_folder(part)
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
