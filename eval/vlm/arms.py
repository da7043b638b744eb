"""Who answers in a run: methods of ours, the same while their drafter sees nothing, and peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from PIL import Image

from ...methods import SpecConfig
from ...models.heads.specvlm import SpecVlmHead
from ...pipelines.output import VlmOutput
from ...pipelines.vlm.pipeline import VlmPipeline
from .answers import Answers, Arm, Batch, SingleArm
from .blank import Blank, looks
from .elastic import CompressorClock, chosen
from .peers import Peer, peers

PLAIN = "plain"
BLANK = ":blank"


class MethodArm:
    """A method of ours, with a pipeline of its own over the components of another.

    What a method learns of its calls stays with that pipeline, and no method waits for the setting
    up of the one before it.

    Args:
        config: the method.
        pipe: has the components.
        blank: the drafter is shown a grey picture in place of each, and the target sees the true
            one.
    """

    def __init__(self, config: SpecConfig, pipe: VlmPipeline, blank: bool) -> None:
        self.pipe = VlmPipeline(**pipe.components)
        self.pipe.enable_speculation(config)
        self.blank = Blank(self.pipe, config) if blank else None
        head = dict(self.pipe.heads or {}).get(str(config.resolve("vlm").parts["head"]))
        self.clock = CompressorClock(head) if isinstance(head, SpecVlmHead) else None

    def answer(self, asked: Batch, call: Mapping[str, Any]) -> Answers:
        """See `Arm.answer`."""
        generator = [torch.Generator().manual_seed(seed) for seed in asked.seeds]
        if self.blank is not None:
            self.blank.show(asked.pictures, asked.questions)
        if self.clock is not None:
            self.clock.read()
        out = self.pipe(asked.questions, asked.pictures, generator=generator, **call)
        assert isinstance(out, VlmOutput)
        choices = [] if self.clock is None else chosen(out.stats, self.clock.read())
        return Answers(out.text, out.tokens, out.stats, choices=choices)


class PeerArm(SingleArm):
    """transformers' own generation, see `Peer`."""

    def __init__(self, peer: Peer, pipe: VlmPipeline) -> None:
        self.peer, self.pipe = peer, pipe

    def one(
        self, picture: Image.Image, question: str, seed: int, call: Mapping[str, Any]
    ) -> Answers:
        """See `SingleArm.one`."""
        return self.peer.answer(self.pipe, picture, question, seed, call)


def names_of(configs: Mapping[str, SpecConfig], with_peers: bool, with_blank: bool) -> list[str]:
    """The names of a run's arms, in the order of the report."""
    found = list(configs)
    if with_blank:
        found += [name + BLANK for name, config in configs.items() if looks(config)]
    return [*found, *(peers(configs) if with_peers else ())]


def make_arm(name: str, configs: Mapping[str, SpecConfig], pipe: VlmPipeline) -> Arm:
    """The arm of a name of `names_of`, over a pipeline's components."""
    own = name.removesuffix(BLANK)
    if own in configs:
        return MethodArm(configs[own], pipe, own != name)
    return PeerArm(peers(configs)[name], pipe)
