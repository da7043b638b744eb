"""Caches that keep some entries of a prompt: chosen as published, exact where drafts lose them."""

from __future__ import annotations

import pytest
import torch
from toys import EXACT, distance, whole_loop
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from vlms import NEW, QWEN, SHARED, VOCAB, agree, asked, greedy, made, shorter, text_sizes

import mmspec
from mmspec import SpecConfig
from mmspec.compress.speckv import SpecKv
from mmspec.draft.draft_model import ModelDrafter
from mmspec.engine.length.constant import ConstantLength
from mmspec.errors import InputError
from mmspec.methods import parts
from mmspec.models.guided import GuidedDecoder
from mmspec.models.kept_entries import Keeping, KeptDecoder, best_entries
from mmspec.models.setting import Setting
from mmspec.models.target import TokenTarget
from mmspec.models.transformers.causal import CausalDecoder
from mmspec.models.transformers.tiny import tiny
from mmspec.pipelines.vlm.beside import Beside
from mmspec.pipelines.vlm.generate import SpeculativeGeneration
from mmspec.pipelines.vlm.memory import Memory
from mmspec.pipelines.vlm.prompt_caches import Lookahead, PromptCaches
from mmspec.pipelines.vlm.request import Request

PICTURES = [1, 2, 0]
NAMES = list(parts("cache"))
WINDOW, KERNEL = 4, 3


def text(layers=3, seed=0, vocab=VOCAB):
    """A language model, and prompts of unequal lengths."""
    config = LlamaConfig(**{**text_sizes(), "num_hidden_layers": layers, "vocab_size": vocab})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    model.generation_config.pad_token_id = 0
    return model.double().eval()


def in_double(inputs):
    return {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}


@pytest.fixture(scope="module")
def known():
    """A model of a family in float64, its drafter, a ragged batch, and what it answers by itself.

    The family "text" is a language model.
    """
    models = {}

    def get(family):
        if family not in models:
            if family == "text":
                model, small = text(), text(2)
                small.load_state_dict(model.state_dict(), strict=False)
                ids = torch.randint(1, 30, (3, 40), generator=torch.Generator().manual_seed(5))
                mask = (torch.arange(40) >= torch.tensor([[0], [17], [3]])).long()
                inputs = {"input_ids": ids * mask, "attention_mask": mask}
            else:
                model = made(family).double()
                small, inputs = shorter(model).double(), in_double(asked(model, PICTURES))
            models[family] = model, small, inputs, greedy(model, inputs)
        return models[family]

    yield get
    for model, *_ in models.values():
        mmspec.disable_speculation(model)


def answered(known_, method, **options):
    """Tokens and counters of a method."""
    model, small, inputs, _ = known_
    config = SpecConfig(method, **options)
    needs = config.resolve("vlm").needs
    mmspec.enable_speculation(model, config, drafter=small if "drafter" in needs else None)
    out = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    assert model.speculation_stats.fault is None
    return out, model.speculation_stats


def choosing(name, slot="target", **more):
    """Options of a compressor of a cache."""
    own = {"cache_window": WINDOW} if name != "streaming" else {}
    own |= {"cache_kernel": KERNEL} if name in ("speckv", "snapkv") else {}
    return {f"{slot}_cache": name, **own, **more}


def alone(inputs, row):
    """A row without its padding, and its pictures: those of llava are all alike in size."""
    real = inputs["attention_mask"][row].bool()
    given = {"input_ids": inputs["input_ids"][row, real][None]}
    if "pixel_values" in inputs and PICTURES[row]:
        first = sum(PICTURES[:row])
        given["pixel_values"] = inputs["pixel_values"][first : first + PICTURES[row]]
    return given


# --- an independent computation of what is published ----------------------------------------------


