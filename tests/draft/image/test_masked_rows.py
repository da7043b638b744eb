"""Rows of a picture by a masked transformer: its laws against passes from scratch, exactness."""

from __future__ import annotations

import pytest
import torch
from toys import EXACT, distance, whole_loop
from watched_drafts import joint

from mmspec import ImagePipeline, SpecConfig
from mmspec.draft.masked import masked_rows
from mmspec.engine.draft import Context
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.models.llamagen.transformer import LlamaGenTransformer, causal_mask
from mmspec.models.target import TokenTarget


def network(like: LlamaGenTransformer, seed: int = 5) -> LlamaGenTransformer:
    """A masked network of the same vocabulary."""
    config = {name: value for name, value in like.config.items() if name[0] != "_"}
    config |= {"n_layer": 2, "mask_token_id": like.config.vocab_size}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: LlamaGenTransformer = LlamaGenTransformer(**config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    return model.to(like.output.weight.dtype).eval()


def passes(model, prefix, mask, text: list[int], filled: list[int]) -> torch.Tensor:
    """Logits `[K, V]` of a block behind a text of one row, without a cache; -1 is masked."""
    mask_token, width = model.config.mask_token_id, prefix.shape[1]
    block = [mask_token if token < 0 else token for token in filled]
    tokens = torch.tensor([[*text, *block]])
    h = torch.cat([prefix, model.tok_embeddings(tokens)], dim=1)
    seen = causal_mask(mask, h.shape[1])
    seen[..., width + len(text) :, width:] = 0  # the block reads all of it
    for layer in model.layers:
        h = layer(h, model.rotary()[: h.shape[1]], seen)
    return model.output(model.norm(h[0, -len(block) :]))


def guided_law(model, guided, row: int, text: list[int], filled: list[int]) -> torch.Tensor:
    """Laws `[K, V]` of a block, under guidance."""
    _, prefix, mask = guided
    with_, without = (
        passes(model, prefix[r : r + 1], mask[r : r + 1], text, filled)
        for r in (row, row + len(prefix) // 2)
    )
    return (without + 2 * (with_ - without)).softmax(-1)


@torch.inference_mode()
@pytest.mark.parametrize("steps", [1, 2])
def test_laws_are_those_of_passes_from_scratch(steps, tiny_llamagen, guided_rows):
    """Ragged rows, round after round; after the first of two steps half of a block is filled."""
    model = network(tiny_llamagen())
    guided = guided_rows(model, [0, 2], scratch=12)
    drafter = masked_rows(guided[0], 4, steps, "top")
    context = Context.empty(2, 16)
    drafter.start(context)
    generator = torch.Generator().manual_seed(0)
    for ends in ([0, 0], [3, 1], [4, 6]):
        context.tokens[:] = torch.randint(16, context.tokens.shape, generator=generator)
        context.lengths, context.base = torch.tensor(ends), ends
        drafter.model._known = [-1, -1]  # all of the text is another
        laws = drafter.model.block(context, context.tokens[:, :0])
        for row, end in enumerate(ends):
            text, filled = context.tokens[row, :end].tolist(), [-1] * 4
            first = guided_law(model, guided, row, text, filled)
            wanted = first
            if steps == 2:
                for place in first.amax(-1).topk(2).indices.tolist():
                    filled[place] = int(first[place].argmax())
                again = guided_law(model, guided, row, text, filled)
                stays = torch.tensor(filled)[:, None] >= 0
                wanted = torch.where(stays, first, again)
            torch.testing.assert_close(laws[row], wanted, rtol=1e-9, atol=1e-12)


@torch.inference_mode()
@pytest.mark.parametrize(("block", "steps", "how"), [(2, 1, "drawn"), (2, 2, "top")])
def test_pictures_have_the_targets_own_law(block, steps, how, tiny_llamagen, guided_rows):
    """Enumerated: a block behind a drafted block, and rows filled without chance."""
    target = tiny_llamagen(grid=2, vocab=2)
    model, warp = network(target), Warp(0.8)
    judged, prefix, mask = guided_rows(target, [0], warp=warp, scratch=12)
    drafts = guided_rows(model, [0], warp=warp, scratch=12)[0]

    def law(text: list[int]) -> torch.Tensor:
        tokens = torch.tensor([text] * 2).long().view(2, len(text))
        with_, without = target(tokens, prefix, mask)[:, -1]
        return ((without + 2 * (with_ - without)) / 0.8).softmax(-1)

    found = whole_loop(
        3,
        TokenTarget(judged),
        lambda: masked_rows(drafts, block, steps, how),
        length=ConstantLength(3),
        at_once=1,
    )
    assert distance(found, joint(3, 2, law)) < EXACT


@pytest.mark.parametrize(
    "settings", [{}, {"siblings": "top", "draft_steps": 4, "block_length": 16}], ids=str
)
def test_a_pipelines_pictures_are_those_of_plain(settings, tiny_folder):
    pipe = ImagePipeline.from_pretrained(tiny_folder, dtype=torch.float64)
    pipe.set_progress_bar_config(disable=True)
    asked = dict(prompt=["a red circle", "a blue star"], temperature=0.0, output_type="tokens")
    plain = pipe(**asked)
    pipe.enable_speculation(SpecConfig("maskgit-rows", num_draft_tokens=8, **settings))
    ours = pipe(**asked)
    assert torch.equal(ours.images, plain.images)
    assert min(ours.stats.drafted) > 0
    assert ours.stats.fault is None


def test_bad_networks(tiny_folder):
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    without = ImagePipeline(**{**pipe.components, "row_drafter": None})
    with pytest.raises(InputError, match="row_drafter"):
        without.enable_speculation(SpecConfig("maskgit-rows"))
    other = ImagePipeline(**{**pipe.components, "row_drafter": pipe.drafter})
    other.enable_speculation(SpecConfig("maskgit-rows"))
    with pytest.raises(InputError, match="names no mask_token_id"):
        other("a red circle")
    with pytest.raises(ValueError, match="mask_token_id must be 128"):
        LlamaGenTransformer(vocab_size=128, mask_token_id=5)
