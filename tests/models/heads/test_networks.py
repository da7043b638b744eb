"""Draft heads as networks: what they are trained on, what they make of pictures, checkpoints."""

from __future__ import annotations

import json
import math

import pytest
import torch
from toy_vlm import HEADS, PICTURE, ROWS, Passes, guided_vlm, tiny_head, tiny_llava

from mmspec.errors import InputError
from mmspec.methods import parts
from mmspec.methods.parts.heads import BRANCHES
from mmspec.models.heads import losses
from mmspec.models.heads.base import HeadBatch, TargetFit
from mmspec.models.heads.columns import Columns, Images, kept_columns
from mmspec.models.heads.decoder import HeadDecoder
from mmspec.models.heads.flash import FlashHead
from mmspec.models.heads.loading import head_class, load_head
from mmspec.models.heads.specvlm import SpecVlmHead, windows
from mmspec.models.heads.vispec import ViSpecHead
from mmspec.models.transformers.vlm import VlmDecoder

ANSWER = 7  # tokens


def batch_of(model, rows=ROWS) -> HeadBatch:
    """Prompts and answers, padded on the left, and what the target says of them."""
    _, prompt, _ = guided_vlm(model, rows)
    generator = torch.Generator().manual_seed(2)
    text = torch.randint(1, 10, (len(rows), ANSWER), generator=generator)
    lines = [Passes(model, prompt, row) for row in range(len(rows))]
    width = prompt.mask.shape[1] + ANSWER
    embedded = torch.zeros(len(rows), width, 16, dtype=torch.float64)
    features = torch.randn(embedded.shape, generator=generator, dtype=torch.float64)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    with torch.no_grad():
        for row, passes in enumerate(lines):
            words = text[row].tolist()
            embedded[row, passes.pads :] = passes.embedded(words)[0]
            features[row, passes.pads :] = passes.hidden(words)[0]
            mask[row, passes.pads :] = True
    answer = torch.arange(width).expand(len(rows), -1) >= width - ANSWER
    model.requires_grad_(False)
    return HeadBatch(embedded, features, mask, answer, Images.of(prompt.images), model.lm_head)


# --- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in HEADS if not n.startswith("specvlm-")])
def test_gradient_reaches_every_weight(name):
    model = tiny_llava()
    head, batch = tiny_head(name, model).train(), batch_of(model)
    if name == "specvlm":
        head.choose = "sum"
    loss, metrics = head.loss(batch)
    loss.backward()
    for key, weight in head.named_parameters():
        assert weight.grad is not None, key
        assert weight.grad.abs().max() > 0, key
    assert loss.isfinite()
    assert all(0 < value < 1 for value in metrics.values())


@pytest.mark.parametrize("name", list(HEADS))
def test_training_in_mixed_precision(name):
    model = tiny_llava().float()
    batch = batch_of(tiny_llava())
    small = HeadBatch(
        batch.embedded.float(),
        batch.features.float(),
        batch.mask,
        batch.answer,
        batch.images,
        model.requires_grad_(False).lm_head,
    )
    head = tiny_head(name, model).float().train()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = head.loss(small)
    loss.backward()
    assert loss.isfinite()
    assert all(w.grad is None or w.grad.isfinite().all() for w in head.parameters())


@pytest.mark.parametrize(
    ("name", "how"), [("eagle", {"depth": 3}), ("vispec", {"depth": 2, "stage": 2})]
)
def test_gradient_at_deeper_levels(name, how):
    model = tiny_llava()
    head = tiny_head(name, model)
    loss, metrics = head.loss(batch_of(model), **how)
    loss.backward()
    assert len(metrics) == how["depth"]
    assert all(weight.grad.abs().max() > 0 for weight in head.parameters())


