"""Language models of transformers over our cache: the laws of their own full forward pass."""

from __future__ import annotations

import copy

import pytest
import torch
from sizes import SMALL
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from mmspec.engine.draft import Draft
from mmspec.engine.laws import OneHot
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.models.guided import GuidedDecoder
from mmspec.models.prefill import WHOLE
from mmspec.models.setting import Setting
from mmspec.models.transformers.causal import CausalDecoder, cache_name

VOCAB = 20
SIZES = SMALL | dict(vocab_size=VOCAB, num_key_value_heads=2)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3]]
CLOSE = 1e-5  # transformers turns positions in float32


@pytest.fixture(params=[(LlamaConfig, LlamaForCausalLM), (Qwen2Config, Qwen2ForCausalLM)])
def model(request):
    config, kind = request.param
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = kind(config(**SIZES))
        for weight in made.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    return made.eval()


def guided(model, prompts=PROMPTS, limit=12) -> GuidedDecoder:
    width = max(len(p) for p in prompts)
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.arange(width) >= torch.tensor([[width - len(p)] for p in prompts])
    decoder = CausalDecoder(model)
    prefix = decoder.embeddings[ids]
    out = GuidedDecoder(decoder, Setting(prefix, mask, None, Warp(), limit, 0, scratch=9))
    out.start(len(prompts))
    return out


def truth(model, tokens: list[int]) -> torch.Tensor:
    """The law after each of the tokens, in one pass without a cache."""
    return model(torch.tensor([tokens])).logits[0].softmax(-1)


@torch.inference_mode()
def test_laws_of_ragged_rows(model):
    """Left-padded prompts, rows at different places, and a rollback over what was drafted."""
    decoder, rng = guided(model), torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCAB, (3, 10), generator=rng)
    laws = decoder.extend(tokens[:, :4], [-1, -1, -1])
    for row, prompt in enumerate(PROMPTS):
        # the first input is the prompt's last token, whatever id was given
        expected = truth(model, prompt + tokens[row, 1:4].tolist())[len(prompt) - 1 :]
        assert torch.allclose(laws[row], expected, atol=CLOSE)
    start = [2, 0, 1]  # tokens in front of these stay, later ones are overwritten
    again = torch.randint(VOCAB, (3, 3), generator=rng)
    laws = decoder.extend(again, start)
    for row, (prompt, kept) in enumerate(zip(PROMPTS, start, strict=True)):
        text = prompt + tokens[row, 1 : kept + 1].tolist() + again[row].tolist()
        assert torch.allclose(laws[row], truth(model, text)[-3:], atol=CLOSE)


@torch.inference_mode()
def test_laws_of_trees_and_the_kept_branch(model):
    decoder = guided(model)
    first = torch.tensor([[0, 7], [0, 8], [0, 2]])
    decoder.extend(first, [-1] * 3)
    parents = torch.tensor([[-1, -1, 0, 2], [-1, 0, 0, 1], [-1, 0, 1, 2]])
    nodes = torch.randint(VOCAB, (3, 4), generator=torch.Generator().manual_seed(2))
    root = torch.tensor([[5], [6], [7]])
    draft = Draft(nodes, torch.tensor([4, 4, 4]), OneHot(), parents)
    laws = decoder.extend(torch.cat([root, nodes], 1), [1, 1, 1], draft)
    kept = torch.tensor([[0, 2, 3], [0, 1, 3], [0, 1, 2]])  # a branch of each tree
    texts = []
    for row, prompt in enumerate(PROMPTS):
        before = [*prompt, int(first[row, 1]), int(root[row])]
        assert torch.allclose(laws[row, 0], truth(model, before)[-1], atol=CLOSE)
        for node in range(4):
            path, at = [], node
            while at >= 0:
                path.insert(0, at)
                at = int(parents[row, at])
            text = before + nodes[row, path].tolist()
            assert torch.allclose(laws[row, node + 1], truth(model, text)[-1], atol=CLOSE)
        texts.append(before + nodes[row, kept[row]].tolist())
    decoder.keep([1, 1, 1], kept)
    last = torch.tensor([[1], [2], [3]])
    laws = decoder.extend(last, [5, 5, 5])
    for row, text in enumerate(texts):
        assert torch.allclose(laws[row, 0], truth(model, [*text, int(last[row])])[-1], atol=CLOSE)


