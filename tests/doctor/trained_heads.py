"""A tiny Llama that has learned a small language, and published heads trained on its states.

A text is a topic, `LAG` words at random, and then what the topic makes of the word `LAG` places
before: a permutation of the words. So the next word takes the text's topic, which the target's
hidden states hold, and attention to a place.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from mmspec.models.heads.published.attention import masked_attention
from mmspec.models.heads.published.dflash import DFlashNetwork
from mmspec.models.heads.published.eagle1 import EagleNetwork
from mmspec.models.heads.published.eagle3 import Eagle3Network
from mmspec.models.heads.published.head import PublishedHead
from mmspec.models.heads.published.rotary import HeadRotary
from mmspec.models.heads.published.sizes import HeadSizes
from mmspec.models.heads.published.vocabulary import DraftVocabulary

TOPICS, WORDS, LAG = 5, 12, 3
PAD, MASK, END, UNKNOWN, IMAGE = (TOPICS + WORDS + n for n in range(5))
V = TOPICS + WORDS + 5
PATCHES, LOUD = 4, 10.0  # columns of a picture; its numbers are larger than words, as in LLaVA
WIDTH, LAYERS, LENGTH = 48, 4, 30
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "rms_norm_eps": 1e-6,
    "rope_theta": 100.0,
    "max_position_embeddings": 256,
    "vocab_size": V,
}
_ORDERS = torch.stack(
    [torch.randperm(WORDS, generator=torch.Generator().manual_seed(n)) for n in range(TOPICS)]
)


def texts(count: int, length: int, seed: int) -> torch.Tensor:
    """Texts of the language `[count, length]`."""
    g = torch.Generator().manual_seed(seed)
    topic = torch.randint(TOPICS, (count,), generator=g)
    out = [topic, *(TOPICS + torch.randint(WORDS, (LAG, count), generator=g))]
    while len(out) < length:
        order = (topic + len(out)) % TOPICS
        out.append(TOPICS + _ORDERS[order, out[-LAG] - TOPICS])
    return torch.stack(out, dim=1)


def prompts(count: int) -> list[str]:
    """Beginnings of texts that training rarely saw."""
    return [" ".join(f"w{n}" for n in row) for row in texts(count, 1 + LAG + 2, 10_000).tolist()]


def tokenizer(order: list[int] | None = None) -> PreTrainedTokenizerFast:
    """Words `w0`, `w1`, …; `order` gives them other ids."""
    order = list(range(V)) if order is None else order
    made = Tokenizer(WordLevel({f"w{n}": i for n, i in enumerate(order)}, unk_token=f"w{UNKNOWN}"))
    made.pre_tokenizer = WhitespaceSplit()
    special = {"pad": PAD, "mask": MASK, "eos": END, "unk": UNKNOWN}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, **{f"{name}_token": f"w{n}" for name, n in special.items()}
    )


def fit(parameters, loss, steps: int, rate: float = 3e-3) -> None:
    """Minimise `loss(step)` by AdamW; the rate falls to a tenth."""
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.1)
    for step in range(steps):
        value = loss(step)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()


def embedded_texts(model, ids: torch.Tensor, pictured: bool) -> tuple[torch.Tensor, int]:
    """Inputs of texts, behind a picture or not, and the picture's columns."""
    embedded = model.get_input_embeddings()(ids)
    if not pictured:
        return embedded, 0
    picture = LOUD * torch.randn(len(ids), PATCHES, WIDTH)
    return torch.cat([picture, embedded], dim=1), PATCHES


def trained_target(steps: int = 320) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES,
        num_hidden_layers=LAYERS,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=None,
        initializer_range=0.1,
    )
    model = LlamaForCausalLM(config)
    nn.init.normal_(model.get_input_embeddings().weight, std=0.5)
    _spread(model.model.norm.weight)

    def loss(step: int) -> torch.Tensor:
        ids = texts(32, LENGTH, step)
        embedded, seen = embedded_texts(model, ids, step % 3 == 0)
        logits = model(inputs_embeds=embedded).logits[:, seen + LAG : -1]
        return F.cross_entropy(logits.flatten(0, 1), ids[:, LAG + 1 :].flatten())

    fit(model.parameters(), loss, steps)
    return model.eval().requires_grad_(False)


