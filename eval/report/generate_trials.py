"""Trials of the arguments of transformers' `generate`: what each is given, and what is read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor
from transformers import (
    CompileConfig,
    DynamicCache,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    WatermarkingConfig,
)

from ...models.transformers.cache_view import CACHE_NAMES

NEW = 12  # tokens that a trial writes
PROMPTS = ((0, 0, 3, 9, 4, 9), (5, 9, 4, 5, 9, 4))  # the first is padded
ENDS = {"eos_token_id": [11, 13], "pad_token_id": 0}
TOLD = {"return_dict_in_generate": True}
SCORED = {**TOLD, "output_scores": True}
SAMPLED = {"do_sample": True, "top_k": 1}  # chance that can fall one way alone
DRAWN = {"do_sample": True, "top_k": 0, **SCORED}
ASSISTED = "it is of assisted generation, which is refused"
NEGATIVE = {"guidance_scale": 2.0, "negative_prompt_ids": torch.tensor([[7, 7, 8], [6, 7, 9]])}


def everything(out: Any, value: Any) -> list[Any]:
    """Collect what a call gives out: its type, tokens, scores, and whether a cache is among it."""
    if isinstance(out, Tensor):
        return [type(out).__name__, out]
    cached = any(out.get(name) is not None for name in CACHE_NAMES)
    scores = *(out.scores or ()), *(out.logits or ())
    return [type(out).__name__, out.sequences, cached, *scores]


@dataclass(frozen=True)
class Trial:
    """Trial of an argument, which is given to a call and left out of another.

    Attributes:
        value: of the argument; None: the trial gives it anyway.
        beside: arguments that stand beside it in both calls.
        make: makes the value anew for each call, for the model.
        prompts: ids, 0 for padding; None: the call gets none.
        alone: True if nothing else says how to generate.
        read: what of the outcome is compared, of what the call gives out and the value.
        around: the call happens within it.
        note: said of it on the page.
        idle: why it has no effect here; empty: it must have one.
    """

    value: Any = None
    beside: dict[str, Any] = field(default_factory=dict)
    make: Callable[[PreTrainedModel], Any] | None = None
    prompts: tuple[tuple[int, ...], ...] | None = PROMPTS
    alone: bool = False
    read: Callable[[Any, Any], list[Any]] = everything
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    note: str = ""
    idle: str = ""


def _first_law(out: Any, value: Any) -> list[Any]:
    """Read the law that the first token is drawn from, in logits."""
    return [out.scores[0]]


def _drawn(out: Any, value: Any) -> list[Any]:
    """Read the law, and whether rows of the same prompt go on in several ways."""
    return [out.scores[0], len(out.sequences.unique(dim=0)) > 1]


def _stopped(out: Any, value: Any) -> list[Any]:
    """Read the first token, and whether the text was cut: a call writes one token or several."""
    width = len(PROMPTS[0])
    return [out[:, : width + 1], out.shape[1] < width + NEW]


def _heard(out: Any, value: Any) -> list[Any]:
    return [*everything(out, value), *([] if value is None else value.values)]


def _kept(out: Any, value: Any) -> list[Any]:
    layers = [] if value is None else value.layers
    return [*everything(out, value), *(x for layer in layers for x in (layer.keys, layer.values))]


def _clock() -> AbstractContextManager[Any]:
    """A clock that goes on by a second whenever someone looks at it."""
    return patch("time.time", side_effect=itertools.count())


def _odd(input_ids: Tensor, scores: Tensor) -> Tensor:
    """Forbids the token that was said last."""
    return scores.scatter(1, input_ids[:, -1:], -torch.inf)


def _divided(input_ids: Tensor, scores: Any) -> Tensor:
    return input_ids.sum(1) % 5 == 0


class _Heard:
    """A streamer."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def put(self, value: Tensor) -> None:
        self.values += value.flatten().tolist()

    def end(self) -> None:
        self.values.append("end")


def _allowed(prompt: int, text: Tensor) -> list[int]:
    return [n for n in range(3, 40) if n % 3 != (int(text[-1]) + prompt) % 3]


def letters() -> PreTrainedTokenizerFast:
    """A tokenizer whose ids are letters."""
    words = {chr(ord("A") + n): n for n in range(40)}
    core = Tokenizer(WordLevel(words, unk_token="A"))
    core.pre_tokenizer = Split(Regex("."), "isolated")
    core.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="A")


