"""Fields of a tab that say how to speculate: the method, its knob and further settings."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import gradio as gr

from ..errors import InputError
from ..methods import PIPELINES
from ..methods.options import Option
from ..pipelines.model_folders import runnable_in
from . import markup, method_text
from .folders import Folders
from .limits import Limits, checked_text, safely
from .model_cache import ModelCache
from .tabs import Tab

# outside of the queue, in which long runs wait
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
DROP = 96  # pixels of a field for files: its label, and a line to drop one on
WHOLE = 240  # pixels at least of a list whose names are to be read whole: a phone gives it a line

# A browser's own list: Gradio's has no headings. Keys, screen readers and phones know it. `options`
# is HTML of ours; the list is told its value again whenever the server changes one of the two.
_LIST = '<label><span>Method</span><select aria-label="Method">{{{options}}}</select></label>'
_CHOICE = """
const list = element.querySelector("select");
const show = () => { list.value = props.value ?? ""; };
show();
watch(["value", "options"], show);
list.addEventListener("change", () => { props.value = list.value; trigger("input"); });
"""


class MethodFields:
    """Fields of how to speculate on one tab.

    Args:
        tab, cache, folders, limits: those of the page.

    Attributes:
        method: name of the method; None: the model can run none.
        knob, more: number for the method's knob; text of further settings.
    """

    def __init__(self, tab: Tab, cache: ModelCache, folders: Folders, limits: Limits) -> None:
        self.tab, self.cache, self.folders, self.limits = tab, cache, folders, limits
        self._names, self._first = self.offered(cache.names(tab.modality)[0])

    def choose(self) -> None:
        """Place the list of methods, and what the chosen one promises."""
        listed = self._listed(self._names, self._first)
        self.method = gr.HTML(
            self._first,
            html_template=_LIST,
            js_on_load=_CHOICE,
            options=listed,
            elem_classes="mm-method",
        )
        self._about = gr.HTML(self.about(self._first))

    def tune(self) -> None:
        """Place the fields of the chosen method's settings."""
        self.knob = _knob(method_text.knob(self._first, self.tab.modality))
        self.more = gr.Textbox(
            "",
            label="Further settings",
            placeholder="name=value, name=value",
            max_length=self.limits.settings,
        )

    def follow(self, model: Any, path: Any) -> None:
        """Let the fields follow each other, and the fields of the model and of its path, if any."""
        tab, told = self.tab, [self._about, self.knob]

        def change(name: str | None, settings: str) -> tuple[str, Any]:
            known = method_text.knob(name, tab.modality) if name in tab.methods else None
            return self.about(name, None, settings), _knob(known)

        def offer(
            request: gr.Request, chosen: str | None, settings: str, name: str, typed: str = ""
        ) -> Any:
            offered, first = self.offered(name, typed.strip(), request)
            now = chosen if chosen in offered else first
            options = self._listed(offered, first)
            if now == chosen:  # or what was chosen since would be overwritten
                return gr.HTML(options=options), gr.skip(), gr.skip()
            return gr.HTML(now, options=options), *change(now, settings)

        last = {**QUIET, "trigger_mode": "always_last"}  # keys go through a list faster than we do
        self.method.input(change, [self.method, self.more], told, **last)
        for event in (self.knob.change, self.more.blur):
            event(self.about, [self.method, self.knob, self.more], self._about, **QUIET)
        fields = [self.method, self.more, model]
        model.change(
            offer, fields if path is None else [*fields, path], [self.method, *told], **QUIET
        )
        if path is not None:
            path.blur(offer, [*fields, path], [self.method, *told], **QUIET)

    def about(self, method: str | None, value: Any = None, more: str = "") -> str:
        """Describe a method with its knob and further settings, or what is wrong with them."""

        def text() -> str:
            if method is None:
                return method_text.about(None, self.tab.modality)
            settings = checked_text(more, "the settings", self.limits.settings)
            _, config = method_text.configured(method, self.tab.modality, value, settings)
            return method_text.about(config, self.tab.modality)

        return safely(text)

    def _listed(self, names: list[str], first: str | None) -> str:
        usual = first if first in PIPELINES[self.tab.modality].first else None
        return markup.options(method_text.grouped(names, self.tab.modality, usual))

    def offered(
        self, model: str, typed: str = "", request: Any = None
    ) -> tuple[list[str], str | None]:
        """The methods that a model can run, and the one to begin with; None: it can run none."""
        tab, able = self.tab, self.tab.methods
        with suppress(InputError):  # what is wrong with a model is said once it is used
            able = self.cache.methods(tab.modality, model)
            if typed:
                able = runnable_in(self.folders.find(typed, request), tab.modality)
        first, offered = PIPELINES[tab.modality].first, [n for n in tab.methods if n in able]
        return offered, next((name for name in (*first, *offered) if name in offered), None)


def _knob(knob: tuple[Option, Any] | None) -> Any:
    if knob is None:
        return gr.Number(None, label="This method has no knob", interactive=False)
    option, value = knob
    label = f"{option.name}: {option.help}"
    if option.low is not None and option.high is not None:
        label += f", {option.low:g} to {option.high:g}"
    return gr.Number(value, label=label, interactive=True, precision=None)
