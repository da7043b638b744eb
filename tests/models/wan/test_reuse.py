"""Cross-block caching: what is reused, what never is, and what it leaves in the cache."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from wans import SIZE, begin, latents, rand, tiny_wan

from mmspec.errors import InputError
from mmspec.models.wan.clips import WanClips
from mmspec.models.wan.reuse import BlockReuse, ChanceGate, DistanceGate, Place, distance
from mmspec.models.wan.sampler import FewStepSampler
from mmspec.models.wan.window import ContextWindow

LAYERS, STEPS = 4, (1000, 700, 300)
SAMPLERS = [FewStepSampler(STEPS), FewStepSampler(STEPS, guidance_scale=2.0)]
ALWAYS, NEVER = DistanceGate(torch.inf), DistanceGate(0.0)
wan = cache(lambda: tiny_wan(num_layers=LAYERS))


class Counted:
    """Counts the layers that ran, and those that ran in calls that wrote to the cache."""

    def __init__(self, monkeypatch, model) -> None:
        self.ran: list[int] = []
        for n, layer in enumerate(model.layers):
            monkeypatch.setattr(layer, "forward", self._counting(n, layer.forward))

    def _counting(self, number, forward):
        def counted(*given, **named):
            self.ran.append(number)
            return forward(*given, **named)

        return counted

    def take(self) -> list[int]:
        ran, self.ran = self.ran, []
        return ran


def clips_of(gate=None, sampler=SAMPLERS[0], rows=2, most_blocks=1, group=1) -> WanClips:
    texts = [rand(1 + sampler.guided, 4, 10, seed=40 + row) for row in range(rows)]
    clips = WanClips(wan(), texts, *SIZE, sampler, 12, ContextWindow(2))
    if gate is not None:
        clips.reuse([BlockReuse(gate, most_blocks, group) for _ in range(rows)])
    return clips


def noise(number: int) -> torch.Tensor:
    return rand(3, 2, 4, *SIZE, seed=number)


def grown(clips: WanClips, blocks: int, first: int = 0, row: int = 0) -> list[torch.Tensor]:
    found = []
    for number in range(first, first + blocks):
        found.append(clips.make(row, noise(number)))
        clips.join(row, found[-1])
    return found


def keys_values(clips: WanClips, row: int = 0) -> torch.Tensor:
    return clips.snapshot(row)["keys_values"]


def test_distance_is_that_of_the_worst_frame():
    known = torch.tensor([[[[1.0, -1.0]], [[2.0, 2.0]]], [[[1.0, 0.0]], [[4.0, 0.0]]]])
    x = known.clone()
    assert distance(x, known) == 0
    x[0, 0, 0, 0] += 0.5  # of 2
    x[0, 1, 0, 1] -= 0.4  # of 4
    x[1, 1, 0, 0] += 1.2  # of 4
    assert torch.allclose(distance(x, known), torch.tensor(0.3))
    assert distance(x[:1], known[:1]) == 0.25
    none = torch.zeros(1, 1, 2, 3)
    assert distance(none, none) == 0
    assert distance(none + 1, none) == torch.inf
    near = Place(1, 700.0, 0), x, known
    assert DistanceGate(0.31)(*near)
    assert not DistanceGate(0.29)(*near)
    assert not NEVER(Place(1, 700.0, 0), known, known)  # however near it is


@torch.no_grad()
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("group", [1, 3])
def test_threshold_0_is_plain(sampler, group):
    plain, gated = clips_of(None, sampler), clips_of(NEVER, sampler, group=group)
    for own, wanted in zip(grown(gated, 4), grown(plain, 4), strict=True):
        assert torch.allclose(own, wanted, rtol=0, atol=1e-12)
    assert torch.allclose(keys_values(gated), keys_values(plain), rtol=0, atol=1e-12)
    assert gated.spared() == [0, 0]


@torch.no_grad()
@pytest.mark.parametrize("group", [1, 3, 9])
def test_what_runs_and_what_is_spared(monkeypatch, group):
    """Steps behind the first of every other block, where a residual serves one block."""
    clips = clips_of(ALWAYS, group=group)
    ran = Counted(monkeypatch, wan())
    every = list(range(LAYERS))
    for number in range(5):
        grown(clips, 1, number)
        reuses = number % 2 == 1
        assert ran.take() == every * (1 if reuses else 3), number
        assert clips.spared() == [2 * LAYERS if reuses else 0, 0]


@torch.no_grad()
@pytest.mark.parametrize(("most", "wanted"), [(1, "01010101"), (2, "01101101"), (9, "01111111")])
def test_a_residual_serves_so_many_blocks(most, wanted):
    clips, found = clips_of(ALWAYS, most_blocks=most), ""
    for number in range(8):
        grown(clips, 1, number)
        found += str(int(clips.spared()[0] > 0))
    assert found == wanted


@torch.no_grad()
def test_layers_are_added_as_they_were(monkeypatch):
    """Against the formula: x + r of every layer, r from the block before."""
    model, cached = wan(), begin(wan())
    cached.reuse = BlockReuse(ALWAYS)
    first, second = latents(1, 2, seed=1), latents(1, 2, seed=2)
    seen = []
    for layer in model.layers:
        forward = layer.forward

        def kept(x, *given, forward=forward):
            y = forward(x, *given)
            seen.append(y - x)
            return y

        monkeypatch.setattr(layer, "forward", kept)
    model.denoise(first, 700.0, cached)
    residual = sum(seen)
    monkeypatch.undo()

    heads = []
    hook = model.head.register_forward_pre_hook(lambda _, given: heads.append(given[0]))
    model.denoise(second, 700.0, cached)
    hook.remove()
    embedded = model.patch_embedding(second.transpose(1, 2)).flatten(3).permute(0, 2, 3, 1)
    assert torch.allclose(heads[0], embedded + residual, atol=1e-12)
    assert cached.reuse.spared == LAYERS
    other = model.denoise(second, 300.0, cached)  # another step has residuals of its own
    assert cached.reuse.spared == LAYERS
    assert torch.allclose(other, model.denoise(second, 300.0, begin(model)), atol=1e-12)


@torch.no_grad()
def test_calls_that_write_are_computed_whole(monkeypatch):
    """However sure the gate is: keys and values are what the network makes of those frames."""
    model, reusing, plain = wan(), begin(wan()), begin(wan())
    reusing.reuse = BlockReuse(ALWAYS, 9)
    frames = [latents(1, 2, seed=n) for n in range(4)]
    model.denoise(frames[0], 700.0, reusing)
    ran = Counted(monkeypatch, model)
    model.denoise(frames[1], 700.0, reusing)
    assert not ran.take()  # it would reuse everything
    for write in (
        lambda cached: model.denoise(frames[1], 700.0, cached, clean=frames[2]),
        lambda cached: model.commit(torch.cat(frames[:2], dim=1), cached),
    ):
        found = write(reusing)
        assert ran.take() == list(range(LAYERS))
        wanted = write(plain)
        ran.take()
        assert found is wanted is None or torch.allclose(found, wanted, atol=1e-12)
        assert reusing.blocks == plain.blocks
        here, there = reusing.snapshot(), plain.snapshot()
        assert torch.allclose(here["keys_values"], there["keys_values"], atol=1e-12)


@torch.no_grad()
def test_rejected_drafts_leave_nothing_behind():
    """Blocks that others made join between the target's: its residuals are as old as blocks are."""
    clips = clips_of(ALWAYS)
    grown(clips, 1)
    for number in (1, 2):
        clips.join(0, noise(number)[0])
    clips.make(0, noise(3))
    assert clips.spared() == [0, 0]
    clips.join(0, noise(4)[0])
    clips.make(0, noise(5))
    assert clips.spared() == [2 * LAYERS, 0]