@torch.inference_mode()
def test_hidden_states_and_the_output_layer_apart(model):
    """What `watched` calls leave behind, in the prefix and behind it, and the same laws."""
    decoder, plain = guided(model), guided(model)
    decoder.watch(prefix=WHOLE)
    decoder.start(len(PROMPTS))
    prefix, tokens = decoder.hidden, torch.tensor([[0, 7, 3], [0, 8, 1], [0, 2, 2]])
    laws = decoder.extend(tokens, [-1] * 3)
    assert torch.allclose(laws, plain.extend(tokens, [-1] * 3), atol=CLOSE)
    for row, prompt in enumerate(PROMPTS):
        text = torch.tensor([prompt + tokens[row, 1:].tolist()])
        out = model(text, output_hidden_states=True)
        states, inside = out.hidden_states[-1][0], len(prompt) - 1
        assert torch.allclose(prefix[row, prefix.shape[1] - inside :], states[:inside], atol=CLOSE)
        assert torch.allclose(decoder.hidden[row], states[inside:], atol=CLOSE)
        assert torch.allclose(decoder.decoder.logits(states), out.logits[0], atol=CLOSE)


def test_an_output_layer_that_is_not_all_is_refused():
    """Granite scales its logits behind it."""
    tiny = GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=0.5)).eval()
    decoder = guided(tiny)
    decoder.watch()
    with pytest.raises(InputError, match="does more with its hidden states than its output layer"):
        decoder.extend(torch.tensor([[1]] * 3), [-1] * 3)
    tiny = GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=1.0)).eval()
    decoder = guided(tiny)
    decoder.watch()
    assert decoder.extend(torch.tensor([[1]] * 3), [-1] * 3).shape == (3, 1, VOCAB)


@pytest.mark.parametrize("use", [[(1,)] * 3, [(0,), (0, 1), (1,)], [(), (0,), (1,)]], ids=str)
@torch.inference_mode()
def test_some_layers_alone(model, use):
    """Row by row the model with those layers only, behind a prompt that all layers have read."""
    decoder, tokens, name = guided(model), torch.tensor([[7], [8], [9]]), cache_name(model)
    first = decoder.extend(tokens, [-1] * 3)
    found = decoder.extend(tokens, [0] * 3, use=use)
    for row, prompt in enumerate(PROMPTS):
        cache = getattr(model(torch.tensor([prompt]), use_cache=True), name)
        part, whole = copy.copy(model), model.model.layers
        part._modules = {**model._modules, "model": copy.copy(model.model)}
        kept = torch.nn.ModuleList(whole[n] for n in use[row])
        part.model._modules = {**model.model._modules, "layers": kept}
        logits = part(tokens[row][None], **{name: cache}, use_cache=True).logits
        assert torch.allclose(found[row, 0], logits[0, -1].softmax(-1), atol=CLOSE)
        # the model itself is as it was, and so is the decoder with all of its layers
        assert torch.allclose(first[row, 0], truth(model, prompt)[-1], atol=CLOSE)
    assert all("forward" not in vars(block) for block in model.model.layers)
    again = decoder.extend(tokens, [0] * 3)
    for row, prompt in enumerate(PROMPTS):
        text = [*prompt, int(tokens[row])]
        assert torch.allclose(again[row, 0], truth(model, text)[-1], atol=CLOSE)


def test_layers_that_are_elsewhere_can_t_run_alone(model):
    tiny = copy.deepcopy(model)
    decoder = guided(tiny)
    tiny.model.layers = torch.nn.ModuleDict({str(n): x for n, x in enumerate(tiny.model.layers)})
    with pytest.raises(InputError, match="no list of layers to choose from"):
        decoder.extend(torch.tensor([[1]] * 3), [-1] * 3, use=[(0,)] * 3)


def test_more_text_than_positions_is_refused(model):
    with pytest.raises(InputError, match="it has 64 positions"):
        guided(model, limit=60)
