"""Losses of draft heads: what they lean on, what they teach, and by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from toy_vlm import (
    ANSWER,
    HEADS,
    ROWS,
    TRAINED,
    batch_of,
    guided_vlm,
    tiny_head,
    tiny_llava,
)

from mmspec.methods.parts.heads import BRANCHES
from mmspec.models.heads.columns import Images
from mmspec.models.heads.formats.new import MAKERS
from mmspec.models.heads.formats.new_head import NewHead
from mmspec.train.heads import head_losses, objectives
from mmspec.train.heads.head_batch import HeadBatch
from mmspec.train.heads.head_losses import blocks_at, forward, head_loss
from mmspec.train.heads.objectives import Places


@pytest.mark.parametrize("name", [n for n in HEADS if not n.startswith("specvlm-")])
def test_gradient_reaches_every_weight(name):
    model = tiny_llava()
    head = tiny_head(name, model).train()
    batch = batch_of(model, head.reads)
    if name == "specvlm":
        head.network.choose = "sum"
    loss, metrics = head_loss(head, batch)
    loss.backward()
    for key, weight in head.named_parameters():
        assert weight.grad is not None, key
        assert weight.grad.abs().max() > 0, key
    assert loss.isfinite()
    assert all(0 < value < 1 for value in metrics.values())


@pytest.mark.parametrize("name", list(HEADS))
def test_training_in_mixed_precision(name):
    model = tiny_llava().float()
    head = tiny_head(name, model).float().train()
    batch = batch_of(tiny_llava(), head.reads)
    small = replace(
        batch,
        embedded=batch.embedded.float(),
        features=batch.features.float(),
        states=batch.states.float(),
        output=model.requires_grad_(False).lm_head,
        embed=model.get_input_embeddings(),
    )
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = head_loss(head, small)
    loss.backward()
    assert loss.isfinite()
    assert all(w.grad is None or w.grad.isfinite().all() for w in head.parameters())


@pytest.mark.parametrize(
    ("name", "how"),
    [("eagle", {"depth": 3}), ("eagle3", {"depth": 3}), ("vispec", {"depth": 2, "laws": True})],
)
def test_gradient_at_deeper_levels(name, how):
    model = tiny_llava()
    head = tiny_head(name, model)
    loss, metrics = head_loss(head, batch_of(model, head.reads), **how)
    loss.backward()
    assert len(metrics) == how["depth"]
    assert all(weight.grad.abs().max() > 0 for weight in head.parameters())


def test_a_gate_learns_from_the_branch_that_it_drew():
    model = tiny_llava()
    head, batch = tiny_head("specvlm", model).train(), batch_of(model)
    network = head.network
    with torch.random.fork_rng():
        torch.manual_seed(0)
        chosen = set()
        for _ in range(20):
            head.zero_grad()
            look = network.look(batch.columns(batch.features))
            drawn = look.choice.detach()
            assert ((drawn - drawn.round()).abs() < 1e-9).all()
            assert torch.equal(drawn.round().sum(1), torch.ones(len(drawn), dtype=drawn.dtype))
            chosen |= set(drawn.argmax(1).tolist())
            # what a row that keeps nothing of its picture would have kept, it does not know
            text_only = drawn[[0, 2], BRANCHES.index("text-only")] == 1
            look.values.sum().backward()
            assert bool(network.gate[0].weight.grad.any()) == (not text_only.all())
            head_loss(head, batch)[0].backward()
    assert len(chosen) > 1  # it is drawn
    head.eval()
    first, second = (network.look(batch.columns(batch.features)).choice for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", TRAINED)
def test_training_makes_the_loss_small(name):
    """A batch learnt by heart: what is trained is what is measured."""
    model = tiny_llava()
    head = tiny_head(name, model).train()
    batch = batch_of(model, head.reads)
    optimizer = torch.optim.Adam(head.parameters(), 1e-2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = head_loss(head, batch)[1]
        for _ in range(40):
            optimizer.zero_grad()
            head_loss(head, batch)[0].backward()
            optimizer.step()
        last = head_loss(head, batch)[1]
    assert last["acceptance_1"] > first["acceptance_1"] + 0.05


@pytest.mark.parametrize("name", [*TRAINED, "specvlm-pooling"])
def test_padding_and_neighbours_have_no_say(name, monkeypatch):
    """Every row's loss alone, weighed by the tokens that it has, is the batch's."""
    model = tiny_llava()
    head = tiny_head(name, model)
    if name == "dflash":  # blocks begin everywhere, not where chance has it
        monkeypatch.setattr(head_losses, "ANCHORS", 10**6)
    with torch.no_grad(), torch.random.fork_rng():
        batch = batch_of(model, head.reads)
        torch.manual_seed(0)
        together, alone = float(head_loss(head, batch)[0]), []
        for row, words in enumerate(ROWS):
            pads = int((~batch.mask[row]).sum())
            own, prompt, _ = guided_vlm(model, [words])
            names = ("embedded", "features", "states", "mask", "answer")
            parts = {key: getattr(batch, key)[row : row + 1, pads:] for key in names}
            single = replace(batch, **parts, images=Images.of(prompt.images))
            assert own.offset + ANSWER == single.mask.shape[1]
            torch.manual_seed(0)  # blocks of longspec begin where chance has it
            alone.append(float(head_loss(head, single)[0]))
    assert together == pytest.approx(sum(alone) / len(alone), abs=1e-9)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "vispec", "msd", "flash", "specvlm-pooling"])
@torch.no_grad()
def test_nothing_later_is_read(name):
    model = tiny_llava()
    head = tiny_head(name, model)
    batch = batch_of(model, head.reads)
    before = forward(head, batch, 1)[0][0]
    batch.embedded[:, -3:] += 1
    batch.features[:, -4:] += 1  # in front of the last three columns
    batch.states[:, -4:] += 1
    after = forward(head, batch, 1)[0][0]
    assert torch.allclose(before[:, :-3], after[:, :-3], atol=1e-12)
    assert (before[:, -3:] - after[:, -3:]).abs().amin(2).max() > 1e-6


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("eagle", {}),
        ("eagle", {"num_layers": 2}),
        ("eagle3", {}),
        ("eagle3", {"num_layers": 2}),
        ("vispec", {}),
        ("msd", {}),
        ("specvlm", {"choose": "pooling"}),
    ],
)
def test_what_lies_in_front_of_drafts_is_left_out(name, settings, depth):
    """Outputs at what is drafted, and gradients, are those of a pass over everything."""
    model = tiny_llava()
    head = MAKERS[name](NewHead(model), **settings).double()
    batch = batch_of(model, head.reads)
    # answers of three lengths
    batch.answer[1, -3:], batch.mask[1, -3:] = False, False
    batch.answer[2, -5:], batch.mask[2, -5:] = False, False
    found, widths = [], []
    for drafted in (False, True):
        head.zero_grad()
        outputs, index, mask = forward(head, batch, depth, drafted)
        widths.append(index.shape[1])
        assert {hidden.shape[1] for hidden in outputs} == {index.shape[1]}
        kept = []
        for level, hidden in enumerate(outputs, start=1):
            begins = batch.ahead(level)[1]
            begins = torch.nn.functional.pad(begins, (level - 1, 0))[:, : begins.shape[1]]
            counts = begins.gather(1, index) & mask
            assert int(counts.sum()) == int(batch.ahead(level)[1].sum()) > 0
            kept.append(hidden[counts])
        torch.cat(kept).sin().sum().backward()
        gradients = [w.grad for w in head.parameters() if w.grad is not None]
        found.append((torch.cat(kept), torch.cat([g.flatten() for g in gradients])))
    assert widths[0] > widths[1] == ANSWER + 1
    for all_columns, few in zip(*found, strict=True):
        assert torch.allclose(all_columns, few, atol=1e-10)


@torch.no_grad()
def test_a_block_reads_itself_and_what_is_in_front_of_it():
    """DFlash's blocks of several anchors know nothing of each other."""
    model = tiny_llava()
    head = tiny_head("dflash", model)
    batch = batch_of(model, head.reads)
    width = batch.mask.shape[1]
    anchors = torch.tensor([[width - 5, width - 2]] * 3)

    def blocks(anchors):
        return blocks_at(head.network, head.rotary, batch, anchors)

    both = blocks(anchors)
    assert both.shape == (3, 2, 3, 16)
    for n in range(2):
        assert torch.allclose(both[:, n : n + 1], blocks(anchors[:, n : n + 1]), atol=1e-12)
    batch.embedded[:, : width - 5] += 1
    batch.embedded[:, width - 4 :] += 1
    batch.states[:, width - 5 :] += 1
    assert torch.allclose(blocks(anchors[:, :1]), both[:, :1], atol=1e-12)
    batch.states[:, width - 6] += torch.randn(batch.states.shape[-1])
    assert not torch.allclose(blocks(anchors[:, :1]), both[:, :1], atol=1e-3)


