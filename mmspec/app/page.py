"""Page of the demo: a tab for every modality, one for reports, and what the buttons do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from ..errors import InputError
from ..files import to_json
from ..methods import PIPELINES
from ..methods.options import Option
from ..pipelines.model_folders import runnable_in, shipped
from . import markup, method_text
from .comparison import Comparison, State
from .folders import Folders, told_as
from .generation_view import GenerationRequest
from .job_queue import RUNS, JobQueue, QueuedJob, visitor_of
from .limits import Limits, checked_number, checked_picture, checked_text, refused, safely
from .model_cache import ModelCache
from .reports import ReportTab
from .tabs import TABS, Tab

INTRO = """# mmspec
One model, one prompt, one seed: first speculatively, then plainly. Both show while they are made.
"""
STOPPING = markup.message("Stopping …")
# outside of the queue, in which long runs wait
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
PICTURES = [".png", ".jpg", ".jpeg", ".webp"]

# in the browser: results that lie below the fold come into view
SHOW = """() => {
  const shown = [...document.querySelectorAll(".mm-headline")].find((one) => one.offsetParent);
  if (shown && shown.getBoundingClientRect().top > window.innerHeight / 2)
    shown.scrollIntoView({behavior: "smooth", block: "start"});
}"""


class Page:
    """The demo.

    Args:
        cache: its models.
        folders, limits: which paths visitors may name, and what else they may ask for.
        example: file of the picture to ask about as long as none is uploaded.
    """

    def __init__(
        self, cache: ModelCache, folders: Folders, limits: Limits, example: Path | None = None
    ) -> None:
        self.cache, self.folders, self.limits, self.example = cache, folders, limits, example
        self.reports = ReportTab(folders, limits)
        self.jobs: JobQueue[State] = JobQueue(limits.waiting_of_host)

    def build(self) -> gr.Blocks:
        page: gr.Blocks
        with gr.Blocks(title="mmspec", analytics_enabled=False, delete_cache=(600, 3600)) as page:
            gr.Markdown(INTRO)
            with gr.Tabs():
                for tab in TABS:
                    with gr.Tab(tab.title, id=tab.modality):
                        self._modality(page, tab)
                with gr.Tab("Frontier", id="frontier") as frontier:
                    self.reports.build(frontier)
        page.queue(max_size=self.limits.waiting, default_concurrency_limit=4, api_open=False)
        return page

    def _modality(self, page: Any, tab: Tab) -> None:
        with gr.Row(elem_classes="mm-ask"):
            with gr.Column(scale=3, min_width=300):
                inputs = self._asked(tab)
                with gr.Row():
                    go = gr.Button("Generate", variant="primary", elem_classes="mm-go")
                    stop = gr.Button("Stop", variant="stop", elem_classes="mm-stop")
            with gr.Column(scale=2, min_width=300):
                inputs |= self._method(tab, inputs["model"], inputs.get("path"))
        nothing = method_text.NOTHING if inputs["method"].value is None else ""
        told = self.cache.missing(tab.modality) or nothing
        headline = gr.HTML(
            markup.message(method_text.sentence(told) if told else ""), elem_classes="mm-headline"
        )
        gr.HTML(markup.legend(*tab.legend))
        with gr.Row(elem_classes="mm-sides"):
            panels = [
                gr.HTML(markup.panel(side, ""), elem_classes=f"mm-{side}", min_width=300)
                for side in ("speculative", "plain")
            ]
        names = list(inputs)

        def check(request: gr.Request, *values: Any) -> list[Any]:
            """Refuse bad input before its turn, at the prompt, the first field."""

            def ask() -> None:
                self.jobs.check(page._queue, request)
                self._checked(tab, dict(zip(names, values, strict=True)), request)

            why = refused(ask)
            return [gr.validate(not why, why), *[gr.validate(True, "")] * (len(names) - 1)]

        def generate(request: gr.Request, *values: Any) -> Iterator[Any]:
            # again: requests that came at the same time did not see each other
            if why := refused(lambda: self.jobs.check(page._queue, request, itself=True)):
                yield _only(markup.message(why, "error"))
            else:
                yield from self.generate(tab, dict(zip(names, values, strict=True)), request)

        def ended(request: gr.Request, told: str) -> Any:
            return self.ended(tab, told, request)

        shown = [headline, *panels]
        run = go.click(
            generate,
            list(inputs.values()),
            shown,
            validator=check,
            concurrency_id=RUNS,
            concurrency_limit=1,
            api_visibility="private",
            show_progress="full",
            show_progress_on=panels[0],
        )
        go.click(None, None, None, js=SHOW, **QUIET)
        run.then(ended, headline, shown, **QUIET)
        put = f"() => {to_json(STOPPING)}"
        stop.click(None, None, headline, js=put, cancels=run, **QUIET)

    def _asked(self, tab: Tab) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        inputs["prompt"] = gr.Textbox(
            tab.examples[0], label=tab.asks, lines=2, max_length=self.limits.prompt
        )
        with gr.Row(elem_classes="mm-examples"):
            for example in tab.examples:
                put = f"() => {to_json(example)}"  # in the browser: nobody else is asked
                gr.Button(example, size="sm").click(None, None, inputs["prompt"], js=put, **QUIET)
        hint = gr.HTML(self._hint(tab, self.cache.names(tab.modality)[0]), elem_classes="mm-hints")
        if tab.pictured:
            with gr.Row():
                inputs["picture"] = upload = gr.File(
                    label="Picture (PNG, JPEG or WebP)", file_types=PICTURES, height=110, scale=3
                )
                shown = gr.HTML(self._thumbnail(None), elem_classes="mm-upload")
            held = {**QUIET, "queue": True}  # a picture to be shown takes memory
            upload.change(self._thumbnail, upload, shown, **held)
        names = self.cache.names(tab.modality)
        with gr.Accordion("Model, seed and sampling", open=False):
            with gr.Row():
                inputs["model"] = gr.Dropdown(names, value=names[0], label="Model")
                inputs["seed"] = gr.Number(0, label="Seed", precision=None)
            if self.folders.offered:
                inputs["path"] = gr.Textbox(
                    "", label="Checkpoint folder in its place", placeholder="path/to/checkpoint"
                )
            for setting in tab.settings:
                inputs[setting.name] = gr.Slider(
                    setting.low, setting.high, setting.value, step=setting.step, label=setting.label
                )
        fields = [inputs[name] for name in ("model", "path") if name in inputs]
        for event in (field.change for field in fields):
            event(partial(self._hint, tab), fields, hint, **QUIET)
        return inputs

    def _hint(self, tab: Tab, model: str, typed: str = "") -> str:
        """Hint on what the embedded model knows, if that is the one."""
        own = not typed.strip() and self.cache.embedded(tab.modality, model)
        return markup.hint(tab.knows) if own else ""

    def _thumbnail(self, path: Any) -> str:
        def make() -> str:
            picture = checked_picture(path or self.example, self.limits)
            picture.thumbnail((256, 256))
            return markup.picture(picture, "the picture that is asked about", "mm-thumbnail")

        return safely(make) if path or self.example else ""

    def _method(self, tab: Tab, model: Any, path: Any) -> dict[str, Any]:
        """Fields of how to speculate, by name: of the chosen model, or that of field `path`."""
        modality = tab.modality
        offered, first = self._offered(tab, self.cache.names(modality)[0])
        choices = method_text.labelled(offered, modality, first)
        method = gr.Dropdown(choices, value=first, label="Method")
        about = gr.HTML(self._about(tab, first))
        knob = self._knob(method_text.knob(first, modality))
        more = gr.Textbox(
            "",
            label="Further settings",
            placeholder="name=value, name=value",
            max_length=self.limits.settings,
        )

        def change(name: str | None, settings: str) -> tuple[str, Any]:
            known = method_text.knob(name, modality) if name in tab.methods else None
            return self._about(tab, name, None, settings), self._knob(known)

        def offer(request: gr.Request, chosen: str | None, name: str, typed: str = "") -> Any:
            offered, first = self._offered(tab, name, typed.strip(), request)
            choices = method_text.labelled(offered, modality, first)
            return gr.Dropdown(choices, value=chosen if chosen in offered else first)

        method.change(change, [method, more], [about, knob], **QUIET)
        for event in (knob.change, more.blur):
            event(partial(self._about, tab), [method, knob, more], about, **QUIET)
        fields = [method, model] if path is None else [method, model, path]
        model.change(offer, fields, method, **QUIET)
        if path is not None:
            path.blur(offer, fields, method, **QUIET)
        return {"method": method, "knob": knob, "more": more}

    def _offered(
        self, tab: Tab, model: str, typed: str = "", request: Any = None
    ) -> tuple[list[str], str | None]:
        """The methods that a model can run, and the one to begin with; None: it can run none."""
        able = tab.methods
        with suppress(InputError):  # what is wrong with a model is said once it is used
            able = self.cache.methods(tab.modality, model)
            if typed:
                able = runnable_in(self.folders.find(typed, request), tab.modality)
        first, offered = PIPELINES[tab.modality].first, [n for n in tab.methods if n in able]
        return offered, next((name for name in (*first, *offered) if name in offered), None)

    def _about(self, tab: Tab, method: str | None, value: Any = None, more: str = "") -> str:
        """Describe a method with its knob and further settings, or what is wrong with them."""

        def text() -> str:
            if method is None:
                return method_text.about(None, tab.modality)
            settings = checked_text(more, "the settings", self.limits.settings)
            _, config = method_text.configured(method, tab.modality, value, settings)
            return method_text.about(config, tab.modality)

        return safely(text)

    def _knob(self, knob: tuple[Option, Any] | None) -> Any:
        if knob is None:
            return gr.Number(None, label="This method has no knob", interactive=False)
        option, value = knob
        label = f"{option.name}: {option.help}"
        if option.low is not None and option.high is not None:
            label += f", {option.low:g} to {option.high:g}"
        return gr.Number(value, label=label, interactive=True, precision=None)

    def generate(self, tab: Tab, given: Mapping[str, Any], request: Any) -> Iterator[Any]:
        """Updates of the page from the press of the button on: headline, and both panels."""
        waits = "Waiting for a run that was stopped to end …" if self.jobs.busy else ""
        empty = markup.panel("speculative", ""), markup.panel("plain", "")
        yield markup.message(waits), *empty
        jobs: list[QueuedJob[State]] = []

        def start() -> None:
            wanted, called, folder = self._checked(tab, given, request)

            def work(job: QueuedJob[State]) -> None:
                if told := self.cache.wait(tab.modality, folder):
                    job.tell(State(markup.message(told)))
                with told_as(called, folder or shipped().get(called)):
                    model = self.cache.load(tab.modality, folder)
                Comparison(tab.make, model, wanted, job, self.limits.seconds).run()

            jobs.append(self.jobs.start(_owner(tab, request), work))

        if why := refused(start):
            yield _only(markup.message(why, "error"))
            return
        (job,) = jobs
        try:
            for state in job.states():  # None: Gradio sees whether the visitor is still there
                yield _only(gr.skip()) if state is None else _panels(state)
            if why := refused(job.done.result):
                yield _only(markup.message(why, "error"))
        finally:
            if job.done.done():
                self.jobs.forget(job)
            else:  # Gradio has cancelled it, or its visitor is gone
                job.cancel()

    def ended(self, tab: Tab, told: str, request: Any) -> Any:
        """Update of the page after a run with the headline `told`; a stopped one has a result."""
        job = self.jobs.cancelled(_owner(tab, request))
        if job is not None and job.last is not None:
            return _panels(job.last)
        return _only(markup.message("Stopped.") if told == STOPPING else gr.skip())

    def _checked(
        self, tab: Tab, given: Mapping[str, Any], request: Any
    ) -> tuple[GenerationRequest, str, Path | None]:
        """Checked request of a visitor; the name of its model, and its folder."""
        limits = self.limits
        prompt = checked_text(given["prompt"], "the prompt", limits.prompt)
        if not prompt:
            raise InputError("the prompt is empty; say what to make")
        picture = None
        if tab.pictured:
            picture = checked_picture(given["picture"] or self.example, limits)
        more = checked_text(given["more"], "the settings", limits.settings)
        if given["method"] is None:
            raise InputError(method_text.NOTHING)
        name, config = method_text.configured(
            str(given["method"]), tab.modality, given["knob"], more
        )
        seed = checked_number(given["seed"], "the seed", 0, limits.most_seed)
        call = {setting.name: setting.checked(given[setting.name]) for setting in tab.settings}
        path = checked_text(given.get("path", ""), "the path", 1000)
        model = str(given["model"])
        folder = self.cache.folder(tab.modality, model)
        wanted = GenerationRequest(prompt, config, name, seed, call, picture)
        return (wanted, path, self.folders.find(path, request)) if path else (wanted, model, folder)


def _only(headline: Any) -> Any:
    """A headline over panels that stay."""
    return headline, gr.skip(), gr.skip()


def _panels(state: State) -> Any:
    return state.headline, state.speculative or gr.skip(), state.plain or gr.skip()


def _owner(tab: Tab, request: Any) -> tuple[str, str]:
    return visitor_of(request)[0], tab.modality