def published(weights, entries, ahead, keep, mean=False):
    """Entries that stay, of a layer, by key-value head: with lists, as the formula stands.

    Args:
        weights: of the queries of all tokens, by head: lists of lists.
        entries: that may be kept: all of the prompt but its last token.
        ahead: tokens that were written behind it.
    """
    last = range(max(0, entries - WINDOW), entries)
    queries = [*last, entries, *range(entries + 1, entries + 1 + ahead)]
    share, out = len(weights) // text_sizes()["num_key_value_heads"], []
    for first in range(0, len(weights), share):
        heads = weights[first : first + share]
        scores = []
        for place in range(entries - len(last)):
            paid = [head[query][place] for head in heads for query in queries]
            scores.append(sum(paid) / len(paid) if mean else max(paid))
        half = KERNEL // 2
        pooled = [max(scores[max(0, n - half) : n + half + 1]) for n in range(len(scores))]
        order = sorted(range(len(pooled)), key=lambda n: (-pooled[n], n))
        out.append(sorted([*order[: keep - len(last)], *last]))
    return out


def by_hand(model, given, lookahead, keep, mean=False):
    """Greedy answer of transformers over a cache of chosen entries, at the whole prompt's places.

    Returns:
        The tokens, and by layer and head the entries that stayed.
    """
    ids = given["input_ids"]
    entries, ahead = ids.shape[1] - 1, len(lookahead)
    whole = {**given, "input_ids": torch.cat([ids, torch.tensor([lookahead]).long()], 1)}
    config = model.config.get_text_config()
    before, config._attn_implementation = config._attn_implementation, "eager"
    seen = model(**whole, output_attentions=True, use_cache=True)
    config._attn_implementation = before
    cache, chosen = DynamicCache(), []
    for number, layer in enumerate(seen.past_key_values.layers):
        kept = published(seen.attentions[number][0].tolist(), entries, ahead, keep, mean)
        chosen.append(kept)
        both = [
            torch.stack([x[0, head, places] for head, places in enumerate(kept)])[None]
            for x in (layer.keys, layer.values)
        ]
        cache.update(*both, number)
    out, token = [], ids[:, -1:]
    for place in range(NEW):
        positions = torch.tensor([[entries + place]])
        told = model(input_ids=token, past_key_values=cache, position_ids=positions, use_cache=True)
        token = told.logits[:, -1:].argmax(-1)
        out.append(token.item())
    return out, chosen


@pytest.mark.parametrize("family", ["llava", "text"])
@pytest.mark.parametrize(("name", "ahead"), [("speckv", None), ("speckv", 3), ("snapkv", None)])
def test_what_stays_is_what_is_published(known, monkeypatch, family, name, ahead):
    """Row by row, and the answers behind it: nothing depends on neighbours, or forgets its place.

    A row's own answer ends by a token that another one has early: its lookahead is shorter.
    """
    model, small, inputs, theirs = known(family)
    found = []

    def watched(*given):
        found.append(best_entries(*given))
        return found[-1]

    monkeypatch.setattr("mmspec.models.kept_entries.best_entries", watched)
    more = {"lookahead_tokens": ahead} if name == "speckv" else {}
    out, stats = answered(known(family), "plain", **choosing(name, target_cache_keep=0.5), **more)
    assert stats.contract == "lossy"
    assert stats.calls == [NEW] * 3
    mmspec.disable_speculation(model)
    for row in range(3):
        given = alone(inputs, row)
        entries, written = given["input_ids"].shape[1] - 1, []
        if name == "speckv":
            most = NEW if ahead is None else ahead
            written = small.generate(**given, max_new_tokens=most, do_sample=False)[
                0, entries + 1 :
            ]
            assert stats.lookahead_tokens[row] == most
        keep = round(entries / 2)
        assert stats.cache_entries[row] == keep
        tokens, chosen = by_hand(model, given, [*written], keep, mean=name == "snapkv")
        assert out[row, -NEW:].tolist() == tokens
        blank = inputs["attention_mask"].shape[1] - 1 - entries
        for layer, kept in enumerate(chosen):
            mine = found[layer][row, :, -keep:] - blank
            assert mine.tolist() == kept
    assert not agree(out, theirs)


