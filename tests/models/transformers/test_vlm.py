"""Vision-language models under speculation: the tokens, laws and states of transformers' own.

Tiny random checkpoints in the published format; the oracle is the unpatched model, in float32.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import vlms
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPImageProcessor,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    VipLlavaConfig,
    VipLlavaForConditionalGeneration,
)
from vlms import IMAGE, NEW, QWEN, SHARED, VIDEO, agree, asked, greedy, made, shorter

import mmspec
from mmspec import SpecConfig
from mmspec.engine.draft import Draft
from mmspec.engine.laws import OneHot
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.models.guided import GuidedDecoder
from mmspec.models.prefill import WHOLE
from mmspec.models.setting import Setting
from mmspec.models.transformers.prompted import prompted
from mmspec.models.transformers.vlm import VlmDecoder, spans

FAMILIES = [*SHARED, *QWEN, "paligemma", "gemma3"]
ROWS = {"one": [1], "two": [2], "none": [0], "ragged": [1, 2, 0]}
CLOSE = 1e-5


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints as they are published, and models from them, each made when asked for."""
    known = {}

    def get(family: str):
        if family not in known:
            known[family] = vlms.loaded(family, tmp_path_factory.mktemp(family))
        return known[family]

    return get


@pytest.fixture(params=FAMILIES)
def model(request, saved):
    yield saved(request.param)
    mmspec.disable_speculation(saved(request.param))


@pytest.fixture
def llava(saved):
    yield saved("llava")
    mmspec.disable_speculation(saved("llava"))


def ours(model, inputs, method="prompt-lookup", drafter=None, **more):
    """What `generate` gives with speculation; what it took is in `model.speculation_stats`."""
    mmspec.enable_speculation(model, SpecConfig(method), drafter)
    out = model.generate(**inputs, **{"max_new_tokens": NEW, "do_sample": False, **more})
    assert model.speculation_stats.fault is None
    return out


# --- greedy: the same tokens ----------------------------------------------------------------------


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_chains_and_trees_give_the_model_s_own_tokens(model, rows):
    """Copied text, remembered successors (a tree), and a drafter's tree with kept branches."""
    inputs = asked(model, rows)
    theirs = greedy(model, inputs)
    assert len(set(theirs.sequences[:, -NEW:].flatten().tolist())) > 1
    for method in ("plain", "prompt-lookup", "token-recycling"):
        assert agree(ours(model, inputs, method), theirs), method
        mmspec.disable_speculation(model)
    assert agree(ours(model, inputs, "tree", shorter(model)), theirs)
    assert min(model.speculation_stats.accepted) > 0


@pytest.mark.parametrize("method", ["early-exit", "layer-skip", "draft", "dynamic-tree", "merged"])
@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_other_methods(saved, family, method):
    model = saved(family)
    inputs = asked(model, ROWS["ragged"])
    theirs = greedy(model, inputs)
    drafter = shorter(model) if "drafter" in SpecConfig(method).resolve("vlm").needs else None
    assert agree(ours(model, inputs, method, drafter), theirs)
    mmspec.disable_speculation(model)


@pytest.mark.parametrize("way", ["both", "one"])
def test_gemma_2_behind_pictures(way):
    """Its layers slide in turn and its logits are capped; a prompt is read in either way."""
    text = {"model_type": "gemma2", "query_pre_attn_scalar": 8, "sliding_window": 64}
    model = made("paligemma", **text)
    inputs = asked(model, ROWS["ragged"])
    if way == "one":
        del inputs["token_type_ids"]
    theirs = greedy(model, inputs)
    for method in ("prompt-lookup", "token-recycling"):
        assert agree(ours(model, inputs, method), theirs), method
        mmspec.disable_speculation(model)


def test_both_ways_are_another_text_than_one():
    """The prompt's first columns know its last ones, or this tests nothing."""
    model = made("paligemma")
    inputs = asked(model, ROWS["ragged"])
    both = greedy(model, inputs)
    del inputs["token_type_ids"]
    assert not agree(both.sequences, greedy(model, inputs))