def places_of(logits, law, said=None) -> Places:
    none = torch.full((len(logits),), -1)
    return Places(logits, logits, logits, law, none if said is None else said, none)


def test_losses_by_hand():
    generator = torch.Generator().manual_seed(0)
    logits, truth = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    q, p = logits.softmax(-1), truth.softmax(-1)
    places = places_of(logits, p, torch.tensor([2, 0, -1, 4]))
    assert torch.allclose(objectives.cross_entropy(places), -(p * q.log()).sum(-1))
    assert torch.allclose(objectives.total_l1(places), (p - q).abs().sum(-1))
    accepted = torch.minimum(p, q).sum(-1)
    assert torch.allclose(objectives.acceptance(places), accepted)
    assert torch.allclose(accepted, 1 - (p - q).abs().sum(-1) / 2)
    assert torch.allclose(objectives.log_acceptance(places), -accepted.log())
    told = torch.stack([-q[0, 2].log(), -q[1, 0].log(), q[0, 0] * 0, -q[3, 4].log()])
    assert torch.allclose(objectives.likelihood(places), told)
    assert torch.allclose(objectives.reverse_divergence(places), (q * (q / p).log()).sum(-1))
    for share in (0.1, 0.9):
        m = share * p + (1 - share) * q
        both = share * p * (p / m).log() + (1 - share) * q * (q / m).log()
        assert torch.allclose(objectives.objective_of(f"jsd-{share}")(places), both.sum(-1))
    for name, other in (("kl", -(p * q.log()).sum(-1)), ("tv", (p - q).abs().sum(-1) / 2)):
        assert torch.allclose(objectives.objective_of(f"tokens-{name}")(places), (told + other) / 2)
    for row, (s, t) in enumerate(zip(logits.tolist(), truth.tolist(), strict=True)):
        order = sorted(range(5), key=lambda n: -t[n])[:3]
        total = 0.0
        for i, first in enumerate(order):
            left = sum(math.exp(s[n]) for n in order[i:])
            total -= math.log(math.exp(s[first]) / left)
        assert objectives.list_mle(places, 3)[row] == pytest.approx(total)
    near = (logits - truth).abs()
    smooth = torch.where(near < 1, near**2 / 2, near - 0.5).mean(-1)
    both = replace(places, features=truth)
    expected = smooth + 0.1 * objectives.cross_entropy(places)
    assert torch.allclose(objectives.eagle(both), expected)
    assert torch.allclose(
        objectives.vispec(places),
        10 * objectives.total_l1(places) + 0.1 * objectives.list_mle(places),
    )