@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "text"])
@pytest.mark.parametrize("kept", ["target", "draft", "both"])
@pytest.mark.parametrize("sampled", [False, True])
def test_the_draft_model_reads_its_prompt_once(known, monkeypatch, family, kept, sampled):
    """What it read to write ahead it drafts behind, the same tokens as if it had read it again.

    Rows write ahead to ends of their own; pictures are looked at once as well.
    """
    model, small, inputs, _ = known(family)
    slots = ("draft", "target") if kept == "both" else (kept,)
    options = {}
    for slot in slots:
        options |= choosing("speckv", slot)
    read, prompts = [], []
    prefill, prompted_ = GuidedDecoder._prefill, Request.prompt

    def noted(self, lines, first, *rest):
        if self.decoder.model is small:
            read.append(self.offset - 1 - first)
        return prefill(self, lines, first, *rest)

    def asked_for(self, decoder, *rest, **more):
        if decoder.model is small:
            prompts.append(decoder)
        return prompted_(self, decoder, *rest, **more)

    monkeypatch.setattr(GuidedDecoder, "_prefill", noted)
    monkeypatch.setattr(Request, "prompt", asked_for)
    how = {"max_new_tokens": NEW, "do_sample": sampled, "eos_token_id": [*range(0, 38, 7)]}
    width, found = inputs["input_ids"].shape[1], []
    for again in (False, True):
        with monkeypatch.context() as patch:
            if again:
                patch.setattr(Lookahead, "forget", lambda self: None)
                patch.setattr(PromptCaches, "follow", lambda *given: None)
                patch.setattr(PromptCaches, "seen", lambda *given: None)
            mmspec.enable_speculation(model, SpecConfig("draft", **options), drafter=small)
            read.clear()  # it was tried out
            torch.manual_seed(7)
            out, stats = model.generate(**inputs, **how), model.speculation_stats
        assert stats.fault is None
        found.append((out, stats.accepted, stats.drafted, stats.draft_cache_entries))
        assert [width - 1] * (1 + again) == read
        assert len(prompts) == 1 + again
        if not again:
            assert len(set(stats.lookahead_tokens)) > 1  # rows ended at different times
        prompts.clear()
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


@pytest.mark.parametrize("kind", ["mistral", "falcon_h1", "bloom"])
def test_draft_models_of_other_layers_go_on_where_their_caches_can(monkeypatch, kind):
    """Of layers whose window has moved on the prompt is read again; states and biases are kept."""
    model, small = tiny("llama", torch.float64), tiny(kind, torch.float64)
    ids = torch.randint(3, 36, (1, 16), generator=torch.Generator().manual_seed(0))
    read, prefill = [], GuidedDecoder._prefill

    def noted(self, lines, first, *rest):
        if self.decoder.model is small:
            read.append(self.offset - 1 - first)
        return prefill(self, lines, first, *rest)

    monkeypatch.setattr(GuidedDecoder, "_prefill", noted)
    how = {"max_new_tokens": 20, "do_sample": False}
    keeps = dict(target_cache="speckv", cache_window=WINDOW)
    mmspec.enable_speculation(model, SpecConfig("plain", **keeps), drafter=small)
    plain = model.generate(ids, **how)
    mmspec.enable_speculation(model, SpecConfig("draft", **keeps), drafter=small)
    read.clear()
    assert torch.equal(model.generate(ids, **how), plain)
    assert model.speculation_stats.fault is None
    assert read == [15] * (2 if kind == "mistral" else 1)


