"""Parts: what a method is made of, each declared once, in one place, without importing torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import InputError
from ..registry import resolve
from .options import Options
from .parts.pipelines import Modality

if TYPE_CHECKING:
    from ..engine.laws import Contract

Tokens = Literal["ids", "vectors", "blocks"]
Offers = Mapping[str, Callable[[], Any]]
"""What a pipeline has for the parts of one generation, by name, each made when it is asked for."""
Source = str | Callable[[Any, Offers], Any]


@dataclass(frozen=True)
class Part:
    """A part of a method.

    Attributes:
        name: what users call it.
        reference: its class, or what makes it, as "module:Name", where ".module" is one of the
            kind's `home`; where that depends on its options, a function of them.
        summary: what it does, in a few words.
        options: a dataclass of its own options, see `option`.
        arguments: by a parameter of the class, where its value comes from if not from the option
            or the pipeline's offer of the same name: another's name, or a function of options and
            offers.
        paper: where it was published.
        needs: components of the pipeline beside the target; a compressor's inputs beside the
            features, "attention" `[B, N]` and "keys" `[B, N, K]`.
    """

    name: str
    reference: str | Callable[[Any], str]
    summary: str
    options: type = Options
    arguments: Mapping[str, Source] = field(default_factory=dict)
    paper: str = ""
    needs: tuple[str, ...] = ()
    kind: ClassVar[str]
    home: ClassVar[str]

    def load(self, options: Any = None) -> Any:
        """Its class, or what makes it, with these options."""
        reference = self.reference if isinstance(self.reference, str) else self.reference(options)
        return resolve(self.home + reference if reference.startswith(".") else reference)

    def build(self, options: Any, offers: Offers) -> Any:
        """Make it, of its options and of what the pipeline offers.

        Raises:
            InputError: the pipeline has not what it needs.
        """
        made, given = self.load(options), {}
        own = {f.name for f in fields(options)}
        for name, parameter in inspect.signature(made).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue  # a protocol's subclass without arguments of its own
            source = self.arguments.get(name, name)
            if callable(source):
                given[name] = source(options, offers)
            elif source in own:
                given[name] = getattr(options, source)
            elif source in offers:
                given[name] = offers[source]()
            elif parameter.default is parameter.empty:
                raise InputError(
                    f"{self.kind} {self.name!r} needs {source}, and this pipeline has none; see "
                    "`mmspec ls methods`"
                )
        return made(**given)


@dataclass(frozen=True)
class Rule(Part):
    """An acceptance rule.

    Attributes:
        contract: what it promises of the output.
        tokens: what it judges.
        trees: it judges trees, too, not only chains.
        greedy: at temperature 0, where laws are one-hot, it is the greedy rule.
        one_law: siblings must be drawn independently from one law.
        joint: later tokens weigh on whether earlier ones stand.
        positions: it asks where in the picture nodes stand.
        early: it goes by laws of the target's first layers, too.
        judges: nodes may fall; False: all stand, nobody asks the target.
        rewarded: it judges by a reward in place of the target's laws.
        foresees: it goes by what the target makes in a draft's place, and asks for it each time.
        independent: whole tokens are judged each by itself, and none is taken back.
        soft: at temperature 0 it asks for the laws whose likeliest tokens are taken, not for these.
        routes: a draft stands or falls as a whole: a block of video, or a step of text.
        check: why its options do not go with a drafter, None if they do; of drafter and options.
    """

    contract: Contract = "exact"
    tokens: Tokens = "ids"
    trees: bool = False
    greedy: bool = False
    one_law: bool = False
    joint: bool = False
    positions: bool = False
    early: bool = False
    judges: bool = True
    rewarded: bool = False
    foresees: bool = False
    independent: bool = False
    soft: bool = False
    routes: bool = False
    check: Callable[[Any, Drafter], str | None] = lambda options, drafter: None
    kind: ClassVar[str] = "rule"
    home: ClassVar[str] = "mmspec.engine.accept"


class DraftOptions(Options):
    """Options of a drafter, which also say how large its drafts are; here those of chains.

    `depth` is how many tokens ahead a draft goes.
    """

    ranks: ClassVar[bool] = False

    def first(self, stride: int) -> int:
        """Tokens ahead in the first draft, if rows of the picture have `stride` positions."""
        return int(getattr(self, "num_draft_tokens", 1))

    def nodes(self, depth: int) -> int:
        """Most nodes of a draft."""
        return depth

    def drawn(self, depth: int) -> int:
        """Most nodes that are drawn for a draft, with those that are not kept."""
        return self.nodes(depth)

    def calls(self, depth: int) -> list[int]:
        """Tokens a row that each call of a draft model reads for a draft; no model: none."""
        return []


@dataclass(frozen=True)
class Drafter(Part):
    """A drafter.

    Attributes:
        tokens: what it drafts.
        drafts: it drafts anything at all.
        tree: it drafts trees.
        knob: the option that says how far it drafts, or how much: the demo's one field.
        depth: the option that a length policy takes the place of; None: there is none.
        window: it drafts as far as its window at most.
        model: how its draft model says tokens: one a call, or a block of several; "": it has none.
        watched: a length policy may look at its tokens as they are drafted.
        own_layers: it runs some of the target's layers.
        rounds: it runs the target on rounded weights, as `draft_weights` says.
        nests: it may draft for such a copy of the target.
        settled: tokens stay in a window as if nobody had looked at them.
        positions: it says where in the picture its nodes stand.
        unjudged: its drafts may stand without a judge, always do, or never.
        known: it knows the law that its tokens were drawn from.
        laws: its tokens have laws; False: it finds them in the text.
        one_law: by its options, whether siblings are drawn independently from one law.
        merges: it may be part of a merged tree.
        fixed: it drafts as many as it is told, whatever a length policy says.
        whole: it drafts whole tokens of vectors, with the target's noises.
        ahead: it drafts while the target reads.
        units: its drafts are units that stand or fall as a whole.
        asks: it may say itself which of its drafts are to be verified.
        returns: its draft model goes back far behind the latest draft, so that layers with a window
            keep all entries.
    """

    tokens: Tokens = "ids"
    drafts: bool = True
    tree: bool = False
    knob: str | None = None
    depth: str | None = None
    window: bool = False
    model: Literal["", "token", "block"] = ""
    watched: bool = False
    own_layers: bool = False
    rounds: bool = False
    nests: bool = False
    settled: bool = False
    positions: bool = False
    unjudged: Literal["never", "maybe", "always"] = "never"
    known: bool = True
    laws: bool = True
    one_law: Callable[[Any], bool] = lambda options: False
    merges: bool = False
    fixed: bool = False
    whole: bool = False
    ahead: bool = False
    units: bool = False
    asks: bool = False
    returns: bool = False
    kind: ClassVar[str] = "drafter"
    home: ClassVar[str] = "mmspec.draft"


@dataclass(frozen=True)
class Length(Part):
    """A draft-length policy.

    Attributes:
        depth: whose the depth is: the drafter's own; the drafter's if it has a window; or the
            policy's, by its option `max_draft_tokens`. Trees always have their own.
        watches: it looks at the tokens of a draft model as they are drafted.
        recalls: it goes by the laws or the tokens of earlier drafts.
        soft: it asks how sure a draft model is. At temperature 0 that is told by the law whose
            likeliest token is drafted.
        switches: for each call it is chosen how far, or plain decoding.
        tokens: what it has figures for.
    """

    depth: Literal["drafter", "window", "own"] = "drafter"
    watches: bool = False
    recalls: bool = False
    soft: bool = False
    switches: bool = False
    tokens: tuple[Tokens, ...] = ("ids",)
    kind: ClassVar[str] = "length"
    home: ClassVar[str] = "mmspec.engine.length"


@dataclass(frozen=True)
class Head(Part):
    """A draft head in place of a draft model.

    Attributes:
        blocks: a call says several tokens.
        trees: whether trees are made of its blocks, too.
        trained: there is a recipe for it; others come from published files.
        sees: it has ways of its own to read pictures, of which text alone has no use.
        serves: modalities whose targets it reads.
    """

    blocks: bool = False
    trees: bool = False
    trained: bool = True
    sees: bool = False
    serves: tuple[Modality, ...] = ("vlm",)
    kind: ClassVar[str] = "head"
    home: ClassVar[str] = "mmspec.models.heads"


@dataclass(frozen=True)
class Compressor(Part):
    """A training-free compressor of visual tokens; `reference` is a function.

    Attributes:
        takes: further inputs that it can use.
        through: whose attention it reads: the vision tower's, or a language model's: its own
            model's or the draft model's.
        layer: of the vision tower, that its attention and keys are published for.
        mean_keys: keys are the mean over heads, or all heads side by side.
        adaptive: it can choose itself how many tokens stay.
        serves: modalities whose models see pictures.
    """

    takes: tuple[str, ...] = ()
    through: Literal["tower", "model", "drafter"] = "tower"
    layer: int = -2
    mean_keys: bool = True
    adaptive: bool = False
    serves: tuple[Modality, ...] = ("vlm",)
    kind: ClassVar[str] = "compressor"
    home: ClassVar[str] = "mmspec.compress"

    @property
    def uses(self) -> tuple[str, ...]:
        """Names of all inputs beside the features."""
        return self.needs + self.takes


@dataclass(frozen=True)
class Weights(Part):
    """A form that the weights of linear layers are rounded to; `reference` is a class of maps.

    Attributes:
        bits: of a weight.
        inside: the form whose numbers hold them, as many bytes as those have; "": none.
    """

    bits: int = 32
    inside: str = ""
    kind: ClassVar[str] = "weights"
    home: ClassVar[str] = "mmspec.models"


Role = Literal["baseline", "method", "sceptic", "oracle"]
OF_IDS: tuple[Modality, ...] = ("image", "vlm")


@dataclass(frozen=True)
class Preset:
    """A method by name: which drafter, acceptance rule and length policy work together.

    Attributes:
        name: what users call it.
        drafter, rule, length: the parts, by name.
        summary: what it does, in a few words.
        role: what a report calls its row: the baseline, a method, the cheap alternative that a
            sceptic asks for, or an oracle: what methods of a kind could reach at most, at no speed.
        knob: the option that trades speed for quality, or speed alone.
        sweep: values of the knob that draw its frontier, from safe to fast.
        settings: options whose defaults are this method's own.
        serves: modalities that it works for; "vlm" is text, with pictures in front of it or none;
            tokens of "continuous" are vectors, of "video" blocks of latent frames.
        head: the draft head that takes the place of a draft model, by name.
        of: what it is for a modality, if that is another.
        answers: who makes the output: the target, the draft model alone, or several experts.
        options: of the method itself, by modality.
        paper: where it was published, if it drafts nothing; else its parts say.
    """

    name: str
    drafter: str
    rule: str
    summary: str
    length: str = "constant"
    role: Role = "method"
    knob: str | None = None
    sweep: tuple[float, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    serves: tuple[Modality, ...] = OF_IDS
    head: str | None = None
    of: Mapping[Modality, Preset] = field(default_factory=dict)
    answers: Literal["target", "drafter", "experts"] = "target"
    options: Mapping[Modality, type] = field(default_factory=dict)
    paper: str = ""
    kind: ClassVar[str] = "method"
