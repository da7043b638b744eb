"""Files of SpecVLM's and FLASH's heads, of which no weights are published: a layout of our own.

Tensors and configuration are EAGLE-1's, and those of the compressor beside them: `compressor.*` and
`gate.*` of SpecVLM, `latent_queries` and `further.weight` of FLASH.
"""

from __future__ import annotations

from ....errors import InputError
from ..published.flash import FlashNetwork
from ..published.head import PublishedHead
from ..published.specvlm import SpecVlmNetwork
from .eagle import common_sizes, eagle_kind
from .files import HeadFiles


def is_specvlm(files: HeadFiles) -> bool:
    """True for a head with SpecVLM's compressor."""
    return "compressor.mix.weight" in files.tensors


def is_flash(files: HeadFiles) -> bool:
    """True for a head with FLASH's queries."""
    return "latent_queries" in files.tensors


def read_specvlm(files: HeadFiles) -> PublishedHead:
    """The head of SpecVLM's; `compressor_choice` says what it does where nobody says otherwise."""
    sizes, common = common_sizes(files)
    choose = str(files.config.get("compressor_choice", "gate"))
    factor, queries, gate = (
        files.shape(name)[0]
        for name in ("compressor.taps", "compressor.resampler.q", "gate.0.weight")
    )
    try:
        network = SpecVlmNetwork(sizes, *common, factor, queries, gate, choose)
    except ValueError as error:
        raise InputError(f"{files.folder}: compressor_choice: {error}") from error
    return eagle_kind(files, sizes, network, "specvlm")


def read_flash(files: HeadFiles) -> PublishedHead:
    """The head of FLASH's."""
    sizes, common = common_sizes(files)
    latents = files.shape("latent_queries")[0]
    block = 1 + files.shape("further.weight")[0] // sizes.hidden_size
    return eagle_kind(files, sizes, FlashNetwork(sizes, *common, latents, block), "flash")