def test_what_is_not_read_both_ways_is_refused():
    model = made("paligemma", model_type="gemma2", sliding_window=8)
    mmspec.enable_speculation(model, "prompt-lookup")
    inputs = asked(model, [1])
    with pytest.raises(
        InputError, match=r"longer than the window of PaliGemma.*, 8, and read both"
    ):
        model.generate(**inputs, max_new_tokens=2)
    inputs["token_type_ids"][:, -1] = 1
    with pytest.raises(InputError, match="token_type_ids of an answer in the prompt"):
        model.generate(**inputs, max_new_tokens=2)


def test_several_outputs_of_a_row(model):
    """Rows and their pictures are repeated, the drafter's too: it is right about every token."""
    inputs = asked(model, [1, 2])
    more = {"num_return_sequences": 2, "do_sample": True, "top_k": 1}
    theirs = greedy(model, inputs, **more)
    assert len(theirs.sequences) == 4
    assert agree(ours(model, inputs, "draft", model, **more), theirs)
    assert model.speculation_stats.accepted == model.speculation_stats.drafted


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "qwen3_vl"])
@pytest.mark.parametrize("rows", [[1], [1, 1]], ids=str)
def test_prompts_that_end_on_a_picture(saved, family, rows):
    """The prompt's last column, which is the first call's input, is a feature."""
    model = saved(family)
    inputs = asked(model, rows)
    last = int((inputs["input_ids"][0] == IMAGE).nonzero().max()) + 1
    words = inputs["input_ids"].shape[1] - last
    if len(rows) > 1:  # the first row ends so, and the other one does not
        inputs["input_ids"][0] = inputs["input_ids"][0].roll(words)
        inputs["input_ids"][0, :words] = 0
        inputs["attention_mask"][0] = inputs["attention_mask"][0].roll(words)
        inputs["attention_mask"][0, :words] = 0
    else:
        inputs["input_ids"] = inputs["input_ids"][:, :last]
        inputs["attention_mask"] = inputs["attention_mask"][:, :last]
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE).int()
    assert inputs["input_ids"][0, -1] == IMAGE
    theirs = greedy(model, inputs)
    assert agree(ours(model, inputs), theirs)
    mmspec.disable_speculation(model)


@pytest.mark.parametrize("rows", [[1], [1, 2, 0]], ids=str)
def test_guidance(llava, rows):
    """The unconditional rows have no picture, and other padding."""
    inputs = asked(llava, rows)
    inputs |= {"guidance_scale": 1.5, "negative_prompt_ids": torch.tensor([[5, 6]] * len(rows))}
    theirs = greedy(llava, inputs)
    assert agree(ours(llava, inputs, "tree", shorter(llava)), theirs)