def test_a_gate_learns_from_the_branch_that_it_drew():
    model = tiny_llava()
    head, batch = tiny_head("specvlm", model).train(), batch_of(model)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        chosen = set()
        for _ in range(20):
            head.zero_grad()
            look = head.look(batch.columns())
            drawn = look.choice.detach()
            assert ((drawn - drawn.round()).abs() < 1e-9).all()
            assert torch.equal(drawn.round().sum(1), torch.ones(len(drawn), dtype=drawn.dtype))
            chosen |= set(drawn.argmax(1).tolist())
            # what a row that keeps nothing of its picture would have kept, it does not know
            text_only = drawn[[0, 2], BRANCHES.index("text-only")] == 1
            look.values.sum().backward()
            assert bool(head.gate[0].weight.grad.any()) == (not text_only.all())
            head.loss(batch)[0].backward()
    assert len(chosen) > 1  # it is drawn
    head.eval()
    first, second = (head.look(batch.columns()).choice for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["eagle", "vispec", "hydra", "flash", "dflash"])
def test_training_makes_the_loss_small(name):
    """A batch learnt by heart: what is trained is what is measured."""
    model = tiny_llava()
    head, batch = tiny_head(name, model).train(), batch_of(model)
    optimizer = torch.optim.Adam(head.parameters(), 1e-2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = head.loss(batch)[1]
        for _ in range(40):
            optimizer.zero_grad()
            head.loss(batch)[0].backward()
            optimizer.step()
        last = head.loss(batch)[1]
    assert last["acceptance_1"] > first["acceptance_1"] + 0.05


@pytest.mark.parametrize("name", ["eagle", "vispec", "msd", "flash", "specvlm-pooling", "hydra"])
def test_padding_and_neighbours_have_no_say(name):
    """Every row's loss alone, weighed by the tokens that it has, is the batch's."""
    model = tiny_llava()
    head = tiny_head(name, model)
    with torch.no_grad():
        together = float(head.loss(batch_of(model))[0])
        batch = batch_of(model)
        alone = []
        for row, words in enumerate(ROWS):
            pads = int((~batch.mask[row]).sum())
            own, prompt, _ = guided_vlm(model, [words])
            one = slice(row, row + 1)
            parts = [t[one, pads:] for t in (batch.embedded, batch.features, batch.mask)]
            single = HeadBatch(
                *parts, batch.answer[one, pads:], Images.of(prompt.images), batch.output
            )
            assert own.offset + ANSWER == single.mask.shape[1]
            alone.append(float(head.loss(single)[0]))
    assert together == pytest.approx(sum(alone) / len(alone), abs=1e-9)


@pytest.mark.parametrize("name", ["eagle", "vispec", "flash", "specvlm-pooling", "hydra"])
@torch.no_grad()
def test_nothing_later_is_read(name):
    model = tiny_llava()
    head, batch = tiny_head(name, model), batch_of(model)

    def read(batch):
        if name == "hydra":
            return head(batch.columns())[0]
        return head(batch.columns())[0][0]

    before = read(batch)
    batch.embedded[:, -3:] += 1
    batch.features[:, -4:] += 1  # in front of the last three columns
    after = read(batch)
    assert torch.allclose(before[:, :-3], after[:, :-3], atol=1e-12)
    assert (before[:, -3:] - after[:, -3:]).abs().amin(2).max() > 1e-6


@torch.no_grad()
def test_a_block_reads_itself_and_what_is_in_front_of_it():
    """DFlash's blocks of several anchors know nothing of each other."""
    model = tiny_llava()
    head, batch = tiny_head("dflash", model), batch_of(model)
    columns, width = batch.columns(), batch.mask.shape[1]
    anchors = torch.tensor([[width - 5, width - 2]] * 3)
    both = head(columns, anchors)
    for n in range(2):
        alone = head(columns, anchors[:, n : n + 1])
        assert torch.allclose(both[:, n : n + 1], alone, atol=1e-12)
    columns.embedded[:, : width - 5] += 1
    columns.embedded[:, width - 4 :] += 1
    columns.before[:, width - 4 :] += 1
    assert torch.allclose(head(columns, anchors[:, :1]), both[:, :1], atol=1e-12)
    columns.before[:, width - 5] += 1
    assert not torch.allclose(head(columns, anchors[:, :1]), both[:, :1], atol=1e-3)


# --- what they make of pictures -------------------------------------------------------------------


def columns_of(model) -> Columns:
    return batch_of(model).columns()


def test_vispec_puts_vectors_in_a_pictures_place():
    """Slow twin: picture by picture, query by query, head by head."""
    model = tiny_llava()
    head = tiny_head("vispec-4", model)
    columns = columns_of(model)
    with torch.no_grad():
        look = head.look(columns)
    row, column, picture, _ = columns.images.place
    sampler = head.resampler
    for m in range(3):
        here = column[picture == m]
        r = int(row[picture == m][0])
        x = columns.embedded[r, here]
        keys, values = sampler.kv(x).chunk(2, dim=-1)
        found = []
        for query in sampler.queries:  # [heads, width]
            parts = []
            for h, q in enumerate(query):
                k, v = keys[:, 4 * h : 4 * h + 4], values[:, 4 * h : 4 * h + 4]
                parts.append(((k @ q) / 2).softmax(0) @ v)
            found.append(sampler.out(torch.cat(parts)))
        for n, column_kept in enumerate(here[-3:].tolist()):
            assert torch.allclose(look.values[r, column_kept], found[n], atol=1e-12)
        last = here[-1] + 1
        end = columns.images.ends[1] - 1 if m == 0 else look.context.shape[1] - 1
        assert torch.allclose(look.context[r, last:end], found[3].expand(end - last, -1))
        if m in (0, 2):  # its row's first
            assert not look.context[r, : here[0]].any()
    assert not look.context[1].any()  # a row without pictures
    assert int(look.keep.sum()) == int(columns.mask.sum()) - 3 * (PICTURE - 3)


def test_flash_pools_hidden_states():
    """`softmax(A·h)·h`, picture by picture."""
    model = tiny_llava()
    head, columns = tiny_head("flash", model), columns_of(model)
    with torch.no_grad():
        look = head.look(columns)
    row, column, picture, _ = columns.images.place
    for m in range(3):
        here, r = column[picture == m], int(row[picture == m][0])
        h = columns.before[r, here]
        for n, query in enumerate(head.latent_queries):
            weights = (h @ query).softmax(0)
            expected = (weights[:, None] * h).sum(0)
            assert torch.allclose(look.values[r, here[n - 3]], expected, atol=1e-12)
    assert not look.keep[0, 1 : 1 + PICTURE - 3].any()


def test_a_picture_smaller_than_what_is_asked_of_it():
    model = tiny_llava()
    embedded = torch.randn(1, 6, 16, dtype=torch.float64)
    mask = torch.ones(1, 6, dtype=torch.bool)
    columns = Columns(embedded, embedded, mask, mask, Images.of([[(1, 2), (4, 1)]]))
    for name in ("vispec-4", "flash", "specvlm-resampler", "specvlm-pooling"):
        head = tiny_head(name, model)
        (hidden,), read = head(columns)
        assert read.index.tolist() == [[0, 2, 3, 4, 5] if "pool" in name else [*range(6)]]
        assert hidden.isfinite().all()


def test_a_prompt_that_ends_with_a_picture_keeps_its_last_column():
    model = tiny_llava()
    embedded = torch.randn(1, 6, 16, dtype=torch.float64)
    mask = torch.ones(1, 6, dtype=torch.bool)
    columns = Columns(embedded, embedded, mask, mask, Images.of([[(1, 5)]]))
    _, read = tiny_head("specvlm-text-only", model)(columns)
    assert read.index.tolist() == [[0, 5]]


@pytest.mark.parametrize("branch", BRANCHES)
@torch.no_grad()
def test_branches_of_the_elastic_compressor(branch):
    model = tiny_llava()
    head, columns = tiny_head(f"specvlm-{branch}", model), columns_of(model)
    look = head.look(columns)
    row, column, picture, _ = columns.images.place
    compressor = head.compressor
    text = columns.asked & ~columns.images.visual(columns.mask)
    for m in range(3):
        here, r = column[picture == m], int(row[picture == m][0])
        e, h = columns.embedded[r, here], columns.before[r, here]
        x = head.fc(torch.cat([e, h], -1)).view(4, 4, 16)
        patches = [x[i : i + 2, j : j + 2].reshape(4, 16) for i in (0, 2) for j in (0, 2)]
        kept = look.values[r, here][look.keep[r, here]]
        if branch == "text-only":
            assert len(kept) == 0
        elif branch == "pooling":
            assert torch.allclose(kept, torch.stack([p.mean(0) for p in patches]))
        elif branch == "convolution":
            taps = [(p * compressor.taps).sum(0) for p in patches]
            assert torch.allclose(kept, torch.stack(taps) @ compressor.mix.weight.T)
        elif branch == "resampler":
            assert kept.shape == (2, 16)
        else:
            question = torch.stack(
                [
                    v / v.square().mean().add(torch.finfo(v.dtype).eps).sqrt()
                    for v in columns.embedded[r, text[r]]
                ]
            ).mean(0)
            normed = e / e.square().mean(1, keepdim=True).sqrt()
            best = (normed @ compressor.score.weight.T @ question).topk(4).indices.sort().values
            assert look.keep[r, here].nonzero()[:, 0].tolist() == best.tolist()
            assert torch.allclose(kept, x.view(16, 16)[best])


@torch.no_grad()
def test_the_sum_of_branches():
    model = tiny_llava()
    columns = columns_of(model)
    head = tiny_head("specvlm-sum", model)
    total = head.look(columns)
    assert torch.allclose(total.choice.sum(1), torch.ones(3, dtype=torch.float64))
    expected, keep = torch.zeros_like(total.values), torch.zeros_like(columns.mask)
    for n, branch in enumerate(BRANCHES):
        head.choose = branch
        look = head.look(columns)
        expected += total.choice[:, n, None, None] * look.values
        keep |= look.keep
    assert torch.allclose(total.values, expected)
    assert torch.equal(total.keep, keep)


def test_windows():
    assert windows(16, 4)[1] == (2, 3, 6, 7)
    assert windows(9, 4) == ((0, 1, 2, 3), (4, 5, 6, 7), (8, -1, -1, -1))
    assert windows(6, 3) == ((0, 1, 2), (3, 4, 5))


def test_kept_columns_are_padded_on_the_left():
    keep = torch.tensor([[1, 0, 1, 1], [0, 0, 1, 0]]).bool()
    index, real = kept_columns(keep)
    assert index[0].tolist() == [0, 2, 3]
    assert index[1, -1] == 2
    assert real.tolist() == [[True, True, True], [False, False, True]]


# --- losses ---------------------------------------------------------------------------------------


def test_losses_by_hand():
    generator = torch.Generator().manual_seed(0)
    logits, truth = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    q, p = logits.softmax(-1), truth.softmax(-1)
    assert losses.soft_cross_entropy(logits, truth) == pytest.approx(
        float(-(p * q.log()).sum() / 4)
    )
    assert losses.total_l1(logits, truth) == pytest.approx(float((p - q).abs().sum() / 4))
    assert losses.acceptance(logits, truth) == pytest.approx(float(torch.minimum(p, q).sum() / 4))
    total = 0.0
    for s, t in zip(logits.tolist(), truth.tolist(), strict=True):
        order = sorted(range(5), key=lambda n: -t[n])[:3]
        for i, first in enumerate(order):
            left = sum(math.exp(s[n]) for n in order[i:])
            total -= math.log(math.exp(s[first]) / left)
    assert losses.list_mle(logits, truth, 3) == pytest.approx(total / 4)


def test_what_counts():
    """Only tokens of the answer are drafted, from the last column of the prompt on."""
    features = torch.arange(6.0).view(1, 6, 1)
    answer = torch.tensor([[0, 0, 0, 1, 1, 1]]).bool()
    batch = HeadBatch(features, features, torch.ones_like(answer), answer, None, lambda x: x)
    states, drafted = batch.ahead(2)
    assert drafted[0].tolist() == [False, False, True, True, False, False]
    assert states[0, 2, 0] == 3  # the second token behind column 2 is drawn behind column 3
    assert batch.columns().before[0, :, 0].tolist() == [0, 0, 1, 2, 3, 4]


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(HEADS))
def test_checkpoints(name, tmp_path):
    model = tiny_llava()
    head = tiny_head(name, model)
    head.save_pretrained(tmp_path)
    again = load_head(tmp_path, torch.float64)
    assert type(again) is type(head)
    told = ("target", "sizes", *HEADS[name][1])
    assert all(again.config[key] == head.config[key] for key in told)
    for key, value in head.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)
    assert not any("embed" in key or "lm_head" in key for key in head.state_dict())
    again.fit.check(model)
    again.fit.check(tiny_llava().to(torch.bfloat16))  # in any dtype