def test_what_was_read_is_let_go_once_drafts_begin(known, monkeypatch):
    model, small, inputs, _ = known("text")
    readers, follow = [], PromptCaches.follow

    def followed(self, reader, prompt):
        readers.append(reader)
        follow(self, reader, prompt)

    monkeypatch.setattr(PromptCaches, "follow", followed)
    mmspec.enable_speculation(model, SpecConfig("draft", **choosing("speckv")), drafter=small)
    speculation, seen = model.generate.__self__, []
    speculation.on_round = lambda context: seen.append(readers[0].earlier) or False
    model.generate(**inputs, max_new_tokens=NEW)
    assert len(readers) == 1
    assert seen == [None] * len(seen)
    assert seen


def test_a_row_writes_ahead_to_its_own_end(known):
    model, small, inputs, theirs = known("text")
    tokens = theirs.sequences[:, -NEW:]
    config = SpecConfig("plain", **choosing("speckv", target_cache_keep=0.5))
    mmspec.enable_speculation(model, config, drafter=small)
    drafted = small.generate(**inputs, max_new_tokens=NEW, do_sample=False)[:, -NEW:]
    eos = int(drafted[1, 2])
    wanted = [row.tolist().index(eos) + 1 if eos in row else NEW for row in drafted]
    assert len(set(wanted)) > 1
    model.generate(**inputs, max_new_tokens=NEW, do_sample=False, eos_token_id=eos)
    assert model.speculation_stats.lookahead_tokens == wanted
    assert tokens.shape == drafted.shape


@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "paligemma", "text"])
def test_a_prompt_read_in_chunks_keeps_the_same(known, monkeypatch, family):
    """Of chunks that are shorter than what asks, and of some that are longer."""
    model, small, inputs, _ = known(family)
    found = []

    def watched(*given):
        found.append(best_entries(*given))
        return found[-1]

    monkeypatch.setattr("mmspec.models.kept_entries.best_entries", watched)
    written, write = [], Lookahead.write
    monkeypatch.setattr(Lookahead, "write", lambda self: written.append(write(self)) or written[-1])
    config = SpecConfig("draft", **choosing("speckv", draft_cache="speckv", target_cache_keep=0.5))
    mmspec.enable_speculation(model, config, drafter=small)
    out, index = [], []
    for chunk in (None, WINDOW - 1, WINDOW + 3):
        how = {"max_new_tokens": NEW, "do_sample": False, "prefill_chunk_size": chunk}
        out.append(model.generate(**inputs, **how))
        index.append(found[:])
        found.clear()
    for tokens, kept in zip(out[1:], index[1:], strict=True):
        assert torch.equal(tokens, out[0])
        assert len(kept) == len(index[0]) == 5  # layers of both models
        assert all(torch.equal(*pair) for pair in zip(kept, index[0], strict=True))
    assert len(written) == 3  # once a call, for both models


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at_once", [None, 1])
def test_of_a_prompt_of_one_token_nothing_is_left_to_keep(known, name, at_once):
    model, small, *_ = known("text")
    mmspec.disable_speculation(model)
    for ids in (torch.tensor([[3], [5]]), torch.tensor([[0, 3], [4, 5]])):
        given = {"input_ids": ids, "attention_mask": (ids > 0).long()}
        theirs = greedy(model, given)
        config = SpecConfig("draft", **choosing(name, draft_cache=name))
        speculation = SpeculativeGeneration(model, config, Beside(small))
        speculation.at_once = at_once
        out = speculation.generate(**given, max_new_tokens=NEW, do_sample=False)
        assert agree(out, theirs)
        assert model.speculation_stats.cache_entries == [0, ids.shape[1] - 1]


# --- everything kept, or only the drafter's -------------------------------------------------------


