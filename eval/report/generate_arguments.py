"""Trials of the arguments of transformers' `generate`: is each honoured under speculation?"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
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

from ...errors import InputError, reason
from ...models.transformers.tiny import tiny
from ...pipelines.vlm.generate import disable_speculation, enable_speculation
from .table import escape

NEW = 12  # tokens that a trial writes
PROMPTS = ((0, 0, 3, 9, 4, 9), (5, 9, 4, 5, 9, 4))  # the first is padded
SAMPLED = {"do_sample": True, "top_k": 1}  # chance that can fall one way alone
SCORED = {"return_dict_in_generate": True, "output_scores": True}
ENDS = {"eos_token_id": [11, 13], "pad_token_id": 0}
TOLD = {"return_dict_in_generate": True}


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


# what each argument is tried with, and what has to stand beside it
TRIALS: dict[str, tuple[Any, dict[str, Any]]] = {
    "inputs": (None, {}),  # every trial gives them
    "generation_config": (GenerationConfig(suppress_tokens=[20, 30], max_new_tokens=NEW), {}),
    "max_length": (14, {"max_new_tokens": None}),
    "max_new_tokens": (5, {}),
    "min_length": (11, ENDS),
    "min_new_tokens": (6, ENDS),
    "eos_token_id": ([11, 13], {"pad_token_id": 0}),
    "pad_token_id": (1, {"eos_token_id": [11, 13]}),
    "bos_token_id": (2, {}),
    "max_time": (60.0, {}),
    "stop_strings": (["_", "T"], ENDS),  # with the tokenizer that they need
    "stopping_criteria": ([_divided], ENDS),
    "do_sample": (True, {"top_k": 1}),
    "temperature": (0.5, SAMPLED | SCORED),
    "top_k": (1, {"do_sample": True}),
    "top_p": (0.01, {"do_sample": True, "top_k": 0}),
    "min_p": (0.999, {"do_sample": True, "top_k": 0}),
    "top_h": (0.01, {"do_sample": True, "top_k": 1}),
    "typical_p": (0.9, SAMPLED),
    "epsilon_cutoff": (0.01, SAMPLED),
    "eta_cutoff": (0.01, SAMPLED),
    "num_return_sequences": (2, SAMPLED),
    "repetition_penalty": (1.5, {}),
    "no_repeat_ngram_size": (2, {}),
    "bad_words_ids": ([[23], [30, 31]], {}),
    "sequence_bias": ([[[30, 30], -4.0], [[9], 4.0]], {}),
    "suppress_tokens": ([20, 30], {}),
    "begin_suppress_tokens": ([30], {}),
    "forced_bos_token_id": (3, {}),
    "forced_eos_token_id": (7, {}),
    "encoder_repetition_penalty": (1.5, {}),
    "encoder_no_repeat_ngram_size": (2, {}),
    "exponential_decay_length_penalty": ((3, 1.5), ENDS),
    "renormalize_logits": (True, SCORED),
    "remove_invalid_values": (True, {}),
    "guidance_scale": (2.0, {}),
    "negative_prompt_ids": (torch.tensor([[7, 7, 8], [6, 7, 9]]), {"guidance_scale": 2.0}),
    "negative_prompt_attention_mask": (
        torch.tensor([[0, 1, 1], [1, 1, 1]]),
        {"guidance_scale": 2.0, "negative_prompt_ids": torch.tensor([[7, 7, 8], [6, 7, 9]])},
    ),
    "watermarking_config": (WatermarkingConfig(bias=6.0), {}),
    "logits_processor": ([_odd], {}),
    "prefix_allowed_tokens_fn": (_allowed, {}),
    "streamer": (_Heard, {}),  # made anew; it takes prompts one at a time
    "return_dict_in_generate": (True, {}),
    "output_scores": (True, TOLD),
    "output_logits": (True, TOLD),
    "output_attentions": (True, TOLD),
    "output_hidden_states": (True, TOLD),
    "use_cache": (False, {}),
    "cache_implementation": ("static", {}),
    "cache_config": ({}, {}),
    "max_cache_len": (60, {}),
    "past_key_values": (DynamicCache, TOLD),  # made anew
    "prefill_chunk_size": (2, {}),
    "disable_compile": (True, {}),
    "compile_config": (CompileConfig(), {}),
    "low_memory": (True, {}),
    "synced_gpus": (True, {}),
    "num_beams": (2, {}),
    "num_beam_groups": (2, {"num_beams": 2}),
    "diversity_penalty": (1.0, {"num_beams": 2, "num_beam_groups": 2}),
    "length_penalty": (2.0, {"num_beams": 2}),
    "early_stopping": (True, {"num_beams": 2}),
    "constraints": (["none"], {"num_beams": 2}),
    "force_words_ids": ([[3]], {"num_beams": 2}),
    "penalty_alpha": (0.5, {"top_k": 4}),
    "dola_layers": ("low", {}),
    "token_healing": (True, {}),
    "custom_generate": ("their/loop", {}),
    "assistant_model": ("a model", {}),
    "prompt_lookup_num_tokens": (3, {}),
    "use_mtp": (True, {}),
}
# of encoders' outputs, of the model that assists, and what transformers keeps for itself
BESIDE = {
    "continuous_batching_config",
    "speculation_type",
    "decoder_start_token_id",
    "is_assistant",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "max_matching_ngram_size",
    "assistant_early_exit",
    "assistant_lookbehind",
    "target_lookbehind",
    "assistant_ensemble_weight",
    "transformers_version",
    "_from_model_config",
    "kwargs",
    "self",
}


@dataclass(frozen=True)
class ArgumentTrial:
    """Outcome of one argument.

    Attributes:
        name: of the argument.
        verdict: "honoured", "refused", or "refused by transformers" for models of this kind.
        note: what the refusal says.
    """

    name: str
    verdict: str
    note: str = ""


def argument_trials(method: str = "sjd") -> Iterator[ArgumentTrial]:
    """Generate with and without speculation, once an argument.

    The model is a tiny random one of Llama's kind in float64, its outputs are compared token by
    token, and scores where they are asked for.
    """
    model = tiny("llama", torch.float64)
    model.generation_config.eos_token_id = None
    for name in TRIALS:
        yield _tried(model, method, name)


def generate_arguments(method: str = "sjd") -> str:
    """The trials as a table in Markdown."""
    lines = ["| argument | under speculation | note |", "|---|---|---|"]
    for one in argument_trials(method):
        lines.append(f"| `{one.name}` | {one.verdict} | {escape(one.note)} |")
    return f"With transformers {transformers.__version__}:\n\n" + "\n".join(lines) + "\n"


def _tried(model: PreTrainedModel, method: str, name: str) -> ArgumentTrial:
    theirs, fault = _outcome(model, name)
    without, _ = _outcome(model, name, beside=True)
    enable_speculation(model, method)
    try:
        ours = _said(model, name)
    except InputError as error:
        return ArgumentTrial(name, "refused", _short(error))
    except Exception as error:
        if fault is None or type(error) is not type(fault):
            raise
        return ArgumentTrial(name, "refused by transformers", _short(error))
    finally:
        disable_speculation(model)
    if not _all_alike(ours, theirs):
        return ArgumentTrial(name, "NOT HONOURED", "" if fault is None else _short(fault))
    idle = TRIALS[name][0] is not None and _all_alike(ours, without)
    note = "changes nothing in this trial" if idle else ""
    return ArgumentTrial(name, "honoured", note)


def _outcome(
    model: PreTrainedModel, name: str, beside: bool = False
) -> tuple[list[Any], Exception | None]:
    """Hear what transformers' own loop makes of an argument, or only of what stands beside it."""
    try:
        return _said(model, name, beside), None
    except Exception as error:  # whatever it raises
        return [], error