def gradients(logits, p, said):
    """By logit, from `∂q_y / ∂z_x = q_y (1[x = y] − q_x)`."""
    q, chosen = logits.softmax(-1), F.one_hot(said, p.shape[-1]).to(logits)

    def of(weights):
        """`Σ_y w_y ∂q_y`."""
        return q * (weights - (q * weights).sum(-1, keepdim=True))

    signs, kept = torch.sign(q - p), torch.minimum(p, q).sum(-1, keepdim=True)
    found = {
        "kl": q - p,
        "reverse-kl": of((q / p).log()),
        "tv": of(signs),
        "log-acceptance": -of((q < p).to(q)) / kept,
        "tokens": q - chosen,
        "tokens-kl": q - (p + chosen) / 2,
        "tokens-tv": (q - chosen) / 2 + of(signs) / 4,
    }
    for share in (0.1, 0.9):  # what comes through m cancels
        m = share * p + (1 - share) * q
        found[f"jsd-{share}"] = (1 - share) * of((q / m).log())
    return found


SMOOTH = ["kl", "reverse-kl", "jsd-0.1", "jsd-0.9"]


@pytest.mark.parametrize(
    "name", [*SMOOTH, "tv", "log-acceptance", "tokens", "tokens-kl", "tokens-tv"]
)
def test_gradients_by_hand(name):
    generator = torch.Generator().manual_seed(5)
    logits, truth = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    p, said = truth.softmax(-1), torch.tensor([2, 0, 1, 4])

    def found(at):
        at = at.clone().requires_grad_()
        objectives.objective_of(name)(places_of(at, p, said)).sum().backward()
        return at.grad

    by_hand = gradients(logits, p, said)[name]
    assert torch.allclose(found(logits), by_hand, rtol=0, atol=1e-9)
    assert by_hand.abs().max() > 1e-3
    if name in SMOOTH:  # the minimum is the target's law
        assert found(p.log()).abs().max() < 1e-9