@pytest.mark.parametrize("family", [*SHARED, *QWEN, "paligemma", "text"])
def test_all_that_there_is_changes_nothing(known, family):
    for name in NAMES if family in ("llava", "text") else NAMES[:1]:
        out, stats = answered(known(family), "draft", **choosing(name, target_cache_keep=1.0))
        assert agree(out, known(family)[3])
        assert stats.contract == "lossy"
        assert stats.cache_entries == [n - 1 for n in stats.prompt_tokens]


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3_vl", "internvl", "text"])
@pytest.mark.parametrize("name", NAMES)
def test_a_drafter_that_forgets_changes_nothing(known, family, name):
    out, stats = answered(known(family), "draft", **choosing(name, "draft", draft_cache_keep=0.4))
    assert agree(out, known(family)[3])
    assert stats.contract == "exact-greedy"
    assert stats.cache_entries == []
    for kept, whole in zip(stats.draft_cache_entries, stats.prompt_tokens, strict=True):
        assert kept == max(round((whole - 1) * 0.4), WINDOW * (name != "streaming"))
    both = choosing(name, draft_cache=name, draft_cache_size=6, target_cache_size=9)
    out, stats = answered(known(family), "draft", **both)
    plain, _ = answered(known(family), "plain", **choosing(name, target_cache_size=9))
    assert torch.equal(out, plain)  # what the target loses is lost whoever drafts
    assert max(stats.draft_cache_entries) == 6
    assert max(stats.cache_entries) == 9


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [1, 3])
def test_joint_law_of_a_drafter_that_forgets(name, keep):
    """By enumeration, of draws, in the shipped code: the target's law is kept."""
    big, small = text(2, vocab=3), text(1, seed=1, vocab=3)
    prompt, limit = torch.tensor([[1, 0, 2, 2, 1, 0]]), 3

    def setting(decoder):
        embedded = decoder.embeddings[prompt]
        real = torch.ones_like(prompt).bool()
        return Setting(embedded, real, None, lambda x: x.softmax(-1), limit, 0, 4)

    def kept():
        decoder = CausalDecoder(small)
        options = {"window": 1} if name != "streaming" else {"sinks": 1}
        chooser = parts("cache")[name].load()(**options)
        ahead = (lambda: (torch.tensor([[2, 1]]), torch.tensor([2]))) if name == "speckv" else None
        keeping = Keeping(chooser, size=keep, ahead=ahead)
        return ModelDrafter(KeptDecoder(decoder, setting(decoder), keeping))

    decoder = CausalDecoder(big)
    target = TokenTarget(GuidedDecoder(decoder, setting(decoder)))

    def joint(prefix=()):
        if len(prefix) == limit:
            return {prefix: 1.0}
        ids = torch.cat([prompt, torch.tensor([prefix]).long()], 1)
        law, found = big(input_ids=ids).logits[0, -1].softmax(-1).tolist(), {}
        for token, share in enumerate(law):
            found |= {k: share * v for k, v in joint((*prefix, token)).items()}
        return found

    with torch.inference_mode():
        law = whole_loop(limit, target, kept, None, ConstantLength(2), at_once=1)
        assert distance(law, joint()) < EXACT


# --- where tokens stand, and what it takes --------------------------------------------------------


def compact(model, inputs, keeping, limit=5, scale=None):
    decoder = CausalDecoder(model)
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    setting = Setting(decoder.embed(ids), mask, scale, lambda x: x.softmax(-1), limit, 0, 2)
    return KeptDecoder(decoder, setting, keeping)


@torch.inference_mode()
def test_outputs_stand_where_they_stand_behind_the_whole_prompt(known):
    model, _, inputs, _ = known("text")
    network = compact(model, inputs, Keeping(SpecKv(WINDOW, KERNEL), 0.3))
    width = inputs["input_ids"].shape[1]
    assert network.offset == round(0.3 * (width - 1)) + 1
    assert network.rotary[network.offset - 1 :][:6].tolist() == [*range(width - 1, width + 5)]


@torch.inference_mode()
def test_the_cache_has_room_for_what_stays_alone(known):
    model, _, inputs, _ = known("text")
    whole = compact(model, inputs, Keeping(SpecKv(WINDOW, KERNEL)))
    network = compact(model, inputs, Keeping(SpecKv(WINDOW, KERNEL), size=10))
    for one in (whole, network):
        one.start(3)
        assert one.cache.nbytes == one.cache_bytes(2)
        assert one.whole.cache is None
    entry = 3 * 2 * 3 * 2 * 8 * 8  # layers, keys and values, rows, heads, numbers, bytes
    assert whole.cache.nbytes - network.cache.nbytes == (39 - 10) * entry
    assert network.cache.nbytes == (10 + 1 + 5 + 3) * entry