def test_a_processor_s_own_prompts(llava):
    """Pictures and text through LLaVA's processor; the shorter question is padded."""
    names = ["<pad>", *"abcdefgh", *"?!", "<image>"]
    words = {name: n for n, name in enumerate(names[:-1])} | {"<image>": IMAGE}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<image>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", padding_side="left"
    )
    size = {"height": 24, "width": 24}
    pictures = CLIPImageProcessor(size={"shortest_edge": 24}, crop_size=size)
    processor = LlavaProcessor(pictures, tokenizer, 8, "default", num_additional_image_tokens=1)
    rng = torch.Generator().manual_seed(0)
    images = [
        Image.fromarray(torch.randint(256, (h, w, 3), generator=rng, dtype=torch.uint8).numpy())
        for h, w in ((30, 40), (24, 24))
    ]
    asks = ["a b <image> c d ?", "<image> e ?"]
    inputs = processor(images=images, text=asks, padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    assert (inputs["input_ids"] == IMAGE).sum(1).tolist() == [9, 9]
    theirs = greedy(llava, inputs)
    assert agree(ours(llava, inputs, "tree", shorter(llava)), theirs)


# --- drafters that see ----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [[1], [1, 2, 0]], ids=str)
def test_a_drafter_sees_what_the_model_sees(model, rows):
    """The model as its own drafter is right about every token, and is not with other pictures."""
    inputs = asked(model, rows)
    theirs = greedy(model, inputs)
    assert agree(ours(model, inputs, "draft", model), theirs)
    assert model.speculation_stats.accepted == model.speculation_stats.drafted
    most = sum(model.speculation_stats.accepted)
    mmspec.disable_speculation(model)
    other = asked(model, rows, seed=1)
    other = {**inputs, "pixel_values": other["pixel_values"]}
    assert agree(ours(model, inputs, "draft", model, drafter_inputs=other), theirs)
    assert sum(model.speculation_stats.accepted) < most


def test_a_drafter_with_another_layout(llava):
    """More patches in a picture: it is given what its own processor makes of the same."""
    config = shorter(llava).config
    config.vision_config.image_size = 32  # 16 patches in place of 9
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drafter = type(llava)(config).eval()
    weights = llava.state_dict()
    own = drafter.state_dict()
    same = {n: weights[n] for n, w in own.items() if weights[n].shape == w.shape}
    drafter.load_state_dict({**own, **same})
    inputs = asked(llava, [1, 0])
    texts = [[5, 6, *[IMAGE] * 16, 7, 8], [0] * 14 + [9, 1, 2, 3, 4, 5]]
    pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    mask = [[1] * 20, [0] * 14 + [1] * 6]
    given = {"input_ids": torch.tensor(texts), "attention_mask": torch.tensor(mask)}
    given |= {"pixel_values": pixels}
    theirs = greedy(llava, inputs)
    assert agree(ours(llava, inputs, "tree", drafter, drafter_inputs=given), theirs)
    assert sum(llava.speculation_stats.accepted) > 0
    with pytest.raises(InputError, match=r"can't read these pictures.*drafter_inputs="):
        llava.generate(**inputs, max_new_tokens=4)


def test_a_drafter_that_reads_text_alone(llava):
    drafter = LlamaForCausalLM(LlamaConfig(**{**vlms.text_sizes(), "num_hidden_layers": 1})).eval()
    inputs = asked(llava, [1, 2])
    theirs = greedy(llava, inputs)
    given = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]])}
    assert agree(ours(llava, inputs, "draft", drafter, drafter_inputs=given), theirs)
    # without inputs of its own it reads what the model is told, less the pictures
    assert agree(ours(llava, inputs, "draft", drafter), theirs)


# --- laws and states ------------------------------------------------------------------------------


def alone(inputs: dict, row: int, model) -> dict:
    """A row's inputs without padding; there is one picture in every row."""
    real = inputs["attention_mask"][row].bool()
    out = {
        name: value[row][real][None]
        for name, value in inputs.items()
        if name in ("input_ids", "mm_token_type_ids", "token_type_ids")
    }
    before, at = 0, row
    if model.config.model_type == "internvl":
        at = slice(2 * row, 2 * row + 2)
    elif "image_grid_thw" in inputs:
        sizes = inputs["image_grid_thw"].prod(-1).tolist()
        before = sum(sizes[:row])
        at = slice(before, before + sizes[row])
        out["image_grid_thw"] = inputs["image_grid_thw"][row : row + 1]
    pixels = inputs["pixel_values"][at]
    out["pixel_values"] = pixels if isinstance(at, slice) else pixels[None]
    for name in ("image_sizes", "batch_num_images", "pixel_attention_mask"):
        if name in inputs:
            out[name] = inputs[name][row : row + 1]
    return out


@torch.no_grad()
def forward(model, inputs: dict, more: list[int]):
    """transformers' own pass over a row and what follows, without a cache."""
    ids = torch.cat([inputs["input_ids"], torch.tensor([more], dtype=torch.long)], dim=1)
    given = {**inputs, "input_ids": ids, "use_cache": False}
    if "mm_token_type_ids" in inputs:
        given["mm_token_type_ids"] = (ids == IMAGE).int()
    if "token_type_ids" in inputs:
        kind = int(model.config.model_type == "paligemma")  # of an answer; Gemma 3's is text
        given["token_type_ids"] = F.pad(inputs["token_type_ids"], (0, len(more)), value=kind)
    out = model(**given, output_hidden_states=True)
    return out.logits[0], out.hidden_states[-1][0]


