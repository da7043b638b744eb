"""Networks beside a target: who drafts, who judges drafts, and whether a method asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from ...errors import InputError
from ...methods import ResolvedConfig
from ...methods.part import Head
from ...methods.parts.routing import ADVANTAGE_ROUTER, ROUTER, ROUTERS
from ...methods.parts.steps import STEP_REWARD
from ...models.heads.judge import JudgeHead
from ...models.heads.published.head import PublishedHead
from ...models.heads.step_router import StepRouter
from ...models.step_reward import StepReward
from ...models.transformers.prompted import PromptedDecoder


@dataclass(frozen=True)
class Beside:
    """Networks beside a target; what a method does not ask for is None.

    Attributes:
        drafter: a smaller model.
        head: a draft head.
        tokenizers: of the model, for methods that look at text, and of a drafter of other words.
        judge: of drafted tokens.
        router: of drafted steps: the one that the method asks.
        reward: of steps, in a router's place or for an oracle.
    """

    drafter: PreTrainedModel | None = None
    head: PublishedHead | None = None
    tokenizers: tuple[Any, Any] = (None, None)
    judge: JudgeHead | None = None
    router: StepRouter | None = None
    reward: StepReward | None = None

    def only(self, config: ResolvedConfig) -> Beside:
        """Parts of it that another method asks for."""
        needs, routes = config.needs, config.rule.routes
        drafter = self.drafter if "drafter" in needs else None
        return Beside(
            drafter=drafter,
            head=None if config.head is None else self.head,
            tokenizers=(None, None) if drafter is None and not routes else self.tokenizers,
            judge=self.judge if "judge" in needs else None,
            router=self.router if routes else None,
            reward=self.reward if routes else None,
        )

    def check(self, config: ResolvedConfig, target: PromptedDecoder) -> None:
        """Raise an `InputError` unless this is what a method asks for beside a target."""
        own, others = self.tokenizers
        if (own is None) != (others is None) and not (config.rule.routes and others is None):
            raise InputError("a drafter of other words needs both tokenizer and drafter_tokenizer")
        if self.drafter is None and None not in self.tokenizers:
            raise InputError("there are tokenizers of a draft model, and no draft model")
        self._check_drafter(config, target)
        self._check_judge(config, target)
        if config.rule.routes:
            self._check_router(config, target)
        elif self.router is not None or self.reward is not None:
            raise InputError(f"method {config.method!r} routes nothing; leave router, reward out")

    def _check_drafter(self, config: ResolvedConfig, target: PromptedDecoder) -> None:
        name = config.method
        if config.preset.answers == "experts":
            raise InputError(
                "method 'verdict' asks several models: call SpeculativeVerdict, or `mmspec ask "
                "--method verdict --expert FOLDER`"
            )
        head = config.head
        wants = None if head is None else head.name
        needs = {"drafter", "masked", "masked-target", "judge", f"heads/{wants}"}
        if config.unverified or set(config.needs) - {*needs, *ROUTERS, STEP_REWARD}:
            raise InputError(f"method {name!r} is one of our own image pipeline")
        wanted = "drafter" in config.needs
        if head is not None and self.head is None:
            raise InputError(
                f"method {name!r} needs the draft head {wants!r} and there is none; "
                f"{_origin(head, target.sees)}"
            )
        if self.head is not None and wants is None:
            raise InputError(f"method {name!r} has no draft head; leave head out")
        if self.head is not None and self.head.method != wants:
            raise InputError(
                f"method {name!r} needs a head of {wants!r}, and this is one of "
                f"{self.head.method!r}"
            )
        if wanted and self.drafter is None:
            raise InputError(
                f"method {name!r} needs a draft model: give drafter=, or use {target.method!r}"
            )
        if self.drafter is not None and not wanted:
            raise InputError(f"method {name!r} has no draft model; leave drafter out")

    def _check_judge(self, config: ResolvedConfig, target: PromptedDecoder) -> None:
        name, asked = config.method, "judge" in config.needs
        if self.judge is None:
            if asked:
                made = _made("vlm-judge", None if target.sees else "judge")
                raise InputError(f"method {name!r} needs a judge and there is none; {made}")
            return
        if not asked:
            raise InputError(f"method {name!r} asks no judge; leave judge out")
        self.judge.check(target.model)
        layers = target.model.config.get_text_config().num_hidden_layers
        if self.head is not None and self.head.reads_of(layers):
            raise InputError(
                f"a judge reads the target's last hidden states, and the draft head "
                f"{self.head.method!r} has it keep others; use method 'judge'"
            )

    def _check_router(self, config: ResolvedConfig, target: PromptedDecoder) -> None:
        name = config.method
        if self.tokenizers[0] is None:
            raise InputError(
                f"method {name!r} looks where sentences end: give the model's tokenizer "
                "(tokenizer=)"
            )
        asked = next((need for need in ROUTERS if need in config.needs), None)
        scored = self.reward is not None
        if STEP_REWARD in config.needs and not scored:
            raise InputError(
                f"method {name!r} asks a reward of steps, and there is none: set pipe.reward, or "
                "give reward="
            )
        if asked is None and self.router is not None:
            raise InputError(f"method {name!r} asks no router; leave router out")
        if asked == ADVANTAGE_ROUTER and scored:
            raise InputError(f"method {name!r} asks its router alone; leave reward out")
        if asked is not None and self.router is None and not (asked == ROUTER and scored):
            made = _made(f"vlm-router --stage {asked}", None if target.sees else asked)
            raise InputError(
                f"method {name!r} needs the component {asked!r} and there is none; {made}"
            )
        if self.router is not None and self.router.training:
            raise InputError("the router is in training mode; call router.eval() first")
        if self.router is not None and self.drafter is not None:
            self.router.check(target.model, self.drafter)


def _origin(head: Head, sees: bool) -> str:
    """How to get a draft head for a model that `sees` pictures, or does not."""
    if not head.trained:
        return f"it comes from published files: put them into heads/{head.name} of the folder"
    recipe = "vlm-head" if sees or head.sees else "text-head"
    return _made(f"{recipe} --method {head.name}")


def _made(recipe: str, home: str | None = None) -> str:
    """How to get a component; `home`: where one lies that the recipe makes for others alone."""
    if home is None:
        return f"make it: mmspec train {recipe} --pipeline FOLDER"
    return f"put one into {home} of the folder: recipes make it for models that see pictures alone"


ALONE = Beside()


def beside_of(pipe: Any, config: ResolvedConfig) -> Beside:
    """The components of a pipeline that a method asks for."""
    needs, routes = config.needs, config.rule.routes
    small = pipe.drafter if "drafter" in needs else None
    others = pipe.drafter_words if small is not None else None
    asked = next((need for need in ROUTERS if need in needs), None)
    rewarded = routes and config.rule.rewarded and asked != ADVANTAGE_ROUTER
    reward = pipe.reward if rewarded else None
    return Beside(
        drafter=small,
        head=None if config.head is None else dict(pipe.heads or {}).get(config.head.name),
        tokenizers=(pipe.words if routes or others is not None else None, others),
        judge=pipe.judge if "judge" in needs else None,
        router=None if asked is None or reward is not None else getattr(pipe, asked),
        reward=reward,
    )