@pytest.mark.parametrize("name", NAMES)
def test_a_memory_budget_counts_what_stays(known, name):
    model, small, inputs, _ = known("text")
    taken = []
    for size in (40, 8):
        options = choosing(name, "draft", draft_cache_size=size, memory_budget=1)
        mmspec.enable_speculation(model, SpecConfig("draft", **options), drafter=small)
        with pytest.raises(InputError, match="holds no draft") as error:
            model.generate(**inputs, max_new_tokens=NEW)
        taken.append(int(str(error.value).split("memory_budget=")[1].split()[0]))
    assert taken[0] - taken[1] == (39 - 8) * 2 * 2 * 3 * 2 * 8 * 8  # of two layers


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "text"])
@pytest.mark.parametrize("name", NAMES)
def test_samples_that_wait_for_a_row_keep_the_same(known, family, name):
    model, small, inputs, _ = known(family)
    config = SpecConfig("draft", **choosing(name, draft_cache=name, target_cache_keep=0.5))
    found = []
    for at_once in (None, 1, 2):
        speculation = SpeculativeGeneration(model, config, Beside(small))
        speculation.at_once, speculation.seeds = at_once, [3, 4, 5]
        how = {"max_new_tokens": NEW, "do_sample": True, "eos_token_id": [*range(0, 38, 7)]}
        found.append(speculation.generate(**inputs, **how))
        assert model.speculation_stats.fault is None
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@torch.inference_mode()
def test_unconditional_rows_keep_their_own(known):
    model, _, inputs, _ = known("text")
    ahead = torch.tensor([[3, 9, 4]]), torch.tensor([2])

    def law(rows, scale):
        one = {name: x[rows] for name, x in inputs.items()}
        keeping = Keeping(SpecKv(WINDOW, KERNEL), 0.4, ahead=lambda: ahead)
        network = compact(model, one, keeping, scale=scale)
        network.start(1)
        return network.extend(torch.tensor([[0, 5]]), [-1]).log()

    both = law([0, 1], 3.0)
    wanted = torch.lerp(law([1], None), law([0], None), 3.0).log_softmax(-1)
    assert torch.allclose(both, wanted, atol=1e-8)


# --- with other options and beside other parts ----------------------------------------------------


@torch.inference_mode()
def test_layers_that_are_rearranged_choose_the_same(known):
    """On a processor, float32 weights of such models run as `LlamaLayers`: no hook sees these."""
    inputs, told = known("text")[2], []
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    for dtype in (torch.float32, torch.float64):
        decoder = CausalDecoder(text().to(dtype))
        assert decoder.paired is (dtype == torch.float32)
        setting = Setting(decoder.embed(ids), mask, None, lambda x: x.softmax(-1), 4, 0, 2)
        network = GuidedDecoder(decoder, setting)
        scores = {}
        with decoder.repacked():
            network.start(3)
            inside = mask[:, None, :-1, None] & mask[:, None, None, :-1]
            with decoder.looking(scores.__setitem__):
                network._prefill(slice(None), 0)
        told.append([(scores[layer] * inside).double() for layer in range(3)])
    for mine, theirs in zip(*told, strict=True):
        assert mine.shape == (3, 4, 39, 39)
        assert torch.allclose(mine, theirs, atol=1e-4)


def test_rearranged_layers_answer_over_what_stays(known):
    """As a whole, at single precision: where all entries stay, nothing changes."""
    inputs, model, small = known("text")[2], text().float(), text(2).float()
    small.load_state_dict(model.state_dict(), strict=False)
    theirs = greedy(model, inputs)
    config = SpecConfig("draft", **choosing("speckv", draft_cache="speckv", target_cache_keep=1.0))
    mmspec.enable_speculation(model, config, drafter=small)
    out = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    assert agree(out, theirs)
    assert model.speculation_stats.fault is None