def started(model, inputs: dict, limit: int = 8) -> tuple[VlmDecoder, GuidedDecoder]:
    decoder = prompted(model)
    given = {n: v for n, v in inputs.items() if n not in ("input_ids", "attention_mask")}
    mask = inputs["attention_mask"].bool()
    prompt = decoder.prompt(inputs["input_ids"], mask, limit, **given)
    decoder.place(prompt)
    setting = Setting(prompt.embedded, mask, None, Warp(), limit, 0, 8, both_ways=prompt.both_ways)
    network = GuidedDecoder(decoder, setting)
    network.watch(prefix=WHOLE)
    network.start(len(mask))
    return decoder, network


@torch.inference_mode()
def test_laws_and_hidden_states(model):
    """Ragged rows and a tree against the model's own pass over each row by itself."""
    inputs = asked(model, [1, 1])
    decoder, network = started(model, inputs)
    states = network.hidden
    first = network.extend(torch.tensor([[0], [0]]), [-1, -1])
    parents = torch.tensor([[-1, -1, 0, 2], [-1, 0, 0, 1]])
    nodes = torch.tensor([[3, 7, 5, 9], [8, 2, 6, 4]])
    root = torch.tensor([[11], [12]])
    draft = Draft(nodes, torch.tensor([4, 4]), OneHot(), parents)
    laws = network.extend(torch.cat([root, nodes], 1), [0, 0], draft)
    for row in range(2):
        own = alone(inputs, row, model)
        logits, hidden = forward(model, own, [])
        width = len(logits)
        assert torch.allclose(states[row, 1 - width :], hidden[:-1], atol=CLOSE)
        assert torch.allclose(first[row, 0], logits[-1].softmax(-1), atol=CLOSE)
        assert torch.allclose(decoder.logits(hidden), logits, atol=CLOSE)
        for node in range(-1, 4):
            path, at = [], node
            while at >= 0:
                path.insert(0, int(nodes[row, at]))
                at = int(parents[row, at])
            logits, hidden = forward(model, own, [int(root[row]), *path])
            assert torch.allclose(laws[row, node + 1], logits[-1].softmax(-1), atol=CLOSE)
            assert torch.allclose(network.hidden[row, node + 1], hidden[-1], atol=CLOSE)


@torch.inference_mode()
def test_the_picture_matters(model):
    inputs = asked(model, [1])
    other = {**inputs, "pixel_values": asked(model, [1], seed=1)["pixel_values"]}
    laws = [started(model, i)[1].extend(torch.tensor([[0]]), [-1]) for i in (inputs, other)]
    assert (laws[0] - laws[1]).abs().max() > 1e-2


# --- the prompt -----------------------------------------------------------------------------------


@torch.inference_mode()
def test_what_a_prompt_says_of_its_pictures(model):
    inputs = asked(model, [1, 2, 0])
    given = {n: v for n, v in inputs.items() if n not in ("input_ids", "attention_mask")}
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    prompt = prompted(model).prompt(ids, mask, NEW, **given)
    assert torch.equal(prompt.visual, ids == IMAGE)
    hidden = prompt.visual | ~mask
    assert (prompt.text == -1).equal(hidden)
    assert torch.equal(prompt.text[~hidden], ids[~hidden])
    tiles = 3 if model.config.model_type in ("idefics3", "smolvlm") else 1
    tiles = 2 if model.config.model_type == "internvl" else tiles
    assert [len(row) for row in prompt.images] == [tiles, 2 * tiles, 0]
    seen = torch.zeros_like(mask)
    for row, pictures in enumerate(prompt.images):
        for first, count in pictures:
            assert not seen[row, first : first + count].any()
            seen[row, first : first + count] = True
    assert torch.equal(seen, prompt.visual)
    twice = prompt.repeated(2)
    assert torch.equal(twice.visual, prompt.visual.repeat_interleave(2, 0))
    assert twice.images[2:4] == [prompt.images[1]] * 2
    wider = prompt.widened(mask.shape[1] + 3)
    assert torch.equal(wider.visual[:, 3:], prompt.visual)
    assert wider.images[0][0] == (prompt.images[0][0][0] + 3, prompt.images[0][0][1])