def _said(model: PreTrainedModel, name: str, bare: bool = False) -> list[Any]:
    """Collect all that a call gives, one thing after another; `bare` goes without the argument."""
    value, beside = TRIALS[name]
    ids = torch.tensor(PROMPTS)
    asked = {"max_new_tokens": NEW, "do_sample": False, **beside}
    heard: Any = None
    if name == "streamer":
        heard = value = value()
    if name in ("streamer", "past_key_values"):  # of one row
        ids = ids[1:]
    if name == "past_key_values":
        value = DynamicCache(config=model.config)
    if name == "stop_strings":
        asked["tokenizer"] = _letters()
    given = {} if bare or value is None else {name: value}
    if given and name == "generation_config":
        asked = {}
    asked |= given
    out = model.generate(ids, attention_mask=(ids > 0).long(), **asked)
    if isinstance(out, Tensor):
        return [out, *([] if heard is None else heard.values)]
    if name == "past_key_values" and not bare:
        heard = [x for layer in value.layers for x in (layer.keys, layer.values)]
    return [out.sequences, *(out.scores or ()), *(out.logits or ()), *(heard or ())]


def _all_alike(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(map(_alike, ours, theirs))


def _alike(ours: Any, theirs: Any) -> bool:
    """True for the same tokens; scores agree but for rounding, and behind a row's end with none."""
    if not isinstance(ours, Tensor):
        return bool(ours == theirs)
    if ours.shape != theirs.shape or not ours.is_floating_point():
        return torch.equal(ours, theirs)
    return torch.allclose(ours, theirs, atol=1e-5)


def _short(error: Exception) -> str:
    """The first sentence of what an error says."""
    return reason(error).split(". ")[0].partition("; ")[0][:110]


def _letters() -> PreTrainedTokenizerFast:
    """A tokenizer whose ids are letters."""
    words = {chr(ord("A") + n): n for n in range(40)}
    core = Tokenizer(WordLevel(words, unk_token="A"))
    core.pre_tokenizer = Split(Regex("."), "isolated")
    core.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="A")


def arguments() -> set[str]:
    """Names of the arguments that this transformers' `generate` takes, by name or in a config."""
    named = set(inspect.signature(transformers.GenerationMixin.generate).parameters)
    return named | set(GenerationConfig().to_dict())
