"""Base of the pipelines that write text: the same generation, whatever the prompt is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from ...engine.draft import Context
from ...errors import InputError
from ...methods import ResolvedConfig, SpecConfig
from ...methods.parts.routing import ROUTERS
from ...models.heads.loading import DraftHeads, load_head, load_judge, load_router
from ...models.step_reward import StepReward
from ..arguments import checked
from ..base import OnStep, SpeculativePipeline, row_seeds
from ..habits import GENERATE, refuses
from ..loading import Loading
from ..output import VlmOutput, VlmStats
from ..prompts import check_between, check_sampling
from ..stopping import StopText
from .beside import beside_of
from .generate import SpeculativeGeneration
from .memory import Memory
from .request import Listener

_BY_GENERATE = "call mmspec.enable_speculation(pipe.model); then pipe.model.generate takes it"
_PER_PROMPT = ("num_images_per_prompt", "num_videos_per_prompt")
_OF_PICTURES = ("height", "width", "num_frames", "fps", "output_type", *_PER_PROMPT)
_OF_GUIDANCE = ("guidance_scale", "cfg_scale", "true_cfg_scale", "negative_prompt")
_OF_PROMPTS = ("add_generation_prompt", "padding", "truncation", "return_tensors")
_KEPT = 8  # configurations whose networks stay prepared


@refuses(
    dict.fromkeys(("generate", "predict", "forward"), "call it: pipe(prompt, max_new_tokens=…)")
    | {"chat": "call it with chat messages as prompt; a TextPipeline goes on in Chat(pipe)"}
)
class AnsweringPipeline(SpeculativePipeline):
    """A language model of transformers, with a drafter or draft heads beside it or none.

    Subclasses have the components `model`, `drafter`, `drafter_tokenizer`, `heads`, `judge`,
    `router` and `advantage_router`, and make the inputs of prompts.
    Whoever is its `listener` hears of all answers, see `OnlineLearner`; a `reward` scores drafted
    steps where a method asks one.
    """

    listener: Listener | None = None
    reward: StepReward | None = None
    modality = "vlm"
    without: ClassVar = "prompt-lookup"
    index = "config.json"
    instead: ClassVar = SpeculativePipeline.instead | {
        **dict.fromkeys(GENERATE, _BY_GENERATE),
        **dict.fromkeys(_OF_PICTURES, "it answers in text; leave it out"),
        **dict.fromkeys(_OF_GUIDANCE, "an answer has no guidance; leave it out"),
        **dict.fromkeys(_OF_PROMPTS, "prompts are laid out and padded here; leave it out"),
        "assistant_model": "give from_pretrained the model as drafter, and enable method 'draft'",
        "do_sample": "give temperature: above 0 it draws, at 0 it is greedy",
        "generate_kwargs": "give them as arguments of the call",
        "callback": "give callback_on_step_end, or streamer",
        "max_length": "give max_new_tokens",
        "max_tokens": "give max_new_tokens",
        "messages": "give them as prompt",
        "num_beams": "it follows one text a prompt; leave it out",
        "num_inference_steps": "an answer takes as many calls as its tokens need; give "
        "max_new_tokens",
        "num_return_sequences": "give the prompt as often, in a list",
        "return_full_text": "an answer never holds its prompt; leave it out",
        "stop_sequence": "give stop",
        "stop_strings": "give stop",
        "text": "give it as prompt",
    }

    def __init__(self, declared: Mapping[str, Any]) -> None:
        heads = declared["heads"]
        super().__init__({**declared, "heads": DraftHeads(heads) if heads else None})
        self._known: dict[ResolvedConfig, SpeculativeGeneration] = {}

    def _forget(self) -> None:
        super()._forget()
        self._known.clear()

    @staticmethod
    def load_heads(folder: Path, loading: Loading) -> dict[str, Any]:
        """The draft heads, the judge and the routers of a folder, unless others are given."""
        found: dict[str, Any] = {}
        if "heads" not in loading.parts:
            homes = sorted(path.parent for path in folder.glob("heads/*/config.json"))
            # whose files do not say it
            kinds = {home: "msd" if home.name == "msd" else None for home in homes}
            found["heads"] = {h.name: load_head(h, loading.dtype, kinds[h]) for h in homes}
        beside = {"judge": load_judge, **dict.fromkeys(ROUTERS, load_router)}
        for name, load in beside.items():
            if name not in loading.parts and (folder / name).is_dir():
                found[name] = load(folder / name, loading.dtype)
        return found

    def answer(
        self,
        inputs: Mapping[str, Any],
        drafter_inputs: Mapping[str, Any] | None,
        tokenizer: Any,
        max_new_tokens: int,
        temperature: float,
        top_k: int,
        top_p: float,
        stop: str | Sequence[str] | None,
        generator: torch.Generator | list[torch.Generator] | None,
        streamer: BaseStreamer | None,
        callback: OnStep | None,
        memory: Memory | None = None,
        batch_size: int | None = None,
    ) -> VlmOutput:
        """Answers to prompts.

        Args:
            inputs: those of the model, of B left-padded prompts.
            drafter_inputs: those of a draft model; None: the same.
            callback: called as `callback(pipe, round, tokens so far, state)`.
            memory: of the conversation that the one prompt goes on with; None: it is forgotten.
            batch_size: prompts that are answered at a time; None: all.
        """
        speculation = self.prepared()
        self.interrupt = False

        def on_round(context: Context) -> bool:
            state = {"context": context, "stats": self.model.speculation_stats}
            done = min(context.base)
            return self._after_round(callback, context.round, done, **state)

        speculation.on_round, speculation.memory = on_round, memory
        speculation.listener, speculation.at_once = self.listener, batch_size
        speculation.guard = self.switch.guard
        how: dict[str, Any] = {"do_sample": temperature != 0}
        rows = len(inputs["input_ids"])
        if temperature:
            speculation.seeds = row_seeds(generator, rows)
            how |= {"temperature": float(temperature), "top_k": top_k, "top_p": top_p}
        if stop is not None:
            how["stopping_criteria"] = [StopText(tokenizer, stop, alone=True)]
        ends = self.model.generation_config
        if ends.pad_token_id is None and ends.eos_token_id is None:
            how["pad_token_id"] = 0  # fills up what is cut off below; else the shortest counts
        if drafter_inputs is not None:
            how["drafter_inputs"] = drafter_inputs
        out = speculation.generate(
            **inputs, max_new_tokens=max_new_tokens, streamer=streamer, **how
        )
        assert isinstance(out, Tensor)
        stats: VlmStats = self.model.speculation_stats
        answers = out[:, inputs["input_ids"].shape[1] :]
        tokens = [row[:n].tolist() for row, n in zip(answers, stats.emitted, strict=True)]
        text = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return VlmOutput(text=text, tokens=tokens, stats=stats)

    @property
    def words(self) -> Any:
        """The model's tokenizer."""
        return self.tokenizer

    @property
    def drafter_words(self) -> Any:
        """The drafter's tokenizer; None: the model's."""
        return self.drafter_tokenizer

    def check_batch(self, size: int | None, prompts: int, streamer: BaseStreamer | None) -> None:
        """Raise an `InputError` if prompts can't be answered so many at a time."""
        if size is None:
            return
        check_between("batch_size", size, 1, 2**20)
        if size < prompts and streamer is not None:
            raise InputError(
                f"a streamer tells all answers at once, and here {size} of {prompts} prompts are "
                "answered at a time; leave streamer or batch_size out"
            )
        if size < prompts and self.listener is not None:
            raise InputError(
                f"a listener hears of whole batches, and here {size} of {prompts} prompts are "
                "answered at a time; leave batch_size out"
            )

    @checked
    def check_speculation(self, config: SpecConfig) -> ResolvedConfig:
        resolved = config.resolve(self.modality)
        if set(resolved.needs) <= {"drafter"}:  # what else there may be is said by `Drafting`
            super().check_speculation(config)
        self.prepared(resolved)
        return resolved

    def prepared(self, config: ResolvedConfig | None = None) -> SpeculativeGeneration:
        """Generation of a configuration, None: this pipeline's.

        The latest are kept, for they learn what calls cost.
        """
        config = self.speculation.resolve(self.modality) if config is None else config
        known, beside = self._known.pop(config, None), beside_of(self, config)
        if known is None or known.model is not self.model or known.drafting.beside != beside:
            known = SpeculativeGeneration(self.model, config.config, beside)
        self._known[config] = known
        if len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        return known


def check_how(max_new_tokens: int, temperature: float, top_k: int, top_p: float) -> None:
    """Raise an `InputError` if an answer can't be so long, or be drawn so."""
    check_between("max_new_tokens", max_new_tokens, 1, 2**20)
    check_sampling(temperature, top_k, top_p)
