"""Speculation in a transformers model's own `generate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from ...draft.guarded import GuardedDrafter
from ...draft.tree.living_tables import LivingTables
from ...engine.accept.routed import RoutedRule
from ...engine.coins import ProductionCoins
from ...engine.draft import Context
from ...engine.length.guard import Guard
from ...engine.loop import run
from ...engine.protocols import Engine
from ...errors import InputError
from ...methods import SpecConfig, config_of
from ...models.heads.judge import JudgeHead
from ...models.heads.published.head import PublishedHead
from ...models.heads.step_router import StepRouter
from ...models.step_reward import StepReward
from ...models.token_grid import TokenGrid
from ...models.transformers.cache_view import CACHE_NAMES
from ...models.transformers.masked_target import answering
from ...models.transformers.probe import probed
from ...models.transformers.processed_laws import ProcessedTarget
from ...models.transformers.prompted import EncodedPrompt, refuse
from ...models.transformers.vlm import VisualPrompt
from ..arguments import checked
from ..base import row_seeds
from ..costs import Costs
from ..load_switch import LoadSwitch, watched
from ..memory import within_budget
from ..notices import Notices
from ..output import VlmStats
from ..parts import finish, pruning, token_offers
from ..stopping import Stops, cut
from .beside import ALONE, Beside
from .call_arguments import CallArguments
from .draft_networks import Drafting, method_of, visual_tokens
from .handed_cache import HandedCache
from .judging import check_heard, judging, step_ends
from .memory import Memory
from .prompt_caches import kept_entries
from .request import Listener, Request, TokenStream
from .sized_calls import sized

# a cache in transformers' outputs, by the name that it has there
KEPT = "_mmspec_generation"  # where a model keeps what calls by `custom_generate` learned
_CACHE = next(n for n in CACHE_NAMES if n in GenerateDecoderOnlyOutput.__dataclass_fields__)


@checked
def enable_speculation(
    model: PreTrainedModel,
    config: SpecConfig | str | None = None,
    drafter: PreTrainedModel | None = None,
    head: PublishedHead | None = None,
    listener: Listener | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    drafter_tokenizer: PreTrainedTokenizerBase | None = None,
    judge: JudgeHead | None = None,
    router: StepRouter | None = None,
    reward: StepReward | None = None,
) -> None:
    """Let `model.generate(...)` speculate from now on; nothing else has to change.

    Prompts, lengths, warpers, guidance, seeds (`torch.manual_seed`) and outputs are those of
    transformers; what speculation can't honour it refuses. What a call took is in
    `model.speculation_stats`, a `VlmStats`. Only this object is changed, not its class.

    The model is tried out on a few tokens, and refused if it says something else over our cache
    than by itself. Afterwards it may be moved, cast, quantized, fine-tuned, wrapped in adapters,
    hooked or copied; a compiled `forward` runs as it was before it was compiled.

    Contracts are about the logits that a call computes. A call for several tokens rounds otherwise
    than a call for one: where the two best logits lie within that, a greedy text may go on with
    the other one. In float32 this is rare (they must lie about 1e-5 apart), in float16 and bfloat16
    it is common, and transformers' own `generate` differs from itself in the same way between
    batch sizes.

    A drafter that sees is shown the pictures that the model is shown. One whose processor lays
    prompts out in another way gets its own: `model.generate(**inputs, drafter_inputs=...)`, what
    that processor makes of the same pictures and texts.

    Args:
        model: a transformers model that generates, such as `LlamaForCausalLM` or diffusers'
            `pipe.vision_language_encoder` of a `GlmImagePipeline`.
        config: how, or a method's name; None: the drafter's or head's, or what suits the model.
        drafter: a smaller transformers model, of the same vocabulary unless tokenizers are given.
        head: of this very model (`mmspec.load_head`); moved to where it is, in its dtype.
        listener: hears of every generation, such as an `OnlineLearner`.
        tokenizer, drafter_tokenizer: of the model and of a drafter with other words; the first by
            itself for methods that draft sentences.
        judge: for this very model (`mmspec.load_judge`), for methods that ask one.
        router, reward: of drafted steps (`mmspec.load_router`), for methods that route them.

    Raises:
        InputError: the model or the combination can't speculate.
    """
    beside = Beside(drafter, head, (tokenizer, drafter_tokenizer), judge, router, reward)
    speculation = SpeculativeGeneration(model, config, beside)
    disable_speculation(model)
    speculation.listener, speculation.before = listener, vars(model).get("generate")
    vars(model)["generate"] = speculation.generate


@checked
def disable_speculation(model: PreTrainedModel) -> None:
    """Put back the `generate` that the model had; one that does not speculate stays as it is.

    What calls by `custom_generate` keep on the model goes, too: its draft model or head.
    """
    if vars(model).pop(KEPT, None) is not None:
        vars(model).pop("speculation_stats", None)
    if (speculation := speculation_of(model)) is not None:
        del vars(model)["generate"]
        vars(model).pop("speculation_stats", None)
        if speculation.before is not None:
            vars(model)["generate"] = speculation.before


def speculation_of(model: PreTrainedModel) -> SpeculativeGeneration | None:
    """The speculation of a model, once it is enabled."""
    found = getattr(vars(model).get("generate"), "__self__", None)
    return found if isinstance(found, SpeculativeGeneration) else None


class SpeculativeGeneration:
    """Replacement of a model's `generate`; what is beside the model, see `Beside`.

    transformers prepares everything and calls `_decode` for its own loop over tokens (what it calls
    a custom `generate`), so that arguments mean what they always do.

    Attributes:
        seeds: of the rows of a sampled call; None: drawn from torch's own generator.
        on_round: called after every round; True interrupts, keeping what there is.
        memory: of the conversation that a prompt of one row goes on with; None: there is none.
        listener: hears of generations; None: nobody does.
        at_once: rows that run at a time, where the others wait until one is over; None: all.
        guard, switch: of a call's rounds, None: none watches; of its size by "auto", see `sized`.
    """

    guard: Guard | None = None
    at_once: int | None = None
    seeds: list[int] | None = None
    memory: Memory | None = None
    listener: Listener | None = None
    on_round: Callable[[Context], bool] | None = None

    def __init__(
        self, model: PreTrainedModel, config: SpecConfig | str | None, beside: Beside = ALONE
    ) -> None:
        if getattr(type(model), "generate", None) is not GenerationMixin.generate:
            raise InputError(f"{type(model).__name__} does not generate as transformers' models do")
        self.model, self.target = model, probed(model)
        config = method_of(self.target, beside) if config is None else config
        self.config = config_of(config).resolve(self.target.modality)
        self.target.round_weights(self.config.config.target_weights)
        self.drafting = Drafting(self.target, self.config, beside)
        self.before: Any = None  # a `generate` of the object's own
        self._costs, self._notices, self._living = Costs(), Notices(), LivingTables()
        self.switch, self.sizes = LoadSwitch(), dict[SpecConfig, SpeculativeGeneration]()
        self.config.check_layers(len(self.target.layers))
        if self.config.part_layers:
            self.target.blocks()  # they must be known to run a part of them
            shared = getattr(self.target.config, "num_kv_shared_layers", 0)
            if shared and "layer-skip" in {part.name for part, _ in self.config.drafters}:
                raise InputError(
                    f"layers of {type(model).__name__} share keys, so that none can be skipped; "
                    "use method 'early-exit'"
                )

    @checked
    @sized
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        streamer: Any = None,
        drafter_inputs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Generate as transformers' `GenerationMixin.generate` does; most arguments go by name.

        Args:
            drafter_inputs: what the draft model reads in place of the model's inputs:
                `input_ids [B, T]`, left-padded, and what else its processor gives.

        Raises:
            InputError: an argument asks for what speculation can't give.
        """
        if self.model.training:
            raise InputError("the model is in training mode; call model.eval() first")
        call = CallArguments.read(self.model, inputs, generation_config, stopping_criteria, kwargs)
        if call.cache is not None and self.config.drafter_only:
            refuse(f"{call.cache.name} where the drafter answers: it is the model's")
        own = self.drafting.own(call.given, drafter_inputs)
        with self.target.generating(call.given), self.drafting.watching():
            out: Tensor | GenerateDecoderOnlyOutput = GenerationMixin.generate(
                self.model,
                inputs,
                generation_config,
                logits_processor,
                call.stopping_criteria,
                streamer=streamer,
                custom_generate=partial(self._decode, streamer, call, own),
                **call.named,
            )
        return out

    @torch.inference_mode()
    def _decode(
        self,
        streamer: Any,
        call: CallArguments,
        own: Mapping[str, Any] | None,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: Sequence[Any],
        stopping_criteria: Sequence[Any],
        generation_config: GenerationConfig,
        **inputs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Run the loop over tokens on what transformers has prepared."""
        self.target.refresh()
        self.drafting.refresh()
        device, stops = self.target.embeddings.device, Stops.of(stopping_criteria)
        told = generation_config, inputs, device, call.given, own, self.at_once
        request = Request(input_ids, logits_processor, stops, *told, soft=self.config.rule.soft)
        stats = VlmStats(method=self.config.method)
        stats.prompt_tokens = request.mask.sum(1).tolist()
        memory = self.memory if call.cache is None else call.cache
        vars(model)["speculation_stats"] = stats  # a round may ask for those so far
        listener, fillings = self.listener, (generation_config.pad_token_id, *stops.eos)
        pad = next((token for token in fillings if token is not None), None)
        stream = None if streamer is None else TokenStream(streamer, int(pad or 0))

        def on_round(context: Context) -> bool:
            if isinstance(engine.target, ProcessedTarget):
                engine.target.check(context)
            if stream is not None:
                stream.tell(context, engine.stop)
            if listener is not None:
                listener.round(context)
            self.drafting.caches.forget()
            return bool(self.on_round and self.on_round(context)) or time.time() > stops.until

        with self.target.repacked(), self.drafting.repacked():
            engine, prompt = self._engine(request, stops, stats, memory)
            if listener is not None:
                check_heard(self.config)
                listener.begin(prompt, len(input_ids))
            stats.contract = self.config.contract_of(engine.rule.contract)
            rows, limit = len(input_ids), request.limit
            with self.drafting.counting(stats):
                context = run(engine, rows, limit, stats, on_round, device, at_once=self.at_once)
            cut(context, engine.stop, stats)
            finish(engine, stats, self._costs, self._notices, all(context.finished), self.at_once)
        if listener is not None:
            images = prompt.images if isinstance(prompt, VisualPrompt) else [()] * len(prompt.mask)
            listener.end(prompt, images, context)
        if memory is not None and isinstance(engine.target, ProcessedTarget):
            memory.keep(engine.target.model, input_ids, context)
        self.drafting.tell(stats)
        # where no token fills a row up, rows that time cut short are as long as the shortest
        width = min(context.base) if pad is None else max(context.base)
        if stream is not None:
            stream.end(context, width)
        real = torch.arange(width, device=device) < context.lengths[:, None]
        tokens = context.tokens[:, :width].where(real, int(pad or 0)).to(input_ids.device)
        with torch.inference_mode(False):  # normal tensors, which their owner may edit
            sequences = torch.cat([input_ids, tokens.clone()], dim=1)
        if generation_config.return_dict_in_generate:
            said = request.emitted([min(done, width) for done in context.base], width)
            if generation_config.use_cache is not False:
                said[_CACHE] = self._cache_left(call, engine, input_ids, context)
            return GenerateDecoderOnlyOutput(sequences=sequences, **said)
        return sequences

    def _cache_left(
        self, call: CallArguments, engine: Engine, ids: Tensor, context: Context
    ) -> DynamicCache | None:
        """Cache that the next turn may be given, as transformers' outputs have one."""
        if call.cache is not None:
            return call.cache.cache
        if self.config.drafter_only or not isinstance(engine.target, ProcessedTarget):
            return None
        return HandedCache.left_by(engine.target.model, ids, context)

    def _engine(
        self, request: Request, stops: Stops, stats: VlmStats, memory: Memory | HandedCache | None
    ) -> tuple[Engine, EncodedPrompt]:
        """The loop's parts, and the prompt as what answers reads it."""
        config, drafting = self.config, self.drafting
        network = drafting.drafter if config.drafter_only else self.target
        assert network is not None
        prompt = drafting.prompt(request, network)
        drafting.caches.begin(request, stops.eos)
        keeping = drafting.caches.keeping("draft" if config.drafter_only else "target", prompt)
        told = drafting.scratch, request.law
        target = answering(request.guided(network, prompt, *told, keeping=keeping))
        stats.visual_tokens, stats.cache_entries = visual_tokens(prompt), kept_entries(target)
        rounded = drafting.copy(request, target, prompt)
        model = drafting.model(request, rounded or target, prompt, stats)
        target.stays = request.keeps
        if memory is not None:
            memory.recall(target, request.ids)
        vocab_size = network.vocab_size
        config = within_budget(config, target, model, vocab_size, 1, rounded, drafting.beyond)
        ends = step_ends(config, drafting.beside, stops)
        offers = token_offers(
            target,
            drafting.in_words(model),
            vocab_size,
            TokenGrid(1, prompt.stride),
            codebook=lambda: None,
            experience=partial(self._costs.experience, config, target, model, rounded=rounded),
            rounded=lambda: rounded,
            fuzzy=lambda: drafting.fuzzy,
            prompt=lambda: prompt.text,
            **self._living.offers(request.greedy),
            runs=lambda: drafting.runs,
            eos=lambda: stops.eos,
            judge=lambda: drafting.judge,
            ends=lambda: ends,
        )
        length = config.build_length(offers)
        rule = config.build_rule(offers, 0.0 if request.greedy else 1.0)
        built = {
            "more": lambda: getattr(length, "more", None),
            "routed": lambda: rule if isinstance(rule, RoutedRule) else None,
            "soft": lambda: request.ranked,
        }
        drafter = config.build_drafter({**offers, **built})
        if config.drafts:
            drafter = GuardedDrafter(drafter, vocab_size, config.draft_size().most_drafted)
        rows = len(request.ids)
        # transformers draws no number for a greedy output
        seeds = [0] * rows if request.greedy else self.seeds or row_seeds(None, rows)
        coins = ProductionCoins(seeds, target.prefix.device)
        judge = judging(config, drafting.beside, request, target, vocab_size, rule, ends, coins)
        parts = pruning(judge, rule), drafter, rule, length, coins
        engine = Engine(*parts, stops.eos or None, stops.looking(request.ids))
        return watched(engine, self.guard), prompt
