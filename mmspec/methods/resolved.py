"""A configuration as it works for one modality: its parts, and the options that they read.

`SpecConfig.resolve` makes it once; pipelines build the engine's parts from it and ask it no names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import InputError
from ..registry import is_reference
from . import registry
from .cache_part import CacheChoice, CacheCompressor, share_of
from .chosen import SLOTS, Chosen, choose
from .combine import check_combination
from .draft_size import DraftSize
from .options import options_of
from .part import Drafter, DraftOptions, Head, Length, Offers, Preset, Rule
from .parts.pipelines import PIPELINES, Modality

if TYPE_CHECKING:
    from ..engine.laws import Contract
    from .config import SpecConfig

T = TypeVar("T")
ROUNDED = "float16"  # what a target that drafts for itself is rounded to, if nobody says


@dataclass(frozen=True)
class ResolvedConfig:
    """Parts and options of a method for one modality, checked.

    Attributes:
        config: what the user asked for.
        preset: the method, as it is for the modality.
        modality: what the target makes.
        drafters: the drafters at work; of a merged tree all of them.
        inner: the drafter that drafts for another drafter; None: none does.
        drafter, rule, length, head: the parts.
        chosen: all parts that read options, with these.
        options: all options that are read, by name.
    """

    config: SpecConfig
    preset: Preset
    modality: Modality
    drafter: Drafter
    rule: Rule
    length: Length
    head: Head | None
    drafters: tuple[Chosen, ...]
    inner: Chosen | None
    chosen: tuple[Chosen, ...]
    options: Mapping[str, Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResolvedConfig) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple[Any, ...]:
        return resolve, (self.config, self.modality)

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        options = tuple(sorted(self.options.items()))
        return self.method, self.modality, tuple(self.parts.values()), options

    @property
    def method(self) -> str:
        """The method's name."""
        return self.preset.name

    @property
    def parts(self) -> dict[str, str | None]:
        """The names of all parts, by kind."""
        head = None if self.head is None else self.head.name
        found = {"drafter": self.drafter.name, "rule": self.rule.name, "length": self.length.name}
        kinds = ("compressor", "cache", "weights")
        slots = {n: getattr(self.config, n) for n in (f"{s}_{k}" for k in kinds for s in SLOTS)}
        slots["draft_weights"] = self.draft_weights
        return {**found, "head": head, **slots}

    def of(self, kind: type[T]) -> T:
        """The options of a kind that a part reads; their defaults if no part does."""
        return next((o for _, o in self.chosen if isinstance(o, kind)), None) or kind()

    def to_dict(self) -> dict[str, Any]:
        """Everything that decides the output, as JSON has it."""
        return {"method": self.method, **self.parts, **self.options}

    # --- what the parts are like ------------------------------------------------------------------

    @property
    def drafts(self) -> bool:
        """True if anything is drafted in front of the target."""
        return self.drafter.drafts

    @property
    def drafter_only(self) -> bool:
        """True if the draft model draws and the target is not asked: lossy, whatever the rule."""
        return self.preset.answers == "drafter"

    @property
    def other_law(self) -> bool:
        """True if what answers is not the target as it is: lossy, whatever the rule."""
        shorter = self.config.target_compressor or self.config.target_cache
        near = any(options.approximates() for _, options in self.chosen)
        return near or self.preset.answers != "target" or shorter is not None

    @property
    def unverified(self) -> bool:
        """True if nobody judges what is drafted."""
        return not self.rule.judges

    @property
    def unasked(self) -> bool:
        """True if the target takes no part: what comes out is a drafter's alone."""
        return self.drafter_only or (self.unverified and self.drafter.unjudged == "maybe")

    @property
    def part_layers(self) -> bool:
        """True if some of the target's layers run alone, for drafts or for the rule."""
        return self.own_layers or self.rule.early

    @property
    def own_layers(self) -> bool:
        """True if the target drafts with some of its layers."""
        return any(part.own_layers for part, _ in self.drafters)

    @property
    def rounds(self) -> bool:
        """True if the target drafts on rounded weights, over its own cache."""
        return any(part.rounds for part, _ in self.drafters)

    @property
    def returns(self) -> bool:
        """True if a draft model's layers keep all entries, whatever their windows are."""
        return any(part.returns for part, _ in self.drafters)

    @property
    def asks(self) -> Drafter:
        """The drafter that a draft model or a head serves."""
        drafter: Drafter = self.drafter if self.inner is None else self.inner.part
        return drafter

    @property
    def ranks(self) -> bool:
        """True if the likeliest tokens are drafted, more than one of a law."""
        inner = () if self.inner is None else (self.inner,)
        return any(options.ranks for _, options in (*self.drafters, *inner))

    @property
    def soft_drafts(self) -> bool:
        """True if drafts take laws at temperature 0, too, where point masses would say less."""
        return self.ranks or (self.length.soft and self.asks.watched)

    @property
    def merged(self) -> bool:
        """True if several drafters make one tree."""
        return "merge" in self.options

    @property
    def drafter_options(self) -> DraftOptions:
        """The drafter's own."""
        return self.chosen[0].options

    @property
    def contract(self) -> Contract:
        """Contract of draws; a run says it again, for its own temperature."""
        own = is_reference(self.rule.name)
        return self.contract_of(self.build_rule({}).contract if own else self.rule.contract)

    @property
    def weights(self) -> str | None:
        """Form that the weights of the network that answers are rounded to; None: as they are."""
        own = self.config
        return own.draft_weights if self.drafter_only else own.target_weights

    @property
    def draft_weights(self) -> str | None:
        """Form that the weights of the network that drafts are rounded to; None: as they are."""
        return self.config.draft_weights or (ROUNDED if self.rounds else None)

    @property
    def draft_copy(self) -> tuple[str, int | None]:
        """Form of the weights of a target's copy that drafts, and its number of hot experts."""
        return self.draft_weights or ROUNDED, self.options.get("hot_experts")

    def contract_of(self, rule: Contract) -> Contract:
        """Contract of the output if the rule at work promises `rule`."""
        if self.other_law:
            return "lossy"
        if self.config.target_weights is None:
            return rule
        return "exact-rounded" if rule.startswith("exact") else "lossy"

    @property
    def needs(self) -> tuple[str, ...]:
        """Components of the pipeline beside the target that the parts need; a head is "heads/NAME".

        A reward that is given to the pipeline itself takes the router's place.
        """
        if self.preset.answers == "experts":
            return ("experts",)
        head = self.head
        found = self._needs_to_draft if head is None else [f"heads/{head.name}"]
        found += _needs(c for c in self.chosen if isinstance(c.part, Rule | CacheCompressor))
        return tuple(dict.fromkeys(found))

    @property
    def _needs_to_draft(self) -> list[str]:
        """Components that drafters need which have no head."""
        drafters = (c for c in (*self.drafters, self.inner) if c is not None)
        return [*(["drafter"] if self.drafter_only else []), *_needs(drafters)]

    @property
    def model_drafts(self) -> bool:
        """True if a draft model drafts, or answers; it may be there to be asked something else."""
        return self.head is None and "drafter" in self._needs_to_draft

    @property
    def target_options(self) -> set[str]:
        """Names of the options that say what a target keeps of its prompt."""
        name = self.config.target_cache
        amounts = {n for n in self.options if n.startswith("target_cache_")}
        if name is None:
            return amounts
        return amounts | set(options_of(registry.CACHES.get(name).options))

    def draft_size(self, stride: int = 1) -> DraftSize:
        """Size of its drafts, if rows of the picture have `stride` positions."""
        return DraftSize(self, stride)

    # --- the engine's parts -----------------------------------------------------------------------

    def build_cache(self, slot: str) -> CacheChoice | None:
        """Choice of what stays in the cache of a slot, "draft" or "target"; None: all stays."""
        name = getattr(self.config, f"{slot}_cache")
        if name is None:
            return None
        part, options = next(c for c in self.chosen if c.part is registry.CACHES.get(name))
        keep, size = (self.options[f"{slot}_cache_{amount}"] for amount in ("keep", "size"))
        return CacheChoice(part.build(options, {}), share_of(keep, size), size, part.ahead)

    def check_layers(self, layers: int) -> None:
        """Raise an `InputError` if a target of so many layers can't run some of them."""
        for _, options in (*self.chosen, *self.drafters):
            options.check_layers(layers)

    def build_drafter(self, offers: Offers) -> Any:
        """The drafter; one with a draft head is fed what the head reads."""
        feed = offers["feed"]() if "feed" in offers else None

        def made(chosen: Chosen, **more: Any) -> Any:
            built = chosen.part.build(chosen.options, {**offers, **more})
            return feed(built) if feed is not None and chosen.part.model else built

        if self.inner is not None:
            inner = self.inner
            return made(self.drafters[0], inner_drafter=lambda: made(inner))
        if not self.merged:
            return made(self.drafters[0])
        return made(self.chosen[0], drafters=lambda: [made(chosen) for chosen in self.drafters])

    def build_rule(self, offers: Offers, temperature: float = 1.0) -> Any:
        """The acceptance rule; at temperature 0 many are the greedy one."""
        offers = {**offers, "temperature": lambda: temperature}
        rule, options = next(c for c in self.chosen if isinstance(c.part, Rule))
        if temperature == 0 and rule.greedy:
            return registry.rule("greedy").build(options, offers)
        return rule.build(options, offers)

    def build_length(self, offers: Offers, stride: int = 1) -> Any:
        """The draft-length policy."""
        size = self.draft_size(stride)
        own = {
            "first": lambda: size.first_drafted,
            "most": lambda: size.deepest,
            "settled": lambda: self.drafter.settled,
        }
        length, options = next(c for c in self.chosen if isinstance(c.part, Length))
        return length.build(options, {**offers, **own})


