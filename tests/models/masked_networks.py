"""Small masked networks that answer, and what they say by transformers' own forward."""

from __future__ import annotations

import torch
from sizes import SMALL
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.transformers.causal import CausalDecoder
from mmspec.models.transformers.masked_target import answering

PROMPT, PADS = [1, 0, 3, 2], (0, 2, 1)
VOCAB, SHORT = 3, [1, 0]


def network(kind=LlamaForCausalLM, config=LlamaConfig, vocab=16, shifted=False, seed=0):
    made = config(**SMALL | dict(vocab_size=vocab, num_key_value_heads=2, head_dim=8))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind(made)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    model.config.mask_token_id, model.config.shifted_logits = vocab - 1, shifted
    return model.double().eval()


def target(model, rows=(0,), limit=14, prompt=PROMPT):
    decoder = CausalDecoder(model)
    ids = torch.tensor([prompt]).repeat(len(rows), 1)
    mask = torch.arange(len(prompt)) >= torch.tensor([PADS[row] for row in rows])[:, None]
    setting = Setting(decoder.embeddings[ids], mask, None, lambda x: x.softmax(-1), limit, 0, 8)
    return answering(GuidedDecoder(decoder, setting))


def slow(model, text):
    """Law behind a text: of one mask behind it, by transformers' own forward."""
    behind = [] if model.config.shifted_logits else [model.config.mask_token_id]
    logits = model(input_ids=torch.tensor([[*text, *behind]]), use_cache=False).logits
    return logits[0, -1].softmax(-1)


def joint(model, limit, prefix=()):
    """The model's law at block size 1 of the next `limit` tokens."""
    if len(prefix) == limit:
        return {prefix: 1.0}
    law, found = slow(model, [*SHORT, *prefix]).tolist(), {}
    for token, share in enumerate(law):
        found |= {k: share * v for k, v in joint(model, limit, (*prefix, token)).items()}
    return found
