"""The cache of a clip: what is read, what a block leaves behind, memory, going back, resuming."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from wans import begin, latents, rand, tiny_wan

from mmspec.errors import InputError
from mmspec.models.wan.block import later, rotary_3d
from mmspec.models.wan.cache import WanCache
from mmspec.models.wan.window import ContextWindow

GLOBAL, ROLLING, SINKING = ContextWindow(), ContextWindow(2), ContextWindow(2, sink=1)
WINDOWS = [GLOBAL, ROLLING, SINKING]


@pytest.fixture(scope="module")
def wan():
    return tiny_wan()


def clip_of(blocks: int, rows: int = 1, seed: int = 0) -> list[torch.Tensor]:
    return list(latents(rows, 2 * blocks, seed).split(2, dim=1))


def read_by(cache: WanCache, clean: int, blocks: int = 1) -> list[set[int]]:
    """The blocks that the next ones read: keys are equal, the value of a block is its number."""
    numbers = torch.arange(cache.blocks, cache.blocks + blocks)
    values = torch.eye(cache.data.shape[-1], dtype=torch.float64)[numbers]  # [n, head_dim]
    values = values.repeat_interleave(cache.tokens, 0)[None, None]
    keys = torch.zeros_like(values)
    found = cache.attend(0, keys, keys, values, clean)[0, 0, :: cache.tokens]
    cache.advance(clean)
    sets = [set(row.nonzero().flatten().tolist()) for row in found]
    for row, blocks_read in zip(found, sets, strict=True):  # each as often as the others
        assert torch.allclose(row[list(blocks_read)], torch.tensor(1 / len(blocks_read)).double())
    return sets


def context(window: ContextWindow, block: int) -> set[int]:
    near = range(block) if window.blocks is None else range(block - window.blocks, block)
    return {n for n in range(block) if n in near or n < window.sink}


@pytest.mark.parametrize("window", [*WINDOWS, ContextWindow(1, sink=3), ContextWindow(5, sink=2)])
def test_context_of_every_block(window):
    text = torch.zeros(1, 2, 1, 1, 1, 24, dtype=torch.float64)
    cache = WanCache(text, 3, window, 24)
    for block in range(17):
        wanted = context(window, block) | {block}
        assert read_by(cache, clean=0) == [wanted]
        assert read_by(cache, clean=1) == [wanted]
        cache.rewind(block)  # what was committed falls away, and nothing else has
        assert read_by(cache, clean=0) == [wanted]
        assert read_by(cache, clean=1) == [wanted]
    for blocks in (2, 1, 4):  # the last one of each call is noisy
        together = range(cache.blocks, cache.blocks + blocks)
        wanted = [context(window, block) | {block} for block in together]
        assert read_by(cache, blocks - 1, blocks) == wanted


@torch.no_grad()
@pytest.mark.parametrize("window", WINDOWS)
def test_commit_folds_into_the_next_call(wan, window):
    """One pass over a clean block, or several, and the noisy one behind, and a pass for each."""
    clip, noisy = clip_of(9, rows=2), clip_of(9, rows=2, seed=1)
    apart, folded = (begin(wan, 2, limit=9, window=window) for _ in range(2))
    at = 0
    for pending in (0, 1, 1, 3, 2, 1):
        for block in clip[at : at + pending]:
            wan.commit(block, apart)
        wanted = wan.denoise(noisy[at], 625.0, apart)
        known = torch.cat(clip[at : at + pending], dim=1) if pending else None
        found = wan.denoise(noisy[at], 625.0, folded, known)
        at += pending
        assert torch.allclose(found, wanted, rtol=0, atol=1e-9)
        assert torch.allclose(folded.data, apart.data, rtol=0, atol=1e-9)
        assert folded.blocks == apart.blocks == at


@torch.no_grad()
@pytest.mark.parametrize("window", WINDOWS)
def test_noisy_blocks_leave_no_trace(wan, window):
    cache = begin(wan, window=window)
    for block in clip_of(5):
        wan.commit(block, cache)
    before = cache.data.clone()
    for timestep in (1000.0, 500.0):
        wan.denoise(latents(1, 2, seed=3), timestep, cache)
    assert torch.equal(cache.data, before)
    assert cache.blocks == 5


@torch.no_grad()
@pytest.mark.parametrize("window", WINDOWS)
def test_block_made_again_replaces_itself(wan, window):
    """As if the first try had never been, also where it took an evicted block's place."""
    clip, noisy = clip_of(8), latents(1, 2, seed=5)
    plain, tried = (begin(wan, window=window) for _ in range(2))
    for n, block in enumerate(clip):
        wanted = wan.denoise(noisy, 750.0, plain)
        wan.commit(block, plain)
        wan.commit(latents(1, 2, seed=50 + n), tried)
        tried.rewind(n)
        assert torch.equal(wan.denoise(noisy, 750.0, tried), wanted)
        wan.commit(block, tried)
        assert torch.equal(tried.data, plain.data)


