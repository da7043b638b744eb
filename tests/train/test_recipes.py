"""Training: the trainer on a toy recipe, Muon, the codebook, and the image recipes in miniature."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from mmspec import ImagePipeline, SpecConfig
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.models.text_encoder import encode_captions
from mmspec.train import caption_encoder, recipes
from mmspec.train import muon as muon_module
from mmspec.train.base import SETTLE, hybrid_optimizers
from mmspec.train.batches import scene_batch
from mmspec.train.image import (
    drafter as image_drafter,
)
from mmspec.train.image import (
    target as image_target,
)
from mmspec.train.image import (
    tokenizer as image_tokenizer,
)
from mmspec.train.image.tokenizer import CodebookAverage, k_means, psnr, recognised
from mmspec.train.muon import Muon, orthogonalize
from mmspec.train.tokenizers import caption_tokenizer
from mmspec.train.trainer import Batches, TrainConfig, Trainer
from mmspec.worlds.shapes import TASKS, sample_prompt
from mmspec.worlds.shapes.prompts import mixed_caption
from mmspec.worlds.shapes.scene import sample_mixed
from mmspec.worlds.shapes.vocabulary import NUMBERS, PLURALS, SHAPES, held_out_color

# --- the trainer ----------------------------------------------------------------------------------


def draw_numbers(rng, step):
    return torch.from_numpy(rng.standard_normal((16, 6))).float()


class Toy:
    """A small network with batch statistics, so that weights and buffers are at stake."""

    def __init__(self, seed: int = 0, fail_at: int | None = None, loss: float = 1.0) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        self.fail_at, self.scale = fail_at, loss
        self.seen: list[torch.Tensor] = []  # a weight before every step
        self.exported: dict[str, torch.Tensor] = {}

    def optimizers(self):
        return hybrid_optimizers(self.model, 0.05, "float32")

    @property
    def draw(self):
        return draw_numbers

    def loss(self, batch, rng, step):
        if step == self.fail_at:
            raise KeyboardInterrupt
        self.seen.append(self.model[0].weight.detach().clone())
        x = batch + 0.1 * torch.from_numpy(rng.standard_normal((16, 6))).float()
        error = F.mse_loss(self.model(x), x[:, :3].sin())
        return self.scale * error, {"error": float(error.detach())}

    def evaluate(self, model):
        return {"held_out": float(model(torch.ones(1, 6)).sum().detach())}

    def export(self, model, record):
        self.exported = {k: v.clone() for k, v in model.state_dict().items()}


@pytest.fixture
def config(tmp_path) -> TrainConfig:
    return TrainConfig(tmp_path / "toy", 12, 16, warmup=3, ema=0.8, evaluate_every=4)


def everything(trainer: Trainer) -> list[torch.Tensor]:
    """All tensors that a run leaves behind, in a fixed order."""
    state = [*trainer.model.state_dict().values(), *trainer.average.state_dict().values()]
    for optimizer in trainer.optimizers:
        for values in optimizer.state_dict()["state"].values():
            state += [values[name] for name in sorted(values)]
    return state


def test_resumed_run_is_bit_identical(config, tmp_path):
    whole = Trainer(Toy(), config)
    record = whole.run()
    broken = replace(config, out=tmp_path / "broken", save_minutes=0.0)
    with pytest.raises(KeyboardInterrupt):
        Trainer(Toy(fail_at=7), broken).run()
    again = Trainer(Toy(seed=99), broken)
    resumed = again.run()
    assert again.step == record["step"] == resumed["step"] == 12
    assert len(again.recipe.seen) == 12 - 7
    assert all(map(torch.equal, everything(again), everything(whole)))
    assert resumed["held_out"] == record["held_out"]
    losses = [
        [json.loads(line)["loss"] for line in (run.out / "log.jsonl").read_text().splitlines()]
        for run in (config, broken)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3


def test_workers_draw_the_same_batches(config):
    alone, helped = Trainer(Toy(), config), Trainer(Toy(), replace(config, workers=2))
    alone.run()
    helped.checkpoint = config.out / "other.pt"
    helped.run()
    assert helped.step == alone.step == 12
    for ours, theirs in zip(everything(alone), everything(helped), strict=True):
        assert torch.equal(ours, theirs)


def test_finished_run_is_only_exported_again(config):
    first = Trainer(Toy(), config)
    first.run()
    second = Trainer(Toy(seed=1), config)
    record = second.run()
    assert second.recipe.seen == []
    assert record["held_out"].keys() == {"held_out"}
    for name, value in first.recipe.exported.items():
        assert torch.equal(second.recipe.exported[name], value)


def test_checkpoint_needs_no_code(config):
    Trainer(Toy(), config).run()
    state = torch.load(config.out / "checkpoint.pt", weights_only=True)
    assert state["step"] == 12
    assert sorted(file.name for file in config.out.iterdir()) == ["checkpoint.pt", "log.jsonl"]


def test_schedule(config):
    trainer = Trainer(Toy(), replace(config, steps=10, decay=0.4))
    rates = []
    for trainer.step in range(11):
        rates.append(trainer.schedule())
    assert rates == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0])
    trainer.step = 0
    trainer.config = replace(trainer.config, max_minutes=1.0)
    trainer.seconds = 48.0  # time is ahead of the steps: a fifth of it is left
    assert trainer.done == 0.8
    trainer.step = 5
    assert trainer.schedule() == pytest.approx(0.5)
    trainer.seconds = 60.0
    assert trainer.schedule() == 0


def test_data_that_come_again():
    fresh = Batches(draw_numbers, 3)
    again = Batches(draw_numbers, 3, repeat=2)
    assert [torch.equal(again[n], fresh[n]) for n in range(6)] == [True, True] + [False] * 4
    assert [torch.equal(again[n], fresh[n % 2]) for n in range(6)] == [True] * 6


def test_rates_follow_the_schedule(config):
    trainer = Trainer(Toy(), config)
    trainer._train_step(Batches(trainer.recipe.draw, trainer.config.seed)[trainer.step])
    assert [g["lr"] for o in trainer.optimizers for g in o.param_groups] == [0.05 / 3] * 2


def test_exported_weights_are_averaged(config):
    trainer = Trainer(Toy(), config)
    trainer.run()
    after = [*trainer.recipe.seen[1:], trainer.model[0].weight.detach()]
    average = after[0]
    for weight in after[1:]:
        average = 0.8 * average + 0.2 * weight
    assert torch.allclose(trainer.recipe.exported["0.weight"], average, atol=1e-6)
    assert not torch.allclose(after[-1], average, atol=1e-4)


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_gradient_that_is_not_finite(config, scale):
    toy = Toy(loss=scale)
    before = toy.model[0].weight.detach().clone()
    with pytest.raises(FloatingPointError, match="step 0"):
        Trainer(toy, config).run()
    assert torch.equal(toy.model[0].weight, before)
    assert not (config.out / "checkpoint.pt").exists()


def test_gradients_are_clipped(config):
    small, large = (Trainer(Toy(loss=s), config) for s in (1e3, 1e5))
    for trainer in (small, large):
        trainer._train_step(Batches(trainer.recipe.draw, trainer.config.seed)[trainer.step])
    # the last layer's: before batch statistics a bias has no gradient but noise
    ends = (trainer.model[2].parameters() for trainer in (small, large))
    for ours, theirs in zip(*ends, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


# --- Muon -----------------------------------------------------------------------------------------


def of_singular_values(m: int, n: int, values: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(m)
    u, _, v = torch.linalg.svd(torch.randn(m, n, generator=generator).double(), full_matrices=False)
    return u @ values.double().diag() @ v


@pytest.mark.parametrize(("m", "n"), [(8, 24), (24, 8), (12, 12)])
def test_orthogonalize(m, n):
    g = of_singular_values(m, n, torch.linspace(0.05, 1, min(m, n)))
    out = orthogonalize(g)
    u, s, v = torch.linalg.svd(g, full_matrices=False)
    s = s / s.norm()
    for _ in range(5):  # the same polynomial on the singular values alone
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    assert torch.allclose(out, u @ s.diag() @ v, atol=1e-6)
    assert s.min() > 0.65
    assert s.max() < 1.25
    assert F.cosine_similarity(out.flatten(), (u @ v).flatten(), dim=0) > 0.97
    assert torch.equal(orthogonalize(torch.zeros(m, n)), torch.zeros(m, n))


def test_muon_step_is_its_formula():
    weight = nn.Parameter(of_singular_values(4, 6, torch.ones(4)))
    optimizer = Muon([weight], lr=0.1, momentum=0.9, weight_decay=0.02)
    truth, buffer = weight.detach().clone(), torch.zeros(4, 6).double()
    for step in range(3):
        g = of_singular_values(4, 6, torch.linspace(0.2, 1 + step, 4))
        weight.grad = g.clone()
        optimizer.step()
        buffer = 0.9 * buffer + 0.1 * g
        nesterov = 0.9 * buffer + 0.1 * g
        truth = truth * (1 - 0.1 * 0.02) - 0.1 * 0.2 * 6**0.5 * orthogonalize(nesterov)
        assert torch.allclose(weight, truth, atol=1e-12)


def test_muon_takes_kernels_as_matrices():
    start = of_singular_values(4, 18, torch.ones(4))
    matrix, kernel = nn.Parameter(start.clone()), nn.Parameter(start.view(4, 2, 3, 3).clone())
    for step in range(2):
        matrix.grad = of_singular_values(4, 18, torch.linspace(0.2, 1 + step, 4))
        kernel.grad = matrix.grad.view(4, 2, 3, 3)
        Muon([matrix], lr=0.1).step()
        Muon([kernel], lr=0.1).step()
    assert torch.equal(kernel.flatten(1), matrix)
    assert not torch.allclose(matrix, start, atol=1e-3)


def test_muon_leaves_weights_without_gradient():
    still, moved = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))
    moved.grad = torch.eye(2, 3)
    Muon([still, moved], weight_decay=0.1).step()
    assert torch.equal(still, torch.ones(2, 3))
    assert not torch.equal(moved, torch.ones(2, 3))


# --- codebook and captions ------------------------------------------------------------------------


def test_k_means_finds_directions():
    rng = np.random.default_rng(0)
    truth = F.normalize(torch.eye(5, 8) + 0.2, dim=-1)
    noise = torch.randn(200, 8, generator=torch.Generator().manual_seed(0)) * 0.02
    centres = k_means(F.normalize(truth.repeat(40, 1) + noise, dim=-1), 5, rng, rounds=20)
    assert torch.allclose(centres.norm(dim=-1), torch.ones(5))
    nearest = centres @ truth.T
    assert (nearest.max(1).values > 0.9).all()
    few = k_means(truth[:3], 6, rng)
    assert few.shape == (6, 8)
    assert few.isfinite().all()


@pytest.fixture
def tiny(monkeypatch):
    shrink(monkeypatch)


def shrink(patch: pytest.MonkeyPatch) -> None:
    """The image recipes at sizes that train in seconds."""
    transformer = dict(dim=32, n_layer=2, n_head=2, multiple_of=16, caption_dim=16, vocab_size=64)
    transformer = {**image_target.TRANSFORMER, **transformer}
    tokenizer = dict(codebook_size=64, ch=32, z_channels=32)
    encoder = dict(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    patch.setattr(image_tokenizer, "EMBEDDED", {**image_tokenizer.EMBEDDED, **tokenizer})
    patch.setattr(image_target, "TRANSFORMER", transformer)
    patch.setattr(caption_encoder, "TEXT_ENCODER", {**caption_encoder.TEXT_ENCODER, **encoder})
    patch.setattr(image_drafter, "DRAFTER", {**transformer, "n_layer": 1})


def test_codes_are_running_means(tiny):
    """Against the two recursions of van den Oord et al., code by code."""
    vq = image_tokenizer.VQModel(**image_tokenizer.EMBEDDED)
    book, rng = CodebookAverage(vq, started=False, decay=0.9, alive=0.0), np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    count = total = None
    for _ in range(3):
        z = F.normalize(torch.randn(4, 8, 4, 4, generator=generator), dim=1)
        before = vq.quantize.embedding.weight.clone()
        ids = book.update(vq, z, rng)
        flat = z.movedim(1, -1).flatten(0, 2)
        if count is None:  # started by k-means, each code counting once
            assert not torch.allclose(before, vq.quantize.embedding.weight)
            count, total = torch.ones(64), book.total.clone()
            sums = torch.stack([flat[ids.flatten() == code].sum(0) for code in range(64)])
            total = (total - 0.1 * sums) / 0.9
        else:
            assert torch.equal(ids, nearest(z, before))
        for code in range(64):
            mine = flat[ids.flatten() == code]
            count[code] = 0.9 * count[code] + 0.1 * len(mine)
            total[code] = 0.9 * total[code] + 0.1 * mine.sum(0)
        codes = F.normalize(total / count[:, None], dim=-1)
        assert torch.allclose(vq.quantize.embedding.weight, codes, atol=1e-5)
    assert not vq.quantize.embedding.weight.requires_grad
    assert book.used == len(ids.unique()) / 64


def nearest(z, codes):
    return torch.cdist(z.movedim(1, -1).flatten(0, 2), codes).argmin(-1).view(len(z), 4, 4)


def test_trained_codes_are_kept(tiny):
    """Going on from a trained tokenizer: no k-means, the codes move from where they are."""
    vq = image_tokenizer.VQModel(**image_tokenizer.EMBEDDED)
    codes = vq.quantize.embedding.weight
    codes.data.copy_(F.normalize(codes.data, dim=-1))
    before = codes.detach().clone()
    book = CodebookAverage(vq, started=True, decay=0.9, alive=0.0)
    z = F.normalize(torch.randn(2, 8, 4, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    ids = book.update(vq, z, np.random.default_rng(0))
    assert torch.equal(ids, nearest(z, before))
    idle = torch.ones(64, dtype=torch.bool)
    idle[ids.unique()] = False
    assert torch.allclose(codes[idle], before[idle], atol=1e-6)
    assert not torch.allclose(codes[~idle], before[~idle], atol=1e-3)


def test_what_a_detector_sees_of_reconstructions():
    """The same pictures are recognised; those of other scenes, or of a shade of grey, are not."""
    rng = np.random.default_rng(0)
    pixels, others = (scene_batch(rng, 12, 64)[1] for _ in range(2))
    assert recognised(pixels, pixels) == 1
    assert recognised(others, pixels) < 0.2
    mixed = torch.where(torch.arange(12)[:, None, None, None] < 9, pixels, 0.0)
    assert recognised(mixed, pixels) == 0.75


def test_dead_codes_move_to_latents(tiny):
    vq = image_tokenizer.VQModel(**image_tokenizer.EMBEDDED)
    book, rng = CodebookAverage(vq, started=False, decay=0.5), np.random.default_rng(0)
    point = F.normalize(torch.ones(1, 8, 1, 1), dim=1).expand(4, 8, 4, 4)
    for _ in range(6):
        book.update(vq, point + 1e-3 * torch.randn(4, 8, 4, 4), rng)
    gap = (vq.quantize.embedding.weight - point[0, :, 0, 0]).norm(dim=-1)
    assert gap.max() < 0.05


def test_psnr():
    assert psnr(torch.tensor(4.0)) == pytest.approx(0)
    assert psnr(torch.tensor(0.04)) == pytest.approx(20)


def test_tokenizer_knows_every_caption():
    words, rng = caption_tokenizer(), np.random.default_rng(0)
    captions = [
        sample_prompt(rng, TASKS[i % 6], split).prompt
        for split in ("train", "held_out")
        for i in range(1000)
    ]
    ids = words(captions).input_ids
    assert not any(words.unk_token_id in row for row in ids)
    assert all(row[-1] == words.eos_token_id for row in ids)
    assert max(map(len, ids)) <= words.model_max_length == image_target.PREFIX
    spoken = {word for caption in captions for word in caption.split()}
    assert len({words.convert_tokens_to_ids(word) for word in spoken}) == len(spoken)
    assert words("a glorp").input_ids == [ids[0][0], words.unk_token_id, words.eos_token_id]


def test_batches_are_balanced_and_seeded():
    captions, pixels = scene_batch(np.random.default_rng(5), 17, 64)
    again = scene_batch(np.random.default_rng(5), 17, 64)
    assert captions == again[0]
    assert torch.equal(pixels, again[1])
    assert pixels.shape == (17, 3, 64, 64)
    assert -1 <= pixels.amin() < -0.5 < 0.5 < pixels.amax() <= 1
    shown = scene_batch(np.random.default_rng(5), 12, 64, "held_out")[0]
    assert sum(" and " in caption for caption in shown) == 4  # two tasks in six, twice


def test_mixed_captions_say_what_is_there_and_fit():
    """Things counted off the caption are those of the scene; training shows no held-out ones."""
    words, rng, names = caption_tokenizer(), np.random.default_rng(3), Counter()
    single = {plural: shape for shape, plural in PLURALS.items()} | {s: s for s in SHAPES}
    numbers = {"a": 1, "an": 1, **{word: n for n, word in NUMBERS.items()}}
    for _ in range(300):
        things = [(item.shape, item.color) for item in sample_mixed(rng).items]
        assert not any(held_out_color(*thing) for thing in things)
        said = mixed_caption(rng, things)
        ids = words(said).input_ids
        assert words.unk_token_id not in ids
        assert len(ids) <= image_target.PREFIX
        told = Counter()
        for part in said.removeprefix("a photo of ").split(" and "):
            number, *color, shape = part.split()
            told[single[shape], color[0] if color else ""] += numbers[number]
        colored = any(color for _, color in told)
        names[colored] += 1
        assert told == Counter((shape, color if colored else "") for shape, color in things)
    assert min(names[True], names[False]) > 50


# --- the image recipes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A pipeline folder that all of its recipes have gone through, two steps a stage."""
    folder = tmp_path_factory.mktemp("runs") / "image"
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        torch.manual_seed(0)
        shrink(patch)
        records = []
        for name in ("image-tokenizer", "image-target", "image-drafter"):
            records += recipes.train(name, folder, steps=2, batch_size=2)
    return folder, records