def test_a_shortened_prompt_and_a_shortened_cache(known):
    """SpecKV-PC: pictures lose columns, then the cache of what is left loses entries."""
    pair = dict(target_compressor="draft-attention", target_keep=0.5)
    out, stats = answered(
        known("llava"), "draft", **pair, **choosing("speckv", target_cache_keep=0.5)
    )
    assert stats.visual_tokens == [4, 8, 0]
    left = [n - round(9 * p) + 4 * p for n, p in zip(stats.prompt_tokens, PICTURES, strict=True)]
    assert stats.cache_entries == [round((n - 1) / 2) for n in left]
    assert stats.lookahead_tokens == [NEW] * 3
    once, _ = answered(known("llava"), "draft", **pair)
    whole, _ = answered(
        known("llava"), "draft", **pair, **choosing("speckv", target_cache_keep=1.0)
    )
    assert torch.equal(whole, once)
    assert not torch.equal(out, once)


@torch.inference_mode()
def test_text_may_stay_as_it_is(known):
    model, _, inputs, _ = known("llava")
    out, stats = answered(
        known("llava"), "plain", **choosing("snapkv", target_cache_size=1, evicts="pictures")
    )
    visual = (inputs["input_ids"] == model.config.image_token_id).sum(1).tolist()
    told = zip(stats.prompt_tokens, visual, stats.cache_entries, strict=True)
    assert all(kept == whole - 1 - seen for whole, seen, kept in told)
    assert torch.equal(out[2], known("llava")[3].sequences[2])  # the row without a picture
    whole, _ = answered(
        known("text"), "plain", **choosing("snapkv", target_cache_size=1, evicts="pictures")
    )
    assert agree(whole, known("text")[3])


def test_a_question_chooses(known):
    """Of one picture, two questions keep other entries; entries by chance stay the same."""
    model, _, inputs, _ = known("llava")
    one = alone(inputs, 0)
    other = {**one, "input_ids": one["input_ids"].clone()}
    other["input_ids"][0, -3:] = torch.tensor([7, 8, 9])
    for name, same in (("snapkv", False), ("random-entries", True)):
        kept = []
        for given in (one, other):
            config = SpecConfig("plain", **choosing(name, target_cache_size=8))
            speculation = SpeculativeGeneration(model, config)
            found = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    "mmspec.models.kept_entries.best_entries",
                    lambda *told, found=found: found.append(best_entries(*told)) or found[-1],
                )
                speculation.generate(**given, max_new_tokens=1)
            kept.append(torch.stack(found))
        assert torch.equal(*kept) is same


def test_conversations_do_not_go_on_from_a_cache_with_gaps(known):
    model, _, inputs, _ = known("text")
    config = SpecConfig("plain", **choosing("snapkv", target_cache_size=8))
    speculation = SpeculativeGeneration(model, config)
    speculation.memory = Memory()
    one = alone(inputs, 0)
    first = speculation.generate(**one, max_new_tokens=4, do_sample=False)
    speculation.generate(input_ids=first, max_new_tokens=4, do_sample=False)
    assert speculation.memory.reused == 0
    told = speculation.generate(
        **one, max_new_tokens=4, do_sample=False, return_dict_in_generate=True
    )
    assert told.past_key_values is None


# --- choosers by themselves -----------------------------------------------------------------------


def chosen(chooser, real, most, layer=0):
    real = torch.tensor(real).bool()
    open_ = real.clone()
    scores = chooser.scores(layer, 2, open_, None, real)
    kept = torch.minimum(torch.full((len(real),), most), real.sum(1))
    return best_entries(scores, real, torch.zeros_like(real), kept, most)