def seeing(model: LlamaForCausalLM, folder) -> None:
    """Write a LLaVA whose language model is the trained one, with its processor."""
    vision = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
    )
    config = LlavaConfig(vision_config=vision, text_config=model.config, image_token_id=IMAGE)
    config.image_token_index = IMAGE
    torch.manual_seed(4)
    network = LlavaForConditionalGeneration(config)
    network.model.language_model.load_state_dict(model.model.state_dict())
    network.lm_head.load_state_dict(model.lm_head.state_dict())
    for weight in network.model.vision_tower.parameters():
        nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    last = network.model.multi_modal_projector.linear_2
    with torch.no_grad():
        shown = network.model.get_image_features(torch.randn(4, 3, 16, 16)).pooler_output
        last.weight *= LOUD / torch.cat(list(shown)).std()
    network.eval().save_pretrained(folder)
    words, size = tokenizer(), {"height": 16, "width": 16}
    words.add_special_tokens({"additional_special_tokens": [f"w{IMAGE}"]})
    words.image_token = f"w{IMAGE}"
    LlavaProcessor(
        CLIPImageProcessor(size=size, crop_size=size, do_center_crop=False),
        words,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template="{% for m in messages %}{% for c in m['content'] %}"
        f"{{% if c['type'] == 'image' %}}w{IMAGE} {{% else %}}{{{{ c['text'] }}}}{{% endif %}}"
        "{% endfor %}{% endfor %}",
        num_additional_image_tokens=1,
        image_token=f"w{IMAGE}",
    ).save_pretrained(folder)


class States:
    """Batches of texts with the target's inputs and hidden states, the last one both ways.

    Args:
        model: the target.
        pictured: every other batch stands behind pictures.
    """

    def __init__(self, model: LlamaForCausalLM, pictured: bool = False, count: int = 24) -> None:
        self.model, self.batches = model, []
        raw: list[torch.Tensor] = []
        handle = model.model.norm.register_forward_pre_hook(lambda _, args: raw.append(args[0]))
        with torch.no_grad():
            for n in range(count):
                ids = texts(32, LENGTH, 5000 + n)
                embedded, seen = embedded_texts(model, ids, pictured and n % 2 == 1)
                out = model(inputs_embeds=embedded, output_hidden_states=True)
                ids = F.pad(ids, (seen, 0), value=IMAGE)
                self.batches.append((ids, embedded, out.hidden_states, raw[-1]))
        handle.remove()

    def __getitem__(self, step: int):
        return self.batches[step % len(self.batches)]


def _turns(rotary, rows, n):
    places = torch.arange(n)[None].expand(rows, -1)
    return rotary(places, torch.float32)


def _causal(n):
    return torch.full((n, n), -torch.inf).triu(1)[None, None]


def _mixed(out, true, share: float):
    """The true states, and at random places the head's own, one place later."""
    own = torch.cat([true[:, :1], out[:, :-1]], dim=1)
    return torch.where(torch.rand(true.shape[:2])[..., None] < share, own, true)


def _spread(weight: torch.Tensor) -> None:
    """A norm's weights far from 1 and of both signs, as if it had been trained for long."""
    nn.init.uniform_(weight, 0.3, 3.0)
    weight.data *= torch.where(torch.rand(len(weight)) < 0.5, -1.0, 1.0)


def _weights(network, std: float = 0.1) -> None:
    """First weights of a head."""
    for name, weight in network.named_parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=std)
        elif "norm" in name:
            _spread(weight)
        else:
            nn.init.zeros_(weight)