@pytest.mark.slow
def test_trained_folder_draws(trained):
    folder, records = trained
    assert [record["step"] for record in records] == [2] * 5
    pipe = ImagePipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    pipe.enable_speculation(SpecConfig(method="draft"))
    assert pipe("a photo of a red circle").images[0].size == (128, 128)
    assert pipe("a photo of a red circle", height=64).images[0].size == (64, 64)
    assert (pipe.transformer.grid, pipe.sibling.grid, pipe.drafter.grid) == (16, 8, 16)
    nothing = "cls_embedding.uncond_embedding"
    assert torch.equal(pipe.drafter.state_dict()[nothing], pipe.transformer.state_dict()[nothing])


def test_trained_folder_is_shippable(trained):
    folder, records = trained
    for part in ("vq_model", "sibling", "transformer", "drafter"):
        card, record = (folder / part / name for name in ("README.md", "training.json"))
        assert "Not good for" in card.read_text()
        saved = json.loads(record.read_text())
        assert saved["step"] == 2
        for name, value in saved["held_out"].items():
            assert f"- {name}: {value:.4g}" in card.read_text()
        (weights,) = (folder / part).glob("*.safetensors")
        assert {value.dtype for value in load_file(weights).values()} == {torch.float16}
        assert (folder / "training" / part / "checkpoint.pt").exists()
    figures = {name: value for record in records for name, value in record["held_out"].items()}
    assert all(np.isfinite(value) for value in figures.values())
    assert 0 < figures["held_out_acceptance"] <= 1
    assert 0 < figures["target_entropy"] <= np.log(64)