def test_the_sampled_objective_has_the_gradient_of_variation():
    """Over many draws: that of `TV(p, q)`, but for the size of the step."""
    generator = torch.Generator().manual_seed(3)
    logits, truth = torch.randn(2, 1, 6, generator=generator, dtype=torch.float64)
    p = truth.softmax(-1)
    whole = logits.clone().requires_grad_()
    objectives.total_l1(places_of(whole, p)).sum().backward()
    many = logits.expand(200_000, -1).clone().requires_grad_()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loss = objectives.sampled_variation(places_of(many, p.expand(len(many), -1)))
    loss.sum().backward()
    sampled = many.grad.mean(0)
    q = logits.softmax(-1)[0]
    mean = float(q[p[0] > q].sum())
    expected = whole.grad[0] / 2 / (mean * (1 - mean)) ** 0.5
    assert torch.allclose(sampled, expected, atol=0.01)
    assert expected.abs().max() > 0.1


def test_places_that_can_be_learned_are_chosen():
    """Those at which the reference is ahead the most; the loss is theirs alone."""
    model = tiny_llava()
    head, other = tiny_head("eagle3", model), tiny_head("eagle3", model, seed=4)
    batch = batch_of(model, head.reads)
    (mine,), (theirs,) = (list(head_losses.drafted(one, batch)) for one in (head, other))
    gain = objectives.cross_entropy(mine) - objectives.cross_entropy(theirs)
    best = gain.argsort(descending=True)[: math.ceil(0.4 * len(gain))]
    expected = objectives.cross_entropy(mine)[best].mean()
    loss, _ = head_loss(head, batch, reference=other)
    assert torch.allclose(loss, expected, rtol=1e-9)
    loss.backward()
    assert all(weight.grad is None for weight in other.parameters())


def test_as_many_places_may_be_drawn():
    """A sceptic's reference: two fifths, others every time, and the loss is theirs alone."""
    model = tiny_llava()
    head = tiny_head("eagle3", model)
    batch = batch_of(model, head.reads)
    (places,) = head_losses.drafted(head, batch)
    whole, count = objectives.cross_entropy(places), math.ceil(0.4 * len(places.at))
    seen = set()
    with torch.random.fork_rng():
        for seed in range(8):
            torch.manual_seed(seed)
            chosen = objectives.drawn(places)
            assert len({*chosen.tolist()}) == len(chosen) == count < len(places.at)
            torch.manual_seed(seed)
            loss, _ = head_loss(head, batch, reference=objectives.RANDOM)
            assert torch.allclose(loss, whole[chosen].mean(), rtol=1e-9)
            seen |= {*chosen.tolist()}
    assert len(seen) > count


@pytest.mark.parametrize("name", list(objectives.OBJECTIVES))
def test_every_objective_brings_acceptance(name):
    """A law learnt by heart from each of them, tokens' from many draws of it."""
    generator = torch.Generator().manual_seed(1)
    truth = 2 * torch.randn(1, 6, generator=generator, dtype=torch.float64)
    law = truth.softmax(-1).expand(256, -1)
    said = torch.multinomial(law, 1, generator=generator)[:, 0]
    logits = torch.zeros(1, 6, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], 0.05)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(300):
            optimizer.zero_grad()
            places = places_of(logits.expand(256, -1), law, said)
            objectives.objective_of(name)(places).mean().backward()
            optimizer.step()
    assert objectives.acceptance(places_of(logits, law[:1]))[0] > 0.9


def test_a_part_of_the_laws():
    """Laws for some tokens alone are those of the whole vocabulary there."""
    model = tiny_llava()
    batch = replace(batch_of(model), layer=model.lm_head)
    ids = torch.tensor([7, 2, 9])
    where = batch.ahead(1)[0][batch.ahead(1)[1]]
    assert torch.allclose(batch.law_at(where, ids), batch.law_at(where)[:, ids], atol=1e-12)
    tokens = torch.arange(batch.mask.numel()).view_as(batch.mask) % 12
    batch = replace(batch, tokens=tokens)
    at = torch.tensor([0, 1, 6, 8])
    assert batch.said_at(at).tolist() == [1, 2, 7, 9]
    assert batch.said_at(at, ids).tolist() == [-1, 1, 0, 2]


def test_what_counts():
    """Only tokens of the answer are drafted, from the last column of the prompt on."""
    features = torch.arange(6.0).view(1, 6, 1)
    answer = torch.tensor([[0, 0, 0, 1, 1, 1]]).bool()
    mask, same = torch.ones_like(answer), lambda x: x
    batch = HeadBatch(features, features, features, mask, answer, None, same, same)
    places, drafted = batch.ahead(2)
    assert drafted[0].tolist() == [False, False, True, True, False, False]
    # the second token behind column 2 is drawn behind column 3
    assert batch.features_at(places[:, 2]).tolist() == [[3]]
    assert batch.columns(features).before[0, :, 0].tolist() == [0, 0, 1, 2, 3, 4]
