"""Against an independent peer: transformers' assisted generation on the same small language model.

The models are trained here, on captions of the shapes world, for a minute: their sizes are real and
their text is easy. Both sides decode greedily, in float32, from the same prompts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.null import NullDrafter
from mmspec.draft.prompt_lookup import PromptLookupDrafter
from mmspec.engine.accept.greedy import GreedyRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Drafter, Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.eval.measure.bootstrap import ratio_interval
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.target import TokenTarget
from mmspec.models.transformers.causal import CausalDecoder
from mmspec.train.tokenizers import caption_tokenizer
from mmspec.worlds.shapes import TASKS, sample_prompt

GAMMA, NGRAM, PROMPT, NEW = 4, 2, 24, 96
TARGET = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_attention_heads=4)
DRAFTER = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2)


def against_assisted_generation(pipe: Any, samples: int, steps: int = 200) -> dict[str, Any]:
    """Calls, seconds and text of `draft` and `prompt-lookup`, theirs and ours, prompt by prompt.

    `seconds_ratio` is theirs over ours, paired. transformers refuses a batch with an assistant, so
    `batch_8` has our seconds per row beside those of one row.
    """
    target, assistant = (train(sizes, steps) for sizes in (TARGET, DRAFTER))
    texts = corpus(np.random.default_rng(10**6), max(samples, 8), PROMPT)
    out: dict[str, Any] = {
        name: _compare(name, target, assistant, texts[:samples])
        for name in ("plain", "draft", "prompt-lookup")
    }
    _ours("draft", target, assistant, texts[:8])
    alone = [_ours("draft", target, assistant, texts[i : i + 1]) for i in range(8)]
    together = _ours("draft", target, assistant, texts[:8])
    out["batch_8"] = {
        "same_text": float(torch.equal(torch.cat([a[0] for a in alone]), together[0])),
        "seconds_alone": statistics.fmean(a[2] for a in alone),
        "seconds_per_row": together[2] / 8,
        "transformers": _refusal(target, assistant, texts[:8]),
    }
    return out


def corpus(rng: np.random.Generator, rows: int, length: int) -> Tensor:
    """Token ids `[rows, length]` of captions, one after the other."""
    tokenizer = caption_tokenizer()
    lines = []
    for _ in range(rows):
        ids: list[int] = []
        while len(ids) < length:
            task = TASKS[int(rng.integers(len(TASKS)))]
            ids += tokenizer(sample_prompt(rng, task).prompt).input_ids
        lines.append(ids[:length])
    return torch.tensor(lines)


def train(sizes: dict[str, int], steps: int, batch: int = 32) -> LlamaForCausalLM:
    """A Llama of these sizes after `steps` of next-token prediction on captions."""
    vocab = len(caption_tokenizer())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=vocab, max_position_embeddings=256, **sizes)
        )
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        ids = corpus(rng, batch, 64)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval()


def _compare(name: str, target: Any, assistant: Any, texts: Tensor) -> dict[str, float]:
    """Run a method on every prompt, both sides in turn."""
    pairs = []
    for i in range(-1, len(texts)):
        ids = texts[max(i, 0)][None]
        sides: list[Callable[..., tuple[Tensor, float, float]]] = [_theirs, _ours]
        turn = 1 if i % 2 else -1
        results = {side: side(name, target, assistant, ids) for side in sides[::turn]}
        if i >= 0:
            pairs.append((results[_theirs], results[_ours]))
    ratio, interval = ratio_interval([theirs[2] / ours[2] for theirs, ours in pairs])
    return {
        "same_text": statistics.fmean(float(torch.equal(t[0], o[0])) for t, o in pairs),
        "calls_theirs": statistics.fmean(t[1] for t, _ in pairs),
        "calls_ours": statistics.fmean(o[1] for _, o in pairs),
        "seconds_theirs": statistics.median(t[2] for t, _ in pairs),
        "seconds_ours": statistics.median(o[2] for _, o in pairs),
        "seconds_ratio": ratio,
        "seconds_ratio_low": interval[0],
        "seconds_ratio_high": interval[1],
    }


def _theirs(name: str, target: Any, assistant: Any, ids: Tensor) -> tuple[Tensor, float, float]:
    """Text `[B, NEW]`, calls of the target and seconds of transformers' `generate`."""
    calls: list[int] = []
    options: dict[str, Any] = {}
    if name == "draft":
        assistant.generation_config.num_assistant_tokens = GAMMA
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0
        options["assistant_model"] = assistant
    if name == "prompt-lookup":
        options |= {"prompt_lookup_num_tokens": GAMMA, "max_matching_ngram_size": NGRAM}
    hook = target.register_forward_hook(lambda *_: calls.append(1))
    started = time.perf_counter()
    out = target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        pad_token_id=0,
        eos_token_id=None,
        **options,
    )
    seconds = time.perf_counter() - started
    hook.remove()
    return out[:, ids.shape[1] :], float(len(calls)), seconds


def _ours(name: str, target: Any, assistant: Any, ids: Tensor) -> tuple[Tensor, float, float]:
    """The same of our loop."""
    rows, gamma = len(ids), 0 if name == "plain" else GAMMA

    def guided(model: Any) -> GuidedDecoder:
        decoder = CausalDecoder(model)
        prefix, mask = decoder.embeddings[ids], torch.ones_like(ids, dtype=torch.bool)
        return GuidedDecoder(decoder, Setting(prefix, mask, None, Warp(0.0), NEW, 0, gamma + 1))

    started = time.perf_counter()
    drafter: Drafter = NullDrafter()
    if name == "draft":
        drafter = ModelDrafter(guided(assistant))
    if name == "prompt-lookup":
        drafter = PromptLookupDrafter(NGRAM, prompt=ids)
    engine = Engine(
        TokenTarget(guided(target)),
        drafter,
        GreedyRule(),
        ConstantLength(gamma),
        ProductionCoins([0] * rows),
    )
    stats = SpecStats()
    context = run(engine, rows, NEW, stats)
    seconds = time.perf_counter() - started
    return context.tokens[:, :NEW].clone(), stats.nfe, seconds


def _refusal(target: Any, assistant: Any, ids: Tensor) -> str:
    """The error of transformers for a batch with an assistant; empty: it takes one."""
    try:
        _theirs("draft", target, assistant, ids)
    except ValueError as error:
        return str(error).splitlines()[0]
    return ""
