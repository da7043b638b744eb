"""Pictures and a question in, text out: any vision-language model of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from ...errors import InputError
from ...models.heads.judge import JudgeHead
from ...models.heads.published.head import PublishedHead
from ...models.heads.step_router import StepRouter
from ...models.tokenizer_folder import TOKENIZER
from ...models.transformers.prompt_inputs import Question, process_questions
from ...models.transformers.text_folder import is_text, load_text
from ...models.transformers.vlm_folder import check_family, load_vlm
from ...picture import BACKGROUND, open_picture
from ..arguments import checked, is_chat
from ..base import OnStep
from ..load_switch import switched
from ..loading import Loading
from ..output import VlmOutput, VlmStats
from .answering import AnsweringPipeline, check_how
from .chat import Message, conversation

Opened: TypeAlias = Image.Image | str | Path | bytes | np.ndarray[Any, Any] | Tensor
Pictures: TypeAlias = Opened | Sequence[Opened] | None  # of one question, see `open_picture`


class VlmPipeline(AnsweringPipeline):
    """A vision-language model of transformers that answers questions about pictures.

    Folders are in transformers' own layout: the model and its processor as `save_pretrained` writes
    them; a drafter, with its processor if that is another, in the folder `drafter`; draft heads in
    `heads/NAME` and a judge in `judge`, where `mmspec train` puts them.

    Args:
        model: the target, such as `LlavaForConditionalGeneration`.
        processor: its processor, with a chat template.
        drafter: a smaller model, for methods that have one. One that sees is shown the pictures,
            too; a language model drafts for the text alone.
        drafter_processor: the drafter's, where it lays prompts out in another way than the model's.
        drafter_tokenizer: its tokenizer, if it has other tokens than the model: then it drafts
            among those that both have, and reads the prompt in its own.
        heads: draft heads by name, for methods that have one.
        judge: of drafted tokens, for methods that ask one.
        router, advantage_router: of drafted steps, for methods that ask one: how good a step is by
            itself, and whether the model would do better.

    Raises:
        InputError: the model's family is unknown here, or a head has another's name.
    """

    embedded = "vlm"
    instead: ClassVar = AnsweringPipeline.instead | {"images": "give image"}
    homes: ClassVar[dict[str, str]] = {
        "model": ".",
        "processor": ".",
        "drafter_processor": "drafter",
        "drafter_tokenizer": "drafter",
    }

    def __init__(
        self,
        model: PreTrainedModel,
        processor: Any,
        drafter: PreTrainedModel | None = None,
        drafter_processor: Any = None,
        heads: Mapping[str, PublishedHead] | None = None,
        drafter_tokenizer: PreTrainedTokenizerBase | None = None,
        judge: JudgeHead | None = None,
        router: StepRouter | None = None,
        advantage_router: StepRouter | None = None,
    ) -> None:
        super().__init__(locals())
        check_family(model.config.model_type)

    @classmethod
    def load_parts(cls, folder: Path, loading: Loading) -> dict[str, Any]:
        """Load a folder in transformers' layout; a given drafter has only a given processor."""
        given = loading.parts
        own = [name for name in ("model", "processor") if name not in given]
        parts = load_vlm(folder, loading.dtype, own, loading.variant)
        home = folder / "drafter"
        if home.is_dir() and "drafter" not in given and is_text(home):
            own = ["model"]
            if "drafter_tokenizer" not in given and (home / TOKENIZER).is_file():
                own.append("tokenizer")
            small = load_text(home, loading.dtype, own, loading.variant, masked="drafts")
            parts["drafter"] = small["model"]
            if "tokenizer" in small:
                parts["drafter_tokenizer"] = small["tokenizer"]
        elif home.is_dir() and "drafter" not in given:
            two = _lays_out(home, folder) and "drafter_processor" not in given
            own = ["model", "processor"] if two else ["model"]
            small = load_vlm(home, loading.dtype, own, loading.variant)
            parts["drafter"] = small["model"]
            if two:
                parts["drafter_processor"] = small["processor"]
        parts |= cls.load_heads(folder, loading)
        return parts

    @property
    def words(self) -> Any:
        return self.processor.tokenizer

    @property
    def drafter_words(self) -> Any:
        of_processor = getattr(self.drafter_processor, "tokenizer", None)
        return of_processor if self.drafter_tokenizer is None else self.drafter_tokenizer

    @checked
    @switched
    @torch.inference_mode()
    def __call__(
        self,
        prompt: str | list[str] | list[Message] | list[list[Message]],
        image: Pictures | Sequence[Pictures] = None,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        stop: str | list[str] | None = None,
        background: str = BACKGROUND,
        generator: torch.Generator | list[torch.Generator] | None = None,
        streamer: BaseStreamer | None = None,
        return_dict: bool = True,
        callback_on_step_end: OnStep | None = None,
        batch_size: int | None = None,
    ) -> VlmOutput | tuple[list[str], VlmStats]:
        """Answer questions.

        Args:
            prompt: a question, or a list of questions. In place of a question, chat messages as
                transformers' pipelines take them, with text and pictures.
            image: a picture, several for a single question, or None. With a list of questions, a
                list with one such entry for each. A picture is an image of PIL, a path, or an array
                or tensor as of diffusers: bytes `[H, W, 3]`, floats in 0 to 1 `[3, H, W]`; those
                of four dimensions are several pictures. Of messages those pictures that they have
                places for and do not hold themselves.
            max_new_tokens: of an answer.
            temperature, top_k, top_p: warpers; temperature 0 is greedy; top_k 0: all tokens.
            stop: strings that end an answer, which keeps them.
            background: the colour that shows where a picture is transparent.
            generator: one for all answers, or a list with one each; the same seed gives the same
                answer, alone or in a batch (but for goodput and faser lengths: the clock decides).
            streamer: of transformers; it is given tokens as soon as every answer has them.
            return_dict: a `VlmOutput`, else the tuple (text, stats).
            callback_on_step_end: called as `callback(pipe, round, tokens so far, {"context": …,
                "stats": …})` after every verify round, see `TokenImagePipeline`; set
                `pipe.interrupt = True` in it to stop.
            batch_size: questions that are answered at a time, as in transformers' pipelines; the
                next takes its row as soon as one is done. Answers stay the same. A callback's
                context is of these rows, and its `samples` say whose they are. All questions are
                read in first, padded to the longest. None: all at a time.

        Raises:
            InputError: an argument is out of range, a picture can't be read, the processor refuses
                it, or a prompt is longer than the model's context.
        """
        pictures, questions = _requests(prompt, image, background)
        check_how(max_new_tokens, temperature, top_k, top_p)
        self.check_batch(batch_size, len(questions), streamer)
        inputs = process_questions(self.processor, pictures, questions, self.model)
        own = None
        if self.drafter_processor is not None and self.prepared().drafting.drafter is not None:
            own = process_questions(self.drafter_processor, pictures, questions, self.model)
        how = max_new_tokens, temperature, top_k, top_p, stop
        beside = generator, streamer, callback_on_step_end
        out = self.answer(
            inputs, own, self.processor.tokenizer, *how, *beside, batch_size=batch_size
        )
        return out if return_dict else (out.text, out.stats)

    def prompt_tokens(self, prompt: str | list[Message], image: Pictures = None) -> int:
        """Tokens that the model reads of a question and its pictures, as a call takes them.

        Raises:
            InputError: see the call.
        """
        pictures, questions = _requests(prompt, image, BACKGROUND)
        inputs = process_questions(self.processor, pictures, questions, self.model)
        return inputs["input_ids"].shape[1]