def eagle3(states: States, steps: int = 260, reads=(1, 2, 3)) -> PublishedHead:
    """EAGLE-3 with a vocabulary of its own: the words alone, in an order of its own."""
    torch.manual_seed(1)

    network = Eagle3Network(HeadSizes.of(SIZES), len(reads), WIDTH, None, WORDS)
    _weights(network)
    rotary = HeadRotary(SIZES, SIZES["head_dim"])
    ids = TOPICS + torch.randperm(WORDS)
    own = torch.full((V,), -100)
    own[ids] = torch.arange(WORDS)

    def loss(step: int) -> torch.Tensor:
        text, embedded, hidden, _ = states[step]
        e = embedded[:, 1:-1]
        true = network.fuse(torch.cat([hidden[n] for n in reads], dim=-1)[:, :-2])
        labels = own[text[:, 2:]][:, LAG - 1 :]
        turns, attend = _turns(rotary, *e.shape[:2]), masked_attention(_causal(e.shape[1]))
        total, feed = torch.zeros(()), true
        for _ in range(3):
            out = network(network.joined(e, feed), turns, attend)
            logits = network.lm_head(network.before_output(out))[:, LAG - 1 :]
            total = total + F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            feed = _mixed(out, true, 0.5)
        return total

    fit(network.parameters(), loss, steps)
    config = {**SIZES, "eagle_aux_hidden_state_layer_ids": list(reads)}
    vocabulary = DraftVocabulary(ids - torch.arange(WORDS), V)
    return PublishedHead(network, "eagle3", config, WIDTH, reads, rotary, vocabulary, V, 4).eval()


def eagle1(
    states: States,
    steps: int = 200,
    *,
    raw: bool = False,
    lag: bool = False,
    placeholder: bool = False,
) -> PublishedHead:
    """EAGLE-1; faulty ones are trained on un-normed states, on pairs of the same place, or with the
    placeholder's embedding in the place of pictures.
    """
    torch.manual_seed(2)
    network = EagleNetwork(HeadSizes.of(SIZES), None, bias=True)
    _weights(network)
    rotary = HeadRotary(SIZES, SIZES["head_dim"])
    words = states.model.get_input_embeddings()

    def loss(step: int) -> torch.Tensor:
        text, embedded, hidden, unnormed = states[step]
        if placeholder:
            embedded = words(text)
        first = int((text[0] == IMAGE).sum()) + LAG - 1
        e = embedded[:, :-2] if lag else embedded[:, 1:-1]
        true = (unnormed if raw else hidden[-1])[:, :-2]
        labels = text[:, 2:][:, first:]
        turns, attend = _turns(rotary, *e.shape[:2]), masked_attention(_causal(e.shape[1]))
        total, feed = torch.zeros(()), true
        for _ in range(2):
            out = network(network.joined(e, feed), turns, attend)
            logits = states.model.lm_head(out)[:, first:]
            total = total + F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            feed = _mixed(out, true, 0.5)
        return total

    fit(network.parameters(), loss, steps)
    return PublishedHead(network, "eagle", dict(SIZES), WIDTH, (), rotary, None, V).eval()


def dflash(states: States, steps: int = 260, size: int = 4) -> PublishedHead:
    """DFlash with two layers."""
    torch.manual_seed(3)
    reads = (2, 4)
    network = DFlashNetwork(HeadSizes.of(SIZES), 2, WIDTH, size, MASK, layers=2)
    _weights(network)
    rotary = HeadRotary(SIZES, SIZES["head_dim"])

    def loss(step: int) -> torch.Tensor:
        text, _, hidden, _ = states[step]
        total = torch.zeros(())
        for at in torch.randint(LAG + 1, LENGTH - size, (3,)).tolist():
            fused = network.fuse(torch.cat([hidden[n] for n in reads], dim=-1)[:, :at])
            cos, sin = _turns(rotary, len(text), at + size)
            known = network.context(fused, (cos[:, :at], sin[:, :at]))
            block = torch.full((len(text), size), MASK)
            block[:, 0] = text[:, at]
            words = states.model.get_input_embeddings()(block)

            def attend(layer, q, k, v, known=known):
                keys = torch.cat([known[layer][0], k], dim=2)
                return F.scaled_dot_product_attention(
                    q, keys, torch.cat([known[layer][1], v], dim=2)
                )

            out = network(words, (cos[:, at:], sin[:, at:]), attend)
            logits = states.model.lm_head(out)[:, 1:]
            labels = text[:, at + 1 : at + size]
            total = total + F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return total

    fit(network.parameters(), loss, steps)
    return PublishedHead(network, "dflash", dict(SIZES), WIDTH, reads, rotary, None, V, 3).eval()