def _needs(chosen: Iterable[Chosen]) -> list[str]:
    """Components that parts need, with the options that they have."""
    return [need for part, options in chosen for need in (*part.needs, *options.needs())]


@lru_cache(maxsize=1024)
def resolve(config: SpecConfig, modality: Modality) -> ResolvedConfig:
    """A configuration as it works for a modality, checked.

    Raises:
        InputError: the method does not serve it, its parts do not go together there, or an option
            is set that none of them reads.
    """
    preset = registry.preset(config.method)
    if modality not in preset.serves:
        raise InputError(
            f"method {config.method!r} is for a model that {PIPELINES[preset.serves[0]].does}, and "
            f"this one {PIPELINES[modality].does}; see `mmspec ls methods`"
        )
    for compressor in filter(None, (config.draft_compressor, config.target_compressor)):
        if modality not in registry.COMPRESSORS.get(compressor).serves:
            raise InputError(
                "draft_compressor and target_compressor shorten pictures that a model sees, and "
                "this one draws them; leave them out"
            )
    for cache in filter(None, (config.draft_cache, config.target_cache)):
        if modality not in registry.CACHES.get(cache).serves:
            raise InputError(
                "draft_cache and target_cache choose among the entries of a long prompt, and a "
                f"model that {PIPELINES[modality].does} has none; leave them out"
            )
    preset = preset.of.get(modality, preset)
    drafter = registry.DRAFTERS.get(config.drafter or preset.drafter)
    rule = registry.rule(config.rule or preset.rule)
    length = registry.LENGTHS.get(config.length or preset.length)
    head_name = config.head or preset.head
    head = None if head_name is None else registry.HEADS.get(head_name)
    chosen, read = choose(config, preset, modality, (drafter, rule, length, head))
    merged, options = read.get("merge"), MappingProxyType(read)
    first = {c.part.name: c for c in chosen if isinstance(c.part, Drafter)}
    at_work = tuple(first[name] for name in merged) if merged else (chosen[0],)
    inner = first[read["inner"]] if "inner" in read else None
    made = ResolvedConfig(
        config, preset, modality, drafter, rule, length, head, at_work, inner, chosen, options
    )
    check_combination(made, PIPELINES[modality])
    return made
