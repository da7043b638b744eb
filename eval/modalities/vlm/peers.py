"""transformers' own `generate` on the same models, counted and timed as our loop is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, PreTrainedModel

from ....engine.stats import SpecStats
from ....methods import SpecConfig
from ....models.transformers.vocabulary_map import same_words
from ....pipelines.vlm.answering import AnsweringPipeline
from ...variants import RefusedError
from .answers import Answers

PEER = "transformers:"  # what the names of peers begin with
PEERS = PEER, "llama.cpp:"
"""What the names of rows begin with that are other libraries'."""
REFUSED = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError)
"""What transformers raises at models and options that it can't put together."""


@dataclass(frozen=True)
class Peer:
    """A way to call transformers' `generate`.

    Attributes:
        assisted: the pipeline's drafter is the assistant. It is shown no picture.
        lookup: tokens a round that are copied from the prompt; 0: none.
        length: tokens a round that an assistant drafts; None: what transformers sets, a number that
            ends early where the assistant is unsure.
    """

    assisted: bool = False
    lookup: int = 0
    length: int | None = None

    @property
    def drafts(self) -> bool:
        """True if it speculates, which transformers does for one prompt at a time."""
        return self.assisted or self.lookup > 0

    def answer(
        self,
        pipe: AnsweringPipeline,
        tokenizer: Any,
        inputs: Callable[[], dict[str, Tensor]],
        seed: int,
        call: Mapping[str, Any],
    ) -> Answers:
        """The answer to one prompt, or without drafts to several.

        Args:
            inputs: makes those of the pipeline's model, which is timed, too.
            call: arguments as of the pipeline's call.

        Calls of the target are counted by a hook on its forward pass. The first one reads the
        prompt and emits already. `seconds` holds what comes before any network as "encode", all up
        to the end of the target's first call as "prefill", and what comes behind by whose it is: so
        the loop's seconds leave out a call that ours has in it.
        """
        model, assistant = pipe.model, pipe.drafter if self.assisted else None
        options: dict[str, Any] = {"max_new_tokens": call.get("max_new_tokens", 128)}
        temperature = call.get("temperature", 0.0)
        options["do_sample"] = temperature != 0
        if temperature:
            cuts = {"top_k": call.get("top_k", 0), "top_p": call.get("top_p", 1.0)}
            options |= {"temperature": float(temperature), **cuts}
        if call.get("stop") is not None:
            options |= {"stop_strings": call["stop"], "tokenizer": tokenizer}
        if assistant is not None:
            options["assistant_model"] = assistant
            own = pipe.drafter_words
            if own is not None and not same_words(tokenizer, own):
                # told again as text (UAG), or at a temperature drawn among shared tokens (USD)
                options |= {"tokenizer": tokenizer, "assistant_tokenizer": own}
        if self.lookup:
            options["prompt_lookup_num_tokens"] = self.lookup
        watch = _Watch()
        with ExitStack() as stack:
            stack.enter_context(watch.on(model, "target"))
            if assistant is not None:
                stack.enter_context(watch.on(assistant, "draft"))
                stack.enter_context(_drafting(assistant, self.length))
            on_gpu = model.device.type == "cuda"
            stack.enter_context(torch.random.fork_rng([model.device] if on_gpu else []))
            stack.enter_context(torch.inference_mode())
            torch.manual_seed(seed)
            given = inputs()
            rows = GenerationMixin.generate(model, **given, **options)
            ended = time.perf_counter()
        answers = rows[:, given["input_ids"].shape[1] :].tolist()
        if len(answers) > 1:  # behind an end there is padding
            ends = model.generation_config.eos_token_id
            last = {*(ends if isinstance(ends, list) else [ends])}
            answers = [until(tokens, last) for tokens in answers]
        text = tokenizer.batch_decode(answers, skip_special_tokens=True)
        counts = [len(tokens) for tokens in answers]
        stats = watch.stats(counts, given["input_ids"].shape[1], ended)
        return Answers(text, answers, stats)

    def answer_or_refuse(self, *given: Any) -> Answers:
        """Answer one prompt; errors of transformers become a `RefusedError`."""
        try:
            return self.answer(*given)
        except REFUSED as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise RefusedError(why) from error


def until(tokens: list[int], ends: set[int]) -> list[int]:
    """Tokens up to the first that ends an answer, itself included."""
    found = (n for n, token in enumerate(tokens, start=1) if token in ends)
    return tokens[: next(found, len(tokens))]


def peers(configs: Mapping[str, SpecConfig]) -> dict[str, Peer]:
    """The peers of a run's methods, by name: plain decoding, and what ours have a like of."""
    found = {"transformers:plain": Peer()}
    for config in configs.values():
        length = drafted(config)
        if config.method == "draft":
            found.setdefault("transformers:assisted", Peer(assisted=True, length=length))
            found.setdefault("transformers:assisted-default", Peer(assisted=True))
        if config.method == "prompt-lookup":
            found.setdefault("transformers:prompt-lookup", Peer(lookup=int(length or 0)))
    return found


def drafted(config: SpecConfig) -> int | None:
    """Tokens a round that a method drafts: where a policy chooses them, its usual number."""
    told = (one.resolve("vlm").options for one in (config, SpecConfig(config.method)))
    return next((n for o in told if (n := o.get("num_draft_tokens")) is not None), None)


@dataclass
class _Watch:
    """Calls of networks: whose, from when to when, and how many tokens they read."""

    begun: float = field(default_factory=time.perf_counter)
    calls: list[tuple[str, float, float, int]] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def on(self, model: PreTrainedModel, who: str) -> Iterator[None]:
        """Watch a model's forward passes."""

        def before(*_: Any) -> None:
            self._since = time.perf_counter()

        def after(_: Any, args: Any, given: dict[str, Any], out: Any) -> None:
            read = given["input_ids"] if "input_ids" in given else args[0]
            self.calls.append((who, self._since, time.perf_counter(), read.shape[1]))

        hooks = (
            model.register_forward_pre_hook(before),
            model.register_forward_hook(after, with_kwargs=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def stats(self, emitted: list[int], prompt: int, ended: float) -> SpecStats:
        """The counters of generations of `emitted` tokens behind prompts of so many.

        Of several, which nobody drafts for, each took a call a token.
        """
        target = [call for call in self.calls if call[0] == "target"]
        read = sum(tokens for *_, tokens in target) - prompt + 1
        first = target[0][2]
        seconds = {"encode": self.calls[0][1] - self.begun, "prefill": first - self.calls[0][1]}
        for name in ("draft", "target"):
            later = (call for call in self.calls if call[0] == name and call[2] > first)
            seconds[name] = sum(end - since for _, since, end, _ in later)
        seconds["update"] = ended - first - seconds["draft"] - seconds["target"]
        alone = len(emitted) == 1
        calls = [len(target)] if alone else [*emitted]
        return SpecStats(
            "transformers",
            calls=calls,
            drafted=[0] * len(emitted),
            accepted=[count - own for count, own in zip(emitted, calls, strict=True)],
            emitted=[*emitted],
            target_tokens=[read] if alone else [*emitted],
            seconds=seconds,
        )


@contextmanager
def _drafting(assistant: PreTrainedModel, length: int | None) -> Iterator[None]:
    """The assistant drafts so many tokens a round, whether it is sure or not."""
    config = assistant.generation_config
    wanted = {
        "num_assistant_tokens": length,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    if length is None:
        wanted = {}
    before = {name: getattr(config, name) for name in wanted}
    vars(config).update(wanted)
    try:
        yield
    finally:
        vars(config).update(before)
