"""Published LlamaGen: what its checkpoints bring beside weights, and those that are told classes.

Layout and arithmetic as in `test_checkpoints`, from the authors' repository; what they draw with is
that of `sample_t2i.py` and `sample_c2i.py`.
"""

from __future__ import annotations

import copy

import pytest
import torch
from test_checkpoints import (
    TINY,
    Layout,
    from_prefix,
    llamagen_layout,
    millions,
    one_line,
    random_weights,
    rotary_table,
    shapes,
    text_folder,
    tiny_sizes,
    vq_file,
    write,
)

from mmspec import ImagePipeline, SpecConfig
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.models.llamagen.published import SIZES, load_llamagen
from mmspec.models.llamagen.transformer import LlamaGenTransformer
from mmspec.models.text_encoder import encode_captions

__all__ = ["text_folder", "tiny_sizes"]  # fixtures


def class_layout(classes: int = 1000, **sizes: int) -> Layout:
    """The same, told classes: one table, whose last row stands for none."""
    layout = llamagen_layout(**sizes)
    told = {name: shape for name, shape in layout.items() if not name.startswith("cls_embedding.")}
    width = layout["norm.weight"][0]
    return {**told, "cls_embedding.embedding_table.weight": (classes + 1, width)}


@pytest.mark.parametrize(
    ("dim", "layers", "size"),
    [(768, 12, 111), (1024, 24, 343), (1280, 36, 775), (1536, 48, 1400), (3200, 24, 3100)],
    ids=["B", "L", "XL", "XXL", "3B"],
)
def test_class_conditional_llamagen_has_the_published_tensors(dim, layers, size):
    """GPT-B … GPT-3B, as many million weights as the authors count."""
    layout = class_layout(dim=dim, layers=layers)
    with torch.device("meta"):
        model = LlamaGenTransformer(dim=dim, model_type="c2i", cls_token_num=1, **SIZES[dim])
    assert shapes(model) == layout
    assert millions(layout) == pytest.approx(size, rel=0.02)


def test_defaults_of_the_authors_unless_the_call_says_otherwise(tmp_path, text_folder, tiny_sizes):
    path = write(tmp_path / "t2i_XL_stage1_256.pt", llamagen_layout(**TINY))
    pipe = ImagePipeline.from_llamagen(path, vq_file(tmp_path), text_folder, image_size=256)
    pipe.set_progress_bar_config(disable=True)
    seen = []
    pipe.on_engine = lambda engine: seen.append(
        (engine.target.model.scale, engine.target.model.warp)
    )

    def warpers(**call):
        pipe("a star", callback_on_step_end=lambda p, *_: setattr(p, "interrupt", True), **call)
        return seen[-1]

    scale, warp = warpers()
    assert (scale, warp.temperature, warp.top_k, warp.top_p) == (7.5, 1.0, 1000, 1.0)
    scale, warp = warpers(guidance_scale=2.0, top_k=5)
    assert (scale, warp.top_k) == (2.0, 5)


def test_captions_are_encoded_as_the_authors_clean_them(tmp_path, text_folder, tiny_sizes):
    path = write(tmp_path / "t2i_XL_stage1_256.pt", llamagen_layout(**TINY))
    pipe = ImagePipeline.from_llamagen(path, vq_file(tmp_path), text_folder, image_size=256)
    family, grid = pipe.image_model(pipe.transformer), pipe.network(None, None)[1]
    messy = ["A red circle — @someone https://a.com/b", "A_BLUE_star_left_of_a_ring &amp; a heart"]
    clean = ["a red circle", "a blue star left of a ring a heart"]
    told, mask = family.condition(messy, messy, True, grid)
    features, clean_mask = encode_captions(pipe.tokenizer, pipe.text_encoder, clean, 16)
    assert torch.equal(mask, clean_mask.repeat(2, 1))
    assert torch.allclose(told, features.repeat(2, 1, 1), atol=1e-6)


@pytest.mark.parametrize("name", ["t2i_XL_stage2_512.pt", "c2i_XL_384.pt"])
def test_grid_is_told_and_never_guessed(tmp_path, tiny_sizes, name):
    """From no file's name: by an argument, or by the tensor that depends on it."""
    layout = class_layout(**TINY) if name.startswith("c2i") else llamagen_layout(**TINY)
    path = write(tmp_path / name, layout)
    with pytest.raises(InputError, match="image_size=256, 384 or 512") as caught:
        load_llamagen(path)
    one_line(caught)
    assert load_llamagen(path, grid=24).grid == 24
    prefix = 1 if name.startswith("c2i") else 16
    write(path, layout, tensors={"freqs_cis": torch.zeros(prefix + 32**2, 8, 2)})
    assert load_llamagen(path).grid == load_llamagen(path, grid=32).grid == 32
    with pytest.raises(InputError, match="which are not 16×16"):
        load_llamagen(path, grid=16)
    write(path, layout, tensors={"freqs_cis": torch.zeros(1000, 8, 2)})
    with pytest.raises(InputError, match="which are not a square"):
        load_llamagen(path)
    for size in (100, 0, -16):
        with pytest.raises(InputError, match="multiple of 16"):
            ImagePipeline.from_llamagen(path, vq_file(tmp_path), image_size=size)


