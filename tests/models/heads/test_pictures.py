"""What draft heads make of pictures."""

from __future__ import annotations

import pytest
import torch
from toy_vlm import PICTURE, batch_of, tiny_head, tiny_llava

from mmspec.methods.parts.heads import BRANCHES
from mmspec.models.heads.columns import Columns, Images, kept_columns
from mmspec.models.heads.published.eagle_decoder import inputs_of, read_columns
from mmspec.models.heads.published.specvlm import windows


def columns_of(model) -> Columns:
    batch = batch_of(model)
    return batch.columns(batch.features)


def test_vispec_puts_vectors_in_a_pictures_place():
    """Slow twin: picture by picture, query by query, head by head."""
    model = tiny_llava()
    network = tiny_head("vispec-4", model).network
    columns = columns_of(model)
    with torch.no_grad():
        look = network.look(columns)
    row, column, picture, _ = columns.images.place
    adapter = network.imadpt
    for m in range(3):
        here = column[picture == m]
        r = int(row[picture == m][0])
        x = columns.embedded[r, here]
        keys, values = adapter.k_proj(x), adapter.v_proj(x)
        found = []
        for query in adapter.q:  # [heads, width]
            parts = []
            for h, q in enumerate(query):
                k, v = keys[:, 4 * h : 4 * h + 4], values[:, 4 * h : 4 * h + 4]
                parts.append(((k @ q) / 2).softmax(0) @ v)
            found.append(adapter.o_proj(torch.cat(parts)))
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
    network, columns = tiny_head("flash", model).network, columns_of(model)
    with torch.no_grad():
        look = network.look(columns)
    row, column, picture, _ = columns.images.place
    for m in range(3):
        here, r = column[picture == m], int(row[picture == m][0])
        h = columns.before[r, here]
        for n, query in enumerate(network.latent_queries):
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
        network = tiny_head(name, model).network
        look = network.look(columns)
        index, _ = read_columns(columns, look)
        assert index.tolist() == [[2, 3, 4, 5] if "pool" in name else [*range(1, 6)]]
        assert inputs_of(network, columns, look, index).isfinite().all()


def test_a_prompt_that_ends_with_a_picture_keeps_its_last_column():
    model = tiny_llava()
    embedded = torch.randn(1, 6, 16, dtype=torch.float64)
    mask = torch.ones(1, 6, dtype=torch.bool)
    columns = Columns(embedded, embedded, mask, mask, Images.of([[(1, 5)]]))
    look = tiny_head("specvlm-text-only", model).network.look(columns)
    assert read_columns(columns, look)[0].tolist() == [[5]]


@pytest.mark.parametrize("branch", BRANCHES)
@torch.no_grad()
def test_branches_of_the_elastic_compressor(branch):
    model = tiny_llava()
    head, columns = tiny_head(f"specvlm-{branch}", model).network, columns_of(model)
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
    head = tiny_head("specvlm-sum", model).network
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