@torch.no_grad()
def test_global_window_goes_back_anywhere(wan):
    clip, cache, plain = clip_of(6), begin(wan), begin(wan)
    wan.commit(torch.cat(clip[:2], dim=1), plain)
    wan.commit(torch.cat(clip, dim=1), cache)
    cache.rewind(2)
    noisy = latents(1, 2, seed=5)
    wanted = wan.denoise(noisy, 750.0, plain)
    assert torch.allclose(wan.denoise(noisy, 750.0, cache), wanted, rtol=0, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize(("window", "slots"), [(ROLLING, 3), (SINKING, 4)])
def test_memory_is_flat(wan, window, slots):
    cache = begin(wan, limit=None, window=window)
    size, where, shape = cache.nbytes, cache.data.data_ptr(), cache.data.shape
    assert cache.slots == slots
    for block in clip_of(30):
        velocity = wan.denoise(block, 500.0, cache)
        wan.commit(block, cache)
        assert (cache.nbytes, cache.data.data_ptr(), cache.data.shape) == (size, where, shape)
    assert velocity.isfinite().all()
    assert cache.blocks == 30


@pytest.mark.parametrize("window", [SINKING, ContextWindow(1, sink=3), ContextWindow(5, sink=2)])
@pytest.mark.parametrize("known", [1, 7, 40])
def test_sink_is_no_farther_than_in_a_known_clip(window, known):
    """And never in the window, nor moved in a clip of the known length."""
    farthest = max(known - 1, window.sink + window.blocks)
    for block in range(window.sink + window.blocks + 1, 500):
        first = window.moved(block, known)  # where the sink begins
        assert block - first == min(block, farthest)
        assert first + window.sink <= block - window.blocks
    assert ContextWindow(sink=1).moved(499, known) == 0


@torch.no_grad()
def test_keys_are_those_of_a_later_place(wan):
    attention, hidden = wan.layers[0].self_attn, rand(2, 12, 48)
    positions = (4, 5), (304, 305)
    keys, wanted = (
        attention.keys_values(hidden, rotary_3d(at, 2, 3, 24, True, hidden.device))[0]
        for at in positions
    )
    assert torch.allclose(later(keys, 300), wanted, rtol=0, atol=1e-9)
    assert not torch.allclose(keys, wanted, atol=1e-2)


@torch.no_grad()
def test_a_stream_of_hundreds_of_blocks_stays_what_it_was():
    """The same block again and again, behind another: what is read comes to rest.

    Keys and values say how far away blocks are, so a sink that went farther would show.
    """
    wan = tiny_wan(window=2, sink=1, sample_frames=10)  # five blocks
    first, same, noisy = (latents(1, 2, seed=seed) for seed in (1, 2, 3))
    cache, found = begin(wan, limit=None), []
    size = cache.nbytes
    for block in [first, *[same] * 399]:
        found.append(wan.denoise(noisy, 500.0, cache))
        wan.commit(block, cache)
        assert cache.nbytes == size
    # two layers, each of which looks two blocks back, behind the last that is farther away
    rest = torch.cat(found[4 + 2 * 2 + 1 :])
    assert torch.allclose(rest, rest[-1:].expand_as(rest), rtol=0, atol=1e-9)
    assert (found[4] - found[5]).abs().max() > 1e-4  # the sink is still moving away
    before = torch.cat(found[:5])
    clip = wan(
        torch.cat([noisy] * 5, dim=1),
        torch.full((1, 10), 500.0),
        rand(8, 4, 10, seed=99)[:1],
        torch.cat([first, *[same] * 4], dim=1),
    )
    assert torch.allclose(torch.cat(list(clip.split(2, 1))), before, rtol=0, atol=1e-9)


@torch.no_grad()
def test_rows_do_not_depend_on_their_neighbours(wan):
    clip, noisy = clip_of(3, rows=3), latents(3, 2, seed=1)
    together = begin(wan, 3)
    wan.commit(torch.cat(clip, dim=1), together)
    wanted = wan.denoise(noisy, 750.0, together)
    alone = begin(wan, 1)
    wan.commit(torch.cat(clip, dim=1)[:1], alone)
    assert torch.allclose(wan.denoise(noisy[:1], 750.0, alone), wanted[:1], rtol=0, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("done", [1, 6])
def test_clip_is_resumed_from_a_file(wan, window, done, tmp_path):
    clip, noisy = clip_of(8), latents(1, 2, seed=1)
    cache = begin(wan, window=window)
    for block in clip[:done]:
        wan.commit(block, cache)
    save_file(cache.snapshot(), tmp_path / "clip.safetensors")
    resumed = begin(wan, window=window)
    wan.commit(latents(1, 4, seed=9), resumed)  # of another clip
    resumed.restore(load_file(tmp_path / "clip.safetensors"))
    for block in clip[done:]:
        assert torch.equal(wan.denoise(noisy, 20.0, resumed), wan.denoise(noisy, 20.0, cache))
        wan.commit(block, cache)
        wan.commit(block, resumed)


@torch.no_grad()
def test_snapshot_is_a_copy(wan):
    cache = begin(wan, window=ROLLING)
    wan.commit(torch.cat(clip_of(5), dim=1), cache)
    kept, before = cache.snapshot(), cache.data.clone()
    wan.commit(latents(1, 4, seed=9), cache)
    cache.restore(kept)
    assert torch.equal(cache.data, before)
    assert cache.blocks == 5


@torch.no_grad()
def test_what_can_not_be(wan):
    cache = begin(wan, window=ROLLING)
    wan.commit(torch.cat(clip_of(5), dim=1), cache)
    for blocks in (3, 6, -1):
        with pytest.raises(InputError, match=f"can't go back to block {blocks} from block 5"):
            cache.rewind(blocks)
    with pytest.raises(InputError, match="the snapshot is of another cache"):
        begin(wan, rows=2, window=ROLLING).restore(cache.snapshot())
    with pytest.raises(InputError, match="this is no snapshot"):
        cache.restore({})
    full = begin(wan, limit=2)
    wan.commit(latents(1, 4), full)
    with pytest.raises(InputError, match="the cache has room for 2 blocks"):
        wan.denoise(latents(1, 2), 9.0, full)
    assert full.blocks == 2
