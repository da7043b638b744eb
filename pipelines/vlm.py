"""Pictures and a question in, text out: any vision-language model of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from ..config import SpecConfig
from ..engine.stats import SpecStats
from ..engine.types import Context
from ..errors import InputError
from ..models.asked import asked
from ..models.heads.base import DraftHead
from ..models.heads.named import DraftHeads, load_head
from ..models.placement import Device
from ..models.vlm_folder import check_family, load_vlm
from ..picture import BACKGROUND, Picture, open_picture
from .base import SpeculativePipeline, check_folder, locate, row_seeds
from .generate import Speculation
from .output import VlmOutput

Pictures: TypeAlias = "Picture | Sequence[Picture] | None"  # of one question
_KEPT = 8  # configurations whose networks stay prepared


class VlmPipeline(SpeculativePipeline):
    """A vision-language model of transformers that answers questions about pictures.

    Folders are in transformers' own layout: the model and its processor as `save_pretrained` writes
    them; a drafter, with its processor if that is another, in the folder `drafter`; draft heads in
    `heads/NAME`, where `mmspec train vlm-head` puts them.

    Args:
        model: the target, such as `LlavaForConditionalGeneration`.
        processor: its processor, with a chat template.
        drafter: a smaller model of the same vocabulary, for methods that have one. It is shown the
            pictures too.
        drafter_processor: the drafter's, where it lays prompts out in another way than the model's.
        heads: draft heads by name, for methods that have one.

    Raises:
        InputError: the model's family is unknown here, or a head has another's name.
    """

    embedded = "vlm"
    modality = "vlm"
    _optional_components: ClassVar = ["drafter", "drafter_processor", "heads"]

    def __init__(
        self,
        model: PreTrainedModel,
        processor: Any,
        drafter: PreTrainedModel | None = None,
        drafter_processor: Any = None,
        heads: Mapping[str, DraftHead] | None = None,
    ) -> None:
        super().__init__()
        self.register_modules(
            model=model,
            processor=processor,
            drafter=drafter,
            drafter_processor=drafter_processor,
            heads=DraftHeads(heads) if heads else None,
        )
        check_family(model.config.model_type)
        self._known: dict[SpecConfig, Speculation] = {}

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | None = None,
        dtype: torch.dtype = torch.float32,
        device_map: str | Mapping[str, Device] | None = None,
    ) -> VlmPipeline:
        """Load a folder in transformers' layout, or a hub repository.

        Args:
            path: the folder or the repository's id; None: the embedded model.
            dtype: of the weights.
            device_map: must be None: the whole model is on one device.

        Raises:
            InputError: the folder or a file is missing or unreadable, a tensor does not fit, the
                family is unknown, or a device map is given.
        """
        if device_map is not None:
            raise InputError("device_map spreads LlamaGen alone; use .to() for this model")
        folder = locate(path, cls.embedded)
        check_folder(folder, cls.__name__, "config.json")
        parts = load_vlm(folder, dtype)
        home = folder / "drafter"
        if home.is_dir():
            small = load_vlm(home, dtype, with_processor=_lays_out(home, folder))
            parts |= {"drafter": small["model"], "drafter_processor": small.get("processor")}
        homes = sorted(path.parent for path in folder.glob("heads/*/config.json"))
        return cls(**parts, heads={home.name: load_head(home, dtype) for home in homes})

    def save_pretrained(self, save_directory: str | Path, max_shard_size: str = "10GB") -> None:
        """Write every component as `from_pretrained` reads it.

        Args:
            save_directory: folder, made if it does not exist.
            max_shard_size: largest weights file ("5GB").
        """
        folder = Path(save_directory)
        self.model.save_pretrained(folder, max_shard_size=max_shard_size)
        self.processor.save_pretrained(folder)
        if self.drafter is not None:
            self.drafter.save_pretrained(folder / "drafter", max_shard_size=max_shard_size)
        if self.drafter_processor is not None:
            self.drafter_processor.save_pretrained(folder / "drafter")
        for name, head in (self.heads or {}).items():
            head.save_pretrained(folder / "heads" / name, max_shard_size=max_shard_size)

    @torch.inference_mode()
    def __call__(
        self,
        prompt: str | list[str],
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
        callback_on_step_end: Callable[[Any, int, int, dict[str, Any]], Any] | None = None,
    ) -> VlmOutput | tuple[list[str], SpecStats]:
        """Answer questions.

        Args:
            prompt: a question, or a list of questions.
            image: a picture, several for a single question, or None. With a list of questions, a
                list with one such entry for each. A picture is an image of PIL, a path, or an array
                or tensor as of diffusers: bytes `[H, W, 3]`, floats in 0 to 1 `[3, H, W]`; those
                of four dimensions are several pictures.
            max_new_tokens: of an answer.
            temperature, top_k, top_p: warpers; temperature 0 is greedy; top_k 0: all tokens.
            stop: strings that end an answer, which keeps them.
            background: the colour that shows where a picture is transparent.
            generator: one for all answers, or a list with one each; the same seed gives the same
                answer, alone or in a batch (goodput lengths follow the clock and may not).
            streamer: of transformers; it is given tokens as soon as every answer has them.
            return_dict: a `VlmOutput`, else the tuple (text, stats).
            callback_on_step_end: called as `callback(pipe, round, tokens so far, {"context": …,
                "stats": …})` after every verify round, see `TokenImagePipeline`; set
                `pipe.interrupt = True` in it to stop.

        Raises:
            InputError: an argument is out of range, a picture can't be read, the processor refuses
                it, or a prompt is longer than the model's context.
        """
        pictures, questions = _requests(prompt, image, background)
        check_call(max_new_tokens, temperature, top_k, top_p)
        speculation = self._speculation(self.speculation.serving(self.modality))
        inputs: dict[str, Any] = asked(self.processor, pictures, questions, self.model)
        if self.drafter_processor is not None and speculation.drafting.drafter is not None:
            own = asked(self.drafter_processor, pictures, questions, self.model)
            inputs["drafter_inputs"] = own
        self._interrupt = False

        def on_round(context: Context) -> bool:
            if callback_on_step_end is not None:
                done = min(context.base)
                told = {"context": context, "stats": self.model.speculation_stats}
                callback_on_step_end(self, context.round, done, told)
            return self._interrupt

        speculation.on_round = on_round
        how: dict[str, Any] = {"do_sample": temperature != 0}
        if temperature:
            speculation.seeds = row_seeds(generator, len(questions))
            how |= {"temperature": float(temperature), "top_k": top_k, "top_p": top_p}
        if stop is not None:
            how |= {"stop_strings": stop, "tokenizer": self.processor.tokenizer}
        rows = speculation.generate(
            **inputs, max_new_tokens=max_new_tokens, streamer=streamer, **how
        )
        assert isinstance(rows, Tensor)
        stats: SpecStats = self.model.speculation_stats
        answers = rows[:, inputs["input_ids"].shape[1] :]
        tokens = [row[:n].tolist() for row, n in zip(answers, stats.emitted, strict=True)]
        text = self.processor.batch_decode(tokens, skip_special_tokens=True)
        return VlmOutput(text=text, tokens=tokens, stats=stats) if return_dict else (text, stats)

    def check_speculation(self, config: SpecConfig) -> None:
        config = config.serving(self.modality)
        if set(config.needs) <= {"drafter"}:  # what else there may be is said by `Drafting`
            super().check_speculation(config)
        self._speculation(config)

    def _drafts(self, config: SpecConfig) -> tuple[PreTrainedModel | None, DraftHead | None]:
        """The draft model and the draft head of a complete configuration."""
        small: PreTrainedModel | None = self.drafter if "drafter" in config.needs else None
        return small, dict(self.heads or {}).get(str(config.head))

    def _speculation(self, config: SpecConfig) -> Speculation:
        """That of a complete configuration; the latest are kept, for they learn what calls cost."""
        known, networks = self._known.pop(config, None), self._drafts(config)
        if known is None or known.model is not self.model or known.drafting.networks != networks:
            known = Speculation(self.model, config, *networks)
        self._known[config] = known
        if len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        return known


def _lays_out(home: Path, folder: Path) -> bool:
    """Whether a drafter's folder has a processor, and another one than the model's."""
    files = ("processor_config.json", "preprocessor_config.json")
    if not any((home / name).exists() for name in files):
        return False
    shared = (*files, "tokenizer.json", "chat_template.jinja")
    here, there = ([_content(place / name) for name in shared] for place in (home, folder))
    return here != there


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _requests(
    prompt: str | list[str], image: Pictures | Sequence[Pictures], background: str
) -> tuple[list[list[Any]], list[str]]:
    """Pictures of every question, opened, and the questions."""
    questions = [prompt] if isinstance(prompt, str) else list(prompt)
    if not questions or not all(asked.strip() for asked in questions):
        raise InputError("the question is empty; say what to answer")
    given = _single(image)
    many: list[Any] = [given]
    if not isinstance(prompt, str):
        many = list(given) if isinstance(given, list | tuple) else [given] * len(questions)
    if len(many) != len(questions):
        raise InputError(f"{len(many)} pictures for {len(questions)} questions; give one each")
    opened = []
    for seen in map(_single, many):
        one = seen if isinstance(seen, list | tuple) else [] if seen is None else [seen]
        opened.append([open_picture(picture, background) for picture in one])
    return opened, questions


def _single(pictures: Any) -> Any:
    """A batch of arrays as a list of them; anything else stays."""
    return list(pictures) if getattr(pictures, "ndim", 0) == 4 else pictures


def check_call(max_new_tokens: int, temperature: float, top_k: int, top_p: float) -> None:
    """Raise an `InputError` if an argument of a call is out of range."""
    if not 1 <= max_new_tokens <= 2**20:
        raise InputError(f"max_new_tokens must be from 1 to {2**20}, not {max_new_tokens}")
    # a smaller temperature would overflow the logits
    if temperature != 0 and not 1e-6 <= temperature <= 100:
        raise InputError(f"temperature must be 0 or from 1e-6 to 100, not {temperature}")
    if not 0 <= top_k <= 2**31:
        raise InputError(f"top_k must be from 0 to {2**31}, not {top_k}")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p must be above 0 and at most 1, not {top_p}")