def test_finished_recipe_from_the_command_line(trained, tiny, capsys):
    folder, records = trained
    before = load_file(folder / "drafter" / "diffusion_pytorch_model.safetensors")
    options = ["--pipeline", str(folder), "--steps", "2", "--batch-size", "2"]
    assert main(["train", "image-drafter", *options]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["held_out"] == records[-1]["held_out"]
    after = load_file(folder / "drafter" / "diffusion_pytorch_model.safetensors")
    assert all(torch.equal(after[name], before[name]) for name in before)


def recipe_of(name: str, folder, config: TrainConfig):
    if name == "vq_model":
        return image_tokenizer.ImageTokenizerRecipe(config, folder)
    if name == "drafter":
        return image_drafter.ImageDrafterRecipe(config, folder)
    return image_target.ImageTargetRecipe(
        config, folder, name, init="sibling" if name == "transformer" else None
    )


@pytest.mark.parametrize(
    ("name", "step"),
    [("vq_model", 0), ("vq_model", 60), ("sibling", 0), ("transformer", 0), ("drafter", 0)],
)
def test_gradient_reaches_every_weight(trained, tiny, tmp_path, name, step):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        recipe = recipe_of(name, trained[0], TrainConfig(tmp_path, 100, 4))
        for key, weight in recipe.model.named_parameters():
            if key.endswith("output.weight"):  # zero at first, which would hide all behind it
                nn.init.normal_(weight, std=0.1)
    rng = np.random.default_rng(0)
    loss, metrics = recipe.loss(recipe.draw(rng, step), rng, step)
    loss.backward()
    assert all(np.isfinite([float(loss.detach()), *metrics.values()]))
    moved = [p for o in recipe.optimizers() for group in o.param_groups for p in group["params"]]
    wanted = {key: p for key, p in recipe.model.named_parameters() if p.requires_grad}
    assert {id(p) for p in moved} == {id(p) for p in wanted.values()}
    assert len(moved) == len(wanted)
    for key, weight in wanted.items():
        assert weight.grad is not None, key
        assert weight.grad.isfinite().all(), key
        assert weight.grad.any(), key


def test_matrices_of_the_blocks_go_to_muon(trained, tiny, tmp_path):
    config = TrainConfig(tmp_path, 100, 4)
    model = recipe_of("sibling", trained[0], config).model
    muon, adam = hybrid_optimizers(model, 1e-3, "float32")
    assert (type(muon), type(adam)) == (Muon, torch.optim.AdamW)
    names = {id(p): name for name, p in model.named_parameters()}
    inner, rest = (
        {names[id(p)] for group in o.param_groups for p in group["params"]} for o in (muon, adam)
    )
    assert "transformer.layers.1.attention.wqkv.weight" in inner
    assert {
        "transformer.tok_embeddings.weight",
        "transformer.output.weight",
        "transformer.norm.weight",
    } <= rest
    # every network of the pipeline shares the caption encoder
    shared = {name for name in names.values() if name.startswith("text_encoder")}
    assert shared
    assert inner | rest == set(names.values()) - shared


def test_large_grid_goes_on_from_the_small_one(trained, tiny, tmp_path):
    folder = trained[0]
    large = recipe_of("transformer", folder, TrainConfig(tmp_path, 100, 4)).model.transformer
    small = load_file(folder / "sibling" / "diffusion_pytorch_model.safetensors")
    assert large.grid == 16
    assert all(torch.equal(large.state_dict()[key], small[key].float()) for key in small)


@pytest.mark.parametrize(("init", "first"), [("sibling", {"cls_embedding"}), (None, None)])
def test_a_target_that_goes_on_first_learns_to_read_captions(trained, tiny, tmp_path, init, first):
    config = TrainConfig(tmp_path, 1000, 2)
    recipe = image_target.ImageTargetRecipe(config, trained[0], "sibling", init=init)
    weights = dict(recipe.model.transformer.named_parameters())
    batch = recipe.draw(np.random.default_rng(0), 0)
    for step in (0, SETTLE - 1, SETTLE):
        recipe.model.zero_grad()
        recipe.loss(batch, np.random.default_rng(0), step)[0].backward()
        learns = {name.split(".")[0] for name, w in weights.items() if w.grad is not None}
        everything = {name.split(".")[0] for name in weights}
        assert learns == (first if first and step < SETTLE else everything)


def test_drafter_loss_is_total_variation_of_guided_laws(trained, tiny, tmp_path):
    recipe = recipe_of("drafter", trained[0], TrainConfig(tmp_path, 100, 3))
    nn.init.normal_(recipe.model.output.weight, std=0.1)
    captions, pixels = scene_batch(np.random.default_rng([0, 2]), 3, 128)

    @torch.no_grad()
    def guided(network) -> Tensor:
        """Conditional and unconditional logits in two passes, joined at guidance 2."""
        tokens = recipe.vq.encode(pixels)[:, :-1]
        features, mask = encode_captions(recipe.tokenizer, recipe.text_encoder, captions, 16)
        nothing = recipe.teacher.cls_embedding.uncond_embedding.expand_as(features)
        c, u = (network(tokens, network.cls_embedding(f), mask) for f in (features, nothing))
        return u + 2 * (c - u)

    p, log_q = guided(recipe.teacher).softmax(-1), guided(recipe.model).log_softmax(-1)
    assert p.shape == log_q.shape == (3, 256, 64)
    overlap = torch.minimum(p, log_q.exp()).sum(-1).mean()
    cross = -(p * log_q).sum(-1).mean()
    rng = np.random.default_rng(1)
    for step in (2, 2 + recipe.pool):  # the second time from what was kept
        loss, metrics = recipe.loss(recipe.draw(rng, step), rng, step)
        assert metrics["acceptance"] == pytest.approx(float(overlap), abs=1e-3)  # kept as halves
        assert float(loss.detach()) == pytest.approx(float(1 - overlap + cross), abs=5e-3)
    assert list(recipe._examples) == [2]


def test_stage_trains_further_and_its_card_tells_all(trained, tiny, tmp_path):
    folder = tmp_path / "image"
    shutil.copytree(trained[0], folder, ignore=shutil.ignore_patterns("training"))
    before = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    options = ["--stage", "transformer", "--init", "transformer", "--seed", "7"]
    options += ["--steps", "1", "--batch-size", "2", "--pipeline", str(folder)]
    assert main(["train", "image-target", *options]) == 0
    after = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    shifts = [float((after[key] - before[key]).abs().max()) for key in before]
    assert 0 < max(shifts) < 0.05  # one step from where it stood, not from anew
    record = json.loads((folder / "transformer" / "training.json").read_text())
    runs = [record, record["before"], record["before"]["before"]]
    assert [r["component"] for r in runs] == ["transformer", "transformer", "sibling"]
    assert [r["config"]["seed"] for r in runs] == [7, 0, 0]
    assert runs[2]["before"] is None
    lines = (folder / "transformer" / "README.md").read_text().splitlines()
    told = [line for line in lines if line.startswith("- trained as")]
    assert [line.split("`")[1] for line in told] == ["sibling", "transformer", "transformer"]
    assert "seed 7" in told[-1]


@pytest.mark.parametrize("name", ["upsampler", "spatial"])
def test_components_that_know_no_grid_go_on_at_another_size(trained, tiny, tmp_path, name):
    """Trained for 128 px, then for 64: one step from where the stored weights stood."""
    folder = tmp_path / "image"
    shutil.copytree(trained[0], folder, ignore=shutil.ignore_patterns("training"))
    options = ["--steps", "1", "--batch-size", "2", "--pipeline", str(folder)]
    assert main(["train", f"image-{name}", *options]) == 0
    shutil.rmtree(folder / "training")
    before = load_file(folder / name / "diffusion_pytorch_model.safetensors")
    if name == "spatial":  # reads its target's own grid
        shutil.rmtree(folder / "transformer")
        shutil.copytree(folder / "sibling", folder / "transformer")
    size = ["--size", "64"] if name == "upsampler" else []
    assert main(["train", f"image-{name}", "--init", name, *size, "--seed", "3", *options]) == 0
    after = load_file(folder / name / "diffusion_pytorch_model.safetensors")
    assert all(weight.dtype == torch.float16 for weight in after.values())
    shifts = [float((after[key].float() - before[key].float()).abs().max()) for key in before]
    assert 0 < max(shifts) < 0.1
    record = json.loads((folder / name / "training.json").read_text())
    assert (record["config"]["seed"], record["before"]["config"]["seed"]) == (3, 0)
    assert "8×8" in (folder / name / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("image-target", {"stage": "siblings"}, "did you mean 'sibling'"),
        (
            "image-target",
            {"init": "sibling"},
            "for one stage: .*sibling, transformer of image-target",
        ),
        ("image-target", {"size": 64}, "for one stage: sibling, transformer"),
        ("image-drafter", {"init": "drafter"}, "for one stage: .*sibling, transformer"),
        ("image-spatial", {"size": 64}, "for one stage: sibling, transformer"),
        ("image-target", {"stage": "sibling", "size": 60}, "a multiple of 8 px, not 60"),
        ("image-upsampler", {"size": 72}, "a multiple of 16 px, not 72"),
        ("image-target", {"stage": "transformer", "init": "no-such"}, "no-such"),
    ],
)
def test_start_that_cannot_be(trained, tiny, name, options, match):
    with pytest.raises(InputError, match=match):
        recipes.train(name, trained[0], steps=1, **options)