def test_names():
    made = {kind.__name__ for kind, _ in HEADS.values()}
    trained = [name for name, part in parts("head").items() if part.trained]
    assert {head_class(name).__name__ for name in trained} == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab": 14}, "vocab_size 12, and this one has 14"),
        ({"seed": 1}, "other weights in its output layer"),
    ],
)
def test_a_head_of_another_target(change, message):
    head = tiny_head("vispec", tiny_llava())
    with pytest.raises(InputError, match=message):
        HeadDecoder(head, VlmDecoder(tiny_llava(**change)))


def test_inputs_are_the_targets(monkeypatch):
    """Of a model that scales them, such as Gemma, scaled."""
    model = tiny_llava()
    target, ids = VlmDecoder(model), torch.tensor([[3, 5]])
    decoder = HeadDecoder(tiny_head("vispec", model), target)
    assert torch.equal(decoder.embed(ids), model.get_input_embeddings()(ids))
    monkeypatch.setattr(target, "embed", lambda ids: 3 * model.get_input_embeddings()(ids))
    assert torch.equal(decoder.embed(ids), 3 * model.get_input_embeddings()(ids))


def test_folders_that_hold_no_head(tmp_path):
    with pytest.raises(InputError, match="can't read"):
        load_head(tmp_path)
    (tmp_path / "config.json").write_text('{"_class_name": "EagleHead"}')
    with pytest.raises(InputError, match="EagleHead"):
        load_head(tmp_path)
    head = tiny_head("vispec", tiny_llava())
    head.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key, value, message in [
        ("queries", 1, "queries must be 2 or more"),
        ("queries", 3, "queries"),
        ("target", {"model_type": "llava"}, "missing"),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(InputError, match=message):
            load_head(tmp_path)


def test_first_weights_pass_the_hidden_state_on():
    """Before any training a head says, roughly, that nothing changes."""
    model = tiny_llava()
    columns = columns_of(model)
    columns = Columns(
        **{
            k: v.float() if v is not None and torch.is_tensor(v) and v.is_floating_point() else v
            for k, v in vars(columns).items()
        }
    )
    for kind in (ViSpecHead, FlashHead, SpecVlmHead):
        head = kind.for_target(model)
        head.init_weights(std=1e-4)
        (hidden,), read = head(columns)
        text = read.mask & ~columns.images.visual(columns.mask).gather(1, read.index)
        before = columns.before.gather(1, read.index[..., None].expand(-1, -1, 16))
        expected = torch.nn.functional.rms_norm(before, (16,), eps=1e-6)
        known = text & before.any(-1)
        assert torch.allclose(hidden[known], expected[known], atol=0.05)


def test_fit_names_the_target():
    fit = TargetFit.of(tiny_llava())
    assert (fit.model_type, fit.hidden_size, fit.vocab_size, fit.num_layers) == ("llava", 16, 12, 2)