# --- told classes ---------------------------------------------------------------------------------


@pytest.fixture
def class_pipe(tmp_path, tiny_sizes):
    """As FSDP wrote the larger ones: the whole file is the state dict; 4×4 tokens."""
    path = tmp_path / "c2i_XXL_384.pt"
    weights = random_weights(class_layout(classes=10, **TINY))
    weights["output.weight"] *= 4
    torch.save(weights, path)
    pipe = ImagePipeline.from_llamagen(path, vq_file(tmp_path), dtype=torch.float64, image_size=64)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_class_to_picture(class_pipe):
    """Greedy tokens equal a slow loop over the plain arithmetic; class 10 of 10 stands for none."""
    drawn = class_pipe(class_labels=[7, 3], guidance_scale=3.0, temperature=0, output_type="tokens")
    weights = class_pipe.transformer.state_dict()
    table, tokens = rotary_table(4, 16, 1).float(), torch.zeros(2, 0, dtype=torch.long)
    mask = torch.ones(4, 1)
    prefix = weights["cls_embedding.embedding_table.weight"][[7, 3, 10, 10]][:, None]
    for _ in range(16):
        length = 1 + tokens.shape[1]
        logits = from_prefix(weights, tokens.repeat(2, 1), prefix, mask, 2, table[:length])[:, -1]
        guided = logits[2:] + 3.0 * (logits[:2] - logits[2:])
        tokens = torch.cat([tokens, guided.argmax(-1)[:, None]], 1)
    assert torch.equal(drawn.images, tokens)
    assert len(tokens.unique()) > 3
    family = class_pipe.image_model(class_pipe.transformer)
    assert (family.guidance_scale, family.top_k) == (4.0, 2000)  # sample_c2i.py


def test_classes_speculate_and_are_saved(class_pipe, tmp_path, capsys):
    """As labels, one or more, or as prompts; from Python and from the command line."""
    class_pipe.save_pretrained(tmp_path / "folder")
    again = ImagePipeline.from_pretrained(tmp_path / "folder", torch.float64)
    again.set_progress_bar_config(disable=True)
    assert again.text_encoder is None
    plain = class_pipe(class_labels=7, temperature=0, output_type="tokens").images
    again.enable_speculation(SpecConfig("scd"))
    for told in ({"class_labels": [7]}, {"prompt": "7"}, {"prompt": ["7"]}):
        assert torch.equal(again(**told, temperature=0, output_type="tokens").images, plain)
    assert again(class_labels=torch.tensor([7, 9])).images[1].size == (64, 64)
    out = tmp_path / "out"
    command = ["generate", "7", "--model", str(tmp_path / "folder"), "--method", "scd"]
    assert main([*command, "-o", str(out)]) == 0
    assert (out / "scd-0.png").exists()
    assert main(["generate", "a star", *command[2:], "-o", str(out)]) == 2
    assert "classes, numbers from 0 to 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({}, "give class_labels, or numbers as prompt"),
        ({"prompt": "a star"}, "numbers from 0 to 9"),
        ({"class_labels": 10}, "numbers from 0 to 9, not 10"),
        ({"class_labels": 1, "negative_prompt": "a star"}, "no negative_prompt"),
    ],
    ids=str,
)
def test_classes_that_are_none(class_pipe, call, message):
    with pytest.raises(InputError, match=message):
        class_pipe(**call)


def test_classes_are_where_their_embeddings_are(class_pipe):
    """A device map leaves the network's other weights where they were, and copies them."""
    network = copy.deepcopy(class_pipe.transformer)
    network.output.to("meta")
    family, grid = class_pipe.image_model(network), class_pipe.network(None, None)[1]
    labels, mask = family.condition(["3"], None, True, grid)
    assert labels.device == mask.device == torch.device("cpu")
    assert family.embed(labels).shape[:2] == (2, 1)


def test_captions_are_no_classes(tmp_path, text_folder, tiny_sizes, class_pipe):
    path = write(tmp_path / "t2i.pt", llamagen_layout(**TINY))
    with pytest.raises(InputError, match="needs a text encoder and a tokenizer"):
        ImagePipeline.from_llamagen(path, vq_file(tmp_path), image_size=64)
    captioned = ImagePipeline.from_llamagen(path, vq_file(tmp_path), text_folder, image_size=64)
    with pytest.raises(InputError, match="give prompt, not class_labels"):
        captioned(class_labels=3)
    parts = {**captioned.components, "drafter": class_pipe.transformer}
    with pytest.raises(InputError, match=r"the drafter's model_type \(c2i\)"):
        ImagePipeline(**parts)