@torch.no_grad()
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_clips_do_not_depend_on_their_neighbours(sampler):
    """One reuses wherever it can, the other where its own inputs are near."""
    seen: list[float] = []
    watched = clips_of(lambda place, *pair: seen.append(float(distance(*pair))), sampler)
    grown(watched, 4, row=1)
    gates = ALWAYS, DistanceGate(sorted(seen)[len(seen) // 2])
    both = clips_of(None, sampler)
    both.reuse([BlockReuse(gate, 3) for gate in gates])
    found = [[], []]
    for number in range(4):
        for row in range(2):
            found[row] += grown(both, 1, number, row)
    spared = both.spared()
    assert spared[0] > spared[1] > 0
    for row, gate in enumerate(gates):
        alone = clips_of(None, sampler)
        alone.reuse([BlockReuse(gate, 3) for _ in range(2)])
        assert torch.equal(torch.stack(grown(alone, 4, row=row)), torch.stack(found[row]))
        assert alone.spared()[row] == spared[row]


@torch.no_grad()
def test_under_guidance_both_rows_must_be_near():
    gate = DistanceGate(0.1)
    known, near = torch.ones(2, 2, 3, 4), torch.ones(2, 2, 3, 4)
    assert gate(Place(1, 700.0, 0), near, known)
    near[1] += 0.2
    assert not gate(Place(1, 700.0, 0), near, known)


@torch.no_grad()
def test_goes_on_from_a_snapshot_as_if_it_never_stopped():
    whole, begun = (clips_of(ALWAYS, most_blocks=3, group=3) for _ in range(2))
    wanted = grown(whole, 5)
    grown(begun, 2)
    rest = clips_of(ALWAYS, most_blocks=3, group=3)
    rest.restore(0, begun.snapshot(0))
    assert rest.nbytes == begun.nbytes
    assert rest.nbytes > clips_of(None).nbytes
    assert torch.equal(torch.stack(grown(rest, 3, 2)), torch.stack(wanted[2:]))


@torch.no_grad()
@pytest.mark.parametrize("groups", [(3, 1), (1, 3), (9, 2)])
def test_residuals_are_of_the_same_layers_behind_a_restart(groups):
    """That of three layers is not added in the place of one, or two layers would count twice."""
    begun = clips_of(ALWAYS, group=groups[0])
    grown(begun, 1)
    rest = clips_of(ALWAYS, group=groups[1])
    rest.restore(0, begun.snapshot(0))
    grown(rest, 1, 1)
    shared = LAYERS - 3 if 3 in groups else 0  # the last layer is a group of its own
    assert rest.spared() == [2 * shared, 0]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["plain", "text", "first"])
def test_nothing_to_reuse_behind_a_restart(kind):
    """From a snapshot without residuals, or under another text; a new clip has none either."""
    begun = clips_of(None if kind == "plain" else ALWAYS)
    grown(begun, 1)
    rest = clips_of(ALWAYS)
    if kind == "text":
        texts = [rand(1, 4, 10, seed=80 + row) for row in range(2)]
        rest = WanClips(wan(), texts, *SIZE, SAMPLERS[0], 12, ContextWindow(2))
        rest.reuse([BlockReuse(ALWAYS) for _ in range(2)])
    if kind != "first":
        grown(rest, 1, 7)  # which is forgotten
        rest.restore(0, begun.snapshot(0))
    grown(rest, 1, 1)
    assert rest.spared() == [0, 0]


def test_damaged_snapshot_is_refused():
    clips = clips_of(ALWAYS)
    with torch.no_grad():
        grown(clips, 2)
    good = clips.snapshot(0)
    short = {**good, "reuse.inputs": good["reuse.inputs"][:1]}
    for bad in ({n: t for n, t in good.items() if n != "reuse.residuals"}, short):
        with pytest.raises(InputError, match="the snapshot's residuals are damaged"):
            clips.restore(0, bad)


def test_chance_is_the_clips_own():
    """As often as its share, by seed, block, step and layer; and the same again."""
    x = torch.ones(1, 1, 1, 1)
    places = [Place(b, t, n) for b in range(40) for t in (937.5, 833.3, 500.0) for n in range(8)]

    def drawn(share: float, seed: int) -> list[bool]:
        gate = ChanceGate(share, seed)
        return [gate(place, x, x) for place in places]

    found = drawn(0.3, 5)
    assert abs(sum(found) / len(found) - 0.3) < 0.06
    assert drawn(0.3, 5) == found != drawn(0.3, 6)
    more = drawn(0.6, 5)
    assert all(b or not a for a, b in zip(found, more, strict=True))
    assert not any(drawn(0.0, 5))
    assert all(drawn(1.0, 5))
    for differs in (lambda p: p.block, lambda p: p.timestep, lambda p: p.layer):
        by = {}
        for place, hit in zip(places, found, strict=True):
            by.setdefault(differs(place), []).append(hit)
        assert all(0 < sum(hits) < len(hits) for hits in by.values())