def _lays_out(home: Path, folder: Path) -> bool:
    """True if a drafter's folder has a processor that differs from the model's."""
    own = ("processor_config.json", "preprocessor_config.json")
    if not any((home / name).exists() for name in own):
        return False
    shared = (*own, "tokenizer.json", "chat_template.jinja")
    files = ([place / name for name in shared] for place in (home, folder))
    here, there = ([f.read_bytes() if f.is_file() else None for f in found] for found in files)
    return here != there


def _requests(
    prompt: Any, image: Pictures | Sequence[Pictures], background: str
) -> tuple[list[list[Any]], list[Question]]:
    """Pictures of every question, opened, and the questions."""
    alone = isinstance(prompt, str) or is_chat(prompt)
    questions = [prompt] if alone else list(prompt)
    if not questions or not all(one.strip() if isinstance(one, str) else one for one in questions):
        raise InputError("the question is empty; say what to answer")
    given = _single(image)
    many: list[Any] = [given]
    if not alone:
        many = list(given) if isinstance(given, list | tuple) else [given] * len(questions)
    if len(many) != len(questions):
        raise InputError(f"{len(many)} pictures for {len(questions)} questions; give one each")
    opened, asked = [], []
    for seen, question in zip(map(_single, many), questions, strict=True):
        one = seen if isinstance(seen, list | tuple) else [] if seen is None else [seen]
        if not isinstance(question, str):
            question, one = conversation(question, one)
        opened.append([open_picture(picture, background) for picture in one])
        asked.append(question)
    return opened, asked


def _single(pictures: Any) -> Any:
    """A batch of arrays as a list of them; anything else stays."""
    return list(pictures) if getattr(pictures, "ndim", 0) == 4 else pictures