def test_muon_iterates_in_the_precision_of_the_run(monkeypatch):
    seen = []
    monkeypatch.setattr(muon_module, "orthogonalize", lambda g: seen.append(g.dtype) or g)
    model = nn.Sequential(nn.Linear(4, 4))
    for precision in ("float32", "bfloat16"):
        model[0].weight.grad = torch.ones(4, 4)
        hybrid_optimizers(model, 1e-3, precision)[0].step()
    assert seen == [torch.float32, torch.bfloat16]
    assert model[0].weight.dtype == torch.float32


def test_recipes_need_what_comes_before(tmp_path, tiny):
    with pytest.raises(InputError, match="vq_model"):
        recipes.train("image-target", tmp_path, steps=1)
    with pytest.raises(InputError, match="did you mean 'image-drafter'"):
        recipes.train("image-draft", tmp_path)


def test_seed_covers_the_first_weights(tmp_path, tiny, monkeypatch):
    drawn = []

    class Seen:
        def __init__(self, recipe, *_):
            drawn.append(recipe.vq.encoder.conv_in.weight.detach().clone())

        def run(self):
            return {}

    monkeypatch.setattr(recipes, "Trainer", Seen)
    for seed, before in ((3, 1), (3, 2), (4, 1)):
        with torch.random.fork_rng():
            torch.manual_seed(before)
            recipes.train("image-tokenizer", tmp_path, seed=seed)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_resumed_tokenizer_keeps_its_running_means(tmp_path, tiny):
    config = TrainConfig(tmp_path, 200, 2)
    first = Trainer(recipe_of("vq_model", tmp_path, config), config)
    rng = np.random.default_rng(0)
    first.recipe.loss(first.recipe.draw(rng, 60), rng, 60)
    first.save()
    second = Trainer(recipe_of("vq_model", tmp_path, config), config)
    second.load()
    for name in ("count", "total"):
        ours, theirs = (t.recipe.codebook.get_buffer(name) for t in (first, second))
        assert torch.equal(ours, theirs)
