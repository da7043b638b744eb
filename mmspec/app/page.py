"""Page of the demo: a tab for every modality, one for reports, and what the buttons do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from ..errors import InputError
from ..files import to_json
from ..pipelines.model_folders import shipped
from . import markup, method_text
from .comparison import Comparison, State
from .folders import Folders, told_as
from .generation_view import GenerationRequest
from .job_queue import RUNS, JobQueue, QueuedJob, runs, seconds_before, visitor_of
from .limits import (
    Limits,
    checked_number,
    checked_picture,
    checked_text,
    glance_at_picture,
    refused,
    safely,
)
from .method_fields import DROP, QUIET, WHOLE, MethodFields
from .model_cache import ModelCache
from .reports import ReportTab
from .tabs import TABS, Tab

INTRO = """# mmspec
One model, one prompt, one seed: first speculatively, then plainly. Both show while they are made.
"""
EMPTY = {
    "speculative": "Generate shows it here, while it is made.",
    "plain": "Then this follows: the same, decoded plainly.",
}
TURN = "Waiting for its turn: one run goes at a time, so that its seconds are true"
STOPPING = markup.message("Stopping …")
PICTURES = [".png", ".jpg", ".jpeg", ".webp"]

# in the browser: an answer that begins below the fold, or above the window, comes into view
SHOW = """(...given) => {
  const shown = [...document.querySelectorAll(".mm-answer")].find((one) => one.offsetParent);
  const top = shown ? shown.getBoundingClientRect().top : 0;
  if (top < 0 || top > window.innerHeight / 2)
    shown.scrollIntoView({behavior: "smooth", block: "start"});
  return given;
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
            with gr.Tabs(overflow_behavior="wrap"):
                for tab in TABS:
                    with gr.Tab(tab.title, id=tab.modality):
                        self._modality(page, tab)
                with gr.Tab("Frontier", id="frontier") as frontier:
                    self.reports.build(frontier)
        page.queue(max_size=self.limits.waiting, default_concurrency_limit=4, api_open=False)
        return page

    def fields(self, tab: Tab) -> MethodFields:
        """Fields of how to speculate on a tab."""
        return MethodFields(tab, self.cache, self.folders, self.limits)

    def _modality(self, page: Any, tab: Tab) -> None:
        # in the order of a phone's one column; a wide page has the answer beside the rest
        methods = self.fields(tab)
        with gr.Column(elem_classes="mm-tab"):
            with gr.Column(elem_classes="mm-ask"):
                inputs, hint = self._asked(tab)
                methods.choose()
                with gr.Row(elem_classes="mm-press"):
                    go = gr.Button(
                        "Generate", variant="primary", min_width=120, elem_classes="mm-go"
                    )
                    stop = gr.Button("Stop", variant="stop", min_width=80, elem_classes="mm-stop")
            with gr.Column(elem_classes="mm-answer"):
                shown = headline, *panels = self._answer(tab, methods.method.value is None)
            with gr.Column(elem_classes="mm-more"):
                methods.tune()
                inputs |= self._sampled(tab, hint)
        methods.follow(inputs["model"], inputs.get("path"))
        inputs |= {"method": methods.method, "knob": methods.knob, "more": methods.more}
        names = list(inputs)

        def refusal(request: gr.Request, values: tuple[Any, ...]) -> str:
            def ask() -> None:
                self.jobs.check(page._queue, request)
                given = dict(zip(names, values, strict=True))
                self._checked(tab, given, request, glance_at_picture)

            return refused(ask)

        def asked(request: gr.Request, *values: Any) -> str:
            """Say at once, where the page has been scrolled to, what becomes of it."""
            if why := refusal(request, values):
                return markup.message(why, "error")
            return markup.message(self.turn(page._queue))

        def check(request: gr.Request, *values: Any) -> list[Any]:
            """Refuse bad input before its turn, at the prompt, the first field."""
            why = refusal(request, values)
            return [gr.validate(not why, why), *[gr.validate(True, "")] * (len(names) - 1)]

        def generate(request: gr.Request, *values: Any) -> Iterator[Any]:
            # again: requests that came at the same time did not see each other
            if why := refused(lambda: self.jobs.check(page._queue, request, itself=True)):
                yield _only(markup.message(why, "error"))
            else:
                yield from self.generate(tab, dict(zip(names, values, strict=True)), request)

        def ended(request: gr.Request, told: str) -> Any:
            return self.ended(tab, told, request)

        fields = list(inputs.values())
        go.click(asked, fields, headline, js=SHOW, **QUIET)
        run = go.click(
            generate,
            fields,
            shown,
            validator=check,
            concurrency_id=RUNS,
            concurrency_limit=1,
            api_visibility="private",
            show_progress="full",
            show_progress_on=panels[0],
        )
        run.then(ended, headline, shown, **QUIET)
        put = f"() => {to_json(STOPPING)}"
        stop.click(None, None, headline, js=put, cancels=run, **QUIET)

    def _asked(self, tab: Tab) -> tuple[dict[str, Any], gr.HTML]:
        """Fields of what is asked for, by name, and the hint under them."""
        inputs: dict[str, Any] = {}
        inputs["prompt"] = gr.Textbox(
            tab.examples[0], label=tab.asks, lines=2, max_length=self.limits.prompt
        )
        with gr.Row(elem_classes="mm-examples"):
            for example in tab.examples:
                put = f"() => {to_json(example)}"  # in the browser: nobody else is asked
                gr.Button(example, size="sm").click(None, None, inputs["prompt"], js=put, **QUIET)
        hint = gr.HTML(self.hint(tab, self.cache.names(tab.modality)[0]), elem_classes="mm-hints")
        if tab.pictured:
            with gr.Row(elem_classes="mm-pictured"):
                inputs["picture"] = upload = gr.File(
                    label="Picture (PNG, JPEG or WebP)",
                    file_types=PICTURES,
                    height=DROP,
                    scale=3,
                    min_width=200,
                    elem_classes="mm-drop",
                )
                shown = gr.HTML(self._thumbnail(None), elem_classes="mm-upload", min_width=80)
            held = {**QUIET, "queue": True}  # a picture to be shown takes memory
            upload.change(self._thumbnail, upload, shown, **held)
        return inputs, hint

    def _answer(self, tab: Tab, idle: bool) -> tuple[gr.HTML, ...]:
        """Headline and both panels; `idle`: there is nothing to speculate with."""
        told = self.cache.missing(tab.modality) or (method_text.NOTHING if idle else "")
        headline = gr.HTML(
            markup.message(method_text.sentence(told) if told else ""), elem_classes="mm-headline"
        )
        gr.HTML(markup.legend(*tab.legend))
        with gr.Row(elem_classes="mm-sides"):
            panels = [
                gr.HTML(
                    markup.panel(side, "", markup.hint(told)),
                    elem_classes=f"mm-{side}",
                    min_width=200,
                )
                for side, told in EMPTY.items()
            ]
        return headline, *panels

    def _sampled(self, tab: Tab, hint: gr.HTML) -> dict[str, Any]:
        """Fields of the model, the seed and how to sample, by name."""
        inputs: dict[str, Any] = {}
        names = self.cache.names(tab.modality)
        with gr.Accordion("Model, seed and sampling", open=False):
            with gr.Row():
                inputs["model"] = gr.Dropdown(names, value=names[0], label="Model", min_width=WHOLE)
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
            event(partial(self.hint, tab), fields, hint, **QUIET)
        return inputs

    def hint(self, tab: Tab, model: str, typed: str = "") -> str:
        """Hint on what the embedded model knows, if that is the one."""
        own = not typed.strip() and self.cache.embedded(tab.modality, model)
        return markup.hint(*tab.knows) if own else ""

    def _thumbnail(self, path: Any) -> str:
        def make() -> str:
            picture = checked_picture(path or self.example, self.limits)
            picture.thumbnail((256, 256))
            return markup.picture(picture, "the picture that is asked about", "mm-thumbnail")

        return safely(make) if path or self.example else ""

    def generate(self, tab: Tab, given: Mapping[str, Any], request: Any) -> Iterator[Any]:
        """Updates of the page from the press of the button on: headline, and both panels."""
        waits = (
            "Waiting for a run that was stopped; it ends with its round …" if self.jobs.busy else ""
        )
        empty = [markup.panel(side, "") for side in EMPTY]
        yield markup.message(waits), *empty
        jobs: list[QueuedJob[State]] = []

        def start() -> None:
            wanted, called, folder = self._checked(tab, given, request, checked_picture)

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

    def turn(self, queue: Any) -> str:
        """Say what a run that joins the queue waits for, and how long; "": nothing."""
        ahead, left = len(runs(queue)), seconds_before(queue)
        if not ahead:
            return ""
        many = "one run is" if ahead == 1 else f"{ahead} runs are"
        most = f"and a run ends after {markup.seconds(self.limits.seconds)} at the latest"
        long = most if left is None else f"about {markup.seconds(left)}"
        return f"{TURN}; {many} before it, {long} …"

    def ended(self, tab: Tab, told: str, request: Any) -> Any:
        """Update of the page after a run with the headline `told`; a stopped one has a result."""
        job = self.jobs.cancelled(_owner(tab, request))
        if job is not None and job.last is not None:
            return _panels(job.last)
        stopped = job is not None or told == STOPPING
        return _only(markup.message("Stopped.") if stopped else gr.skip())

    def _checked(
        self,
        tab: Tab,
        given: Mapping[str, Any],
        request: Any,
        seen: Callable[[Any, Limits], Image.Image | None],
    ) -> tuple[GenerationRequest, str, Path | None]:
        """Checked request of a visitor, its picture `seen`; its model's name, and folder."""
        limits = self.limits
        prompt = checked_text(given["prompt"], "the prompt", limits.prompt)
        if not prompt:
            raise InputError("the prompt is empty; say what to make")
        picture = None
        if tab.pictured:
            picture = seen(given["picture"] or self.example, limits)
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