TRIALS: dict[str, Trial] = {
    "inputs": Trial(),
    "generation_config": Trial(
        GenerationConfig(suppress_tokens=[20, 30], max_new_tokens=NEW), alone=True
    ),
    "max_length": Trial(14, {"max_new_tokens": None}),
    "max_new_tokens": Trial(5),
    "min_length": Trial(11, ENDS),
    "min_new_tokens": Trial(6, ENDS),
    "eos_token_id": Trial([11, 13], {"pad_token_id": 0}),
    "pad_token_id": Trial(1, {"eos_token_id": [11, 13]}),
    "bos_token_id": Trial(3, prompts=None),
    "max_time": Trial(
        0.5, read=_stopped, around=_clock, note="stops behind the call of the model that it ends in"
    ),
    "stop_strings": Trial(["_", "T"], {**ENDS, "tokenizer": letters()}),
    "stopping_criteria": Trial([_divided], ENDS),
    "do_sample": Trial(True, {"temperature": 0.5, **SCORED}, prompts=PROMPTS[1:] * 16, read=_drawn),
    "temperature": Trial(0.5, SAMPLED | SCORED),
    "top_k": Trial(1, {"do_sample": True}),
    "top_p": Trial(0.01, {"do_sample": True, "top_k": 0}),
    "min_p": Trial(0.999, {"do_sample": True, "top_k": 0}),
    "top_h": Trial(0.3, DRAWN, read=_first_law),
    "typical_p": Trial(0.6, DRAWN, read=_first_law),
    "epsilon_cutoff": Trial(0.02, DRAWN, read=_first_law),
    "eta_cutoff": Trial(0.03, DRAWN, read=_first_law),
    "num_return_sequences": Trial(2, SAMPLED),
    "repetition_penalty": Trial(1.5),
    "no_repeat_ngram_size": Trial(2),
    "bad_words_ids": Trial([[23], [30, 31]]),
    "sequence_bias": Trial([[[30, 30], -4.0], [[9], 4.0]]),
    "suppress_tokens": Trial([20, 30]),
    "begin_suppress_tokens": Trial([30]),
    "forced_bos_token_id": Trial(
        3, prompts=((5,), (9,)), note="behind a prompt of one token, as there"
    ),
    "forced_eos_token_id": Trial(7),
    "encoder_repetition_penalty": Trial(1.5),
    "encoder_no_repeat_ngram_size": Trial(1, prompts=(tuple(range(3, 40, 2)),)),
    "exponential_decay_length_penalty": Trial((3, 1.5), ENDS),
    "renormalize_logits": Trial(True, SCORED),
    "remove_invalid_values": Trial(True, {"bad_words_ids": [[23], [30]], **SCORED}),
    "guidance_scale": Trial(2.0),
    "negative_prompt_ids": Trial(NEGATIVE["negative_prompt_ids"], {"guidance_scale": 2.0}),
    "negative_prompt_attention_mask": Trial(torch.tensor([[0, 1, 1], [1, 1, 1]]), NEGATIVE),
    "watermarking_config": Trial(WatermarkingConfig(bias=6.0)),
    "logits_processor": Trial([_odd]),
    "prefix_allowed_tokens_fn": Trial(_allowed),
    "streamer": Trial(make=lambda model: _Heard(), prompts=PROMPTS[1:], read=_heard),
    "return_dict_in_generate": Trial(True),
    "output_scores": Trial(True, TOLD),
    "output_logits": Trial(True, TOLD),
    "output_attentions": Trial(True, TOLD),
    "output_hidden_states": Trial(True, TOLD),
    "use_cache": Trial(False, TOLD, note="none is given out; the loop keeps one all the same"),
    "cache_implementation": Trial(
        "static", idle='the loop\'s cache is static; "dynamic" is taken, others are refused'
    ),
    "cache_config": Trial({}, idle="it is for quantized caches, which are refused"),
    "max_cache_len": Trial(60, idle="the cache is as long as the prompt and the output"),
    "past_key_values": Trial(
        beside=TOLD,
        make=lambda model: DynamicCache(config=model.config),
        prompts=PROMPTS[1:],
        read=_kept,
    ),
    "prefill_chunk_size": Trial(2, idle="calls read so many tokens of the prompt, 1024 without it"),
    "disable_compile": Trial(True, idle="the loop compiles nothing"),
    "compile_config": Trial(CompileConfig(), idle="the loop compiles nothing"),
    "low_memory": Trial(True, idle="it is for beam search, which is refused"),
    "synced_gpus": Trial(True),
    "num_beams": Trial(2),
    "num_beam_groups": Trial(2, {"num_beams": 2}),
    "diversity_penalty": Trial(1.0, {"num_beams": 2, "num_beam_groups": 2}),
    "length_penalty": Trial(2.0, {"num_beams": 2}),
    "early_stopping": Trial(True, {"num_beams": 2}),
    "constraints": Trial(["none"], {"num_beams": 2}),
    "force_words_ids": Trial([[3]], {"num_beams": 2}),
    "penalty_alpha": Trial(0.5, {"top_k": 4}),
    "dola_layers": Trial("low"),
    "token_healing": Trial(True),
    "custom_generate": Trial("their/loop"),
    "assistant_model": Trial("a model"),
    "prompt_lookup_num_tokens": Trial(3),
    "use_mtp": Trial(True),
    "assistant_early_exit": Trial(2),
    "num_assistant_tokens": Trial(5, idle=ASSISTED),
    "num_assistant_tokens_schedule": Trial("heuristic", idle=ASSISTED),
    "assistant_confidence_threshold": Trial(0.9, idle=ASSISTED),
    "max_matching_ngram_size": Trial(1, idle=ASSISTED),
    "assistant_lookbehind": Trial(4, idle=ASSISTED),
    "target_lookbehind": Trial(4, idle=ASSISTED),
    "assistant_ensemble_weight": Trial(0.5, idle=ASSISTED),
    "speculation_type": Trial("dflash", idle=ASSISTED),
    "decoder_start_token_id": Trial(3, idle="it is for encoders, which are refused"),
    "continuous_batching_config": Trial(
        {}, idle="it is of batches that take requests in as they come"
    ),
}
# what is no argument, and what transformers keeps for itself
BESIDE = {"is_assistant", "transformers_version", "_from_model_config", "kwargs", "self"}