def test_pictures_that_adjoin_are_told_apart():
    visual = torch.tensor([[0, 1, 1, 1, 0, 1], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]).bool()
    assert spans(visual, [2, 1, 1, 2]) == [[(1, 2), (3, 1), (5, 1)], [(0, 2)], []]
    assert spans(visual, [4, 0, 2]) == [[(1, 3), (5, 1)], [(0, 2)], []]
    assert spans(visual[2:], []) == [[]]


# --- what can't be --------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llava", "smolvlm", "qwen2_vl", "qwen3_vl"])
def test_pictures_and_placeholders_that_don_t_match(saved, family):
    model = saved(family)
    one, two, none = (asked(model, [n]) for n in (1, 2, 0))
    text = ("input_ids", "attention_mask", "mm_token_type_ids")
    for words, pictures in ((one, two), (two, one), (one, none), (none, one)):
        given = {n: v for n, v in words.items() if n in text}
        given |= {n: v for n, v in pictures.items() if n not in text}
        with pytest.raises(InputError, match="image tokens and the pictures take") as error:
            ours(model, given)
        assert "\n" not in str(error.value)
        mmspec.disable_speculation(model)


@pytest.mark.parametrize("family", ["llava_onevision", "qwen2_5_vl"])
def test_videos_are_refused(saved, family):
    model = saved(family)
    mmspec.enable_speculation(model)
    with pytest.raises(InputError, match="can't honour videos of"):
        model.generate(
            torch.tensor([[1, VIDEO]]),
            pixel_values_videos=torch.zeros(1, 1, 3, 16, 16),
            max_new_tokens=2,
        )
    mmspec.disable_speculation(model)


def test_a_family_that_nobody_knows(llava):
    config = llava.config.to_dict()
    config = {n: config[n] for n in ("text_config", "vision_config", "image_token_index")}
    model = VipLlavaForConditionalGeneration(VipLlavaConfig(**config, vision_feature_layers=[-2]))
    mmspec.enable_speculation(model.eval())
    with pytest.raises(InputError, match=r"VipLlava.* is none of the models whose pictures"):
        model.generate(**asked(llava, [1]), max_new_tokens=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input_ids": torch.ones(3, 4, dtype=torch.long)}, "3 prompts of the drafter's own for 2"),
        ({"pixel_values": torch.zeros(1)}, "the drafter's own inputs have no input_ids"),
    ],
)
def test_inputs_of_the_drafter_s_own(llava, given, message):
    inputs = asked(llava, [1, 0])
    with pytest.raises(InputError, match=message):
        ours(llava, inputs, "draft", shorter(llava), drafter_inputs=given)


def test_inputs_for_no_drafter(llava):
    with pytest.raises(InputError, match="drafter_inputs, and no draft model"):
        ours(llava, asked(llava, [0]), drafter_inputs={})


def test_features_of_another_model(llava):
    """Encoded pictures are the model's own: a drafter of another width can't use them."""
    inputs = asked(llava, [1])
    with torch.no_grad():
        seen = llava.get_image_features(inputs.pop("pixel_values"), return_dict=True)
    inputs["mm_encoder_outputs"] = {"image": seen}
    drafter = made("llava", hidden_size=16)
    theirs = greedy(llava, inputs)
    assert agree(ours(llava, inputs), theirs)
    mmspec.disable_speculation(llava)
    with pytest.raises(InputError, match=r"encoded for a model of width 32, and .* has 16"):
        ours(llava, inputs, "draft", drafter)