def test_streaming_keeps_the_first_and_the_last():
    chooser = parts("cache")["streaming"].load()(sinks=2)
    index = chosen(chooser, [[1] * 9, [0] * 3 + [1] * 6], 5)
    assert index[0].tolist() == [[0, 1, 6, 7, 8]] * 2
    assert index[1].tolist() == [[3, 4, 6, 7, 8]] * 2


def test_entries_by_chance_know_nothing_of_their_neighbours():
    chooser = parts("cache")["random-entries"].load()(window=0)
    both = chosen(chooser, [[0] * 9 + [1] * 31, [1] * 40], 10)
    one = chosen(chooser, [[1] * 31], 10)
    assert (both[0] - 9).tolist() == one[0].tolist()
    heads = [
        head for layer in (0, 1) for head in chosen(chooser, [[1] * 40], 10, layer)[0].tolist()
    ]
    assert len({tuple(head) for head in heads}) == 4  # other ones in every layer and head
    counts = torch.zeros(40)
    for layer in range(200):
        counts += torch.bincount(chosen(chooser, [[1] * 40], 10, layer).flatten(), minlength=40)
    assert counts.min() > 60  # of 100 that are expected
    assert counts.max() < 140


def test_equal_scores_and_entries_that_always_stay():
    real = torch.tensor([[True] * 6, [False, False, True, True, True, True]])
    fixed = torch.zeros_like(real)
    fixed[:, 5] = True
    scores = torch.tensor([1.0, 2.0, 2.0, 2.0, torch.inf, 0.0]).expand(2, 1, -1)
    index = best_entries(scores, real, fixed, torch.tensor([4, 2]), 4)
    assert index[0, 0].tolist() == [1, 2, 4, 5]
    assert index[1, 0, 2:].tolist() == [4, 5]
    only = best_entries(scores, real, fixed, torch.tensor([1, 1]), 1)
    assert only[:, 0].tolist() == [[5], [5]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cache_kernel": 4}, "cache_kernel must be odd"),
        ({"target_cache_keep": 0.0}, "target_cache_keep must be above 0"),
        ({"target_cache": "spekv"}, "did you mean 'speckv'"),
        ({"draft_cache_keep": 0.5}, "draft_cache_keep is a setting of 'draft_cache'"),
        ({"sink_tokens": 3}, "sink_tokens is a setting of 'streaming'"),
        ({"method": "prompt-lookup", "draft_cache": "snapkv"}, "has no model that drafts"),
        ({"method": "vispec"}, "has a draft head, which reads all"),
        ({"method": "eagle"}, "has a draft head, which reads all"),  # which draws pictures, too
        ({"method": "lantern"}, "a model that draws pictures has none"),
        ({"method": "specqd"}, "drafts with a copy of the target"),
        ({"method": "drafter-only"}, "lets another answer"),
        ({"method": "deer", "draft_cache": "snapkv"}, "drafts with a masked one"),
        ({"method": "deer"}, "is a masked one; use 'snapkv'"),
    ],
)
def test_what_does_not_go_together(given, message):
    with pytest.raises(InputError, match=message):
        SpecConfig(**{"target_cache": "speckv", **given})


def test_models_whose_caches_can_t_lose_entries(known):
    model = made("gemma3").double()
    inputs = in_double(asked(model, [1, 0]))
    mmspec.enable_speculation(model, SpecConfig("plain", target_cache="snapkv"))
    with pytest.raises(InputError, match="have a window, or count distances"):
        model.generate(**inputs, max_new_tokens=2)
    model, small, inputs, _ = known("text")
    mmspec.enable_speculation(model, SpecConfig("s2d", draft_cache="snapkv"), drafter=small)
    with pytest.raises(InputError, match="this method reads them all"):
        model.generate(**inputs, max_new_tokens=2)
    with pytest.raises(InputError, match="needs a draft model"):
        mmspec.enable_speculation(model, SpecConfig("plain", target_cache="speckv"))
