"""The page: a tab for every modality and one for reports; what happens when a button is pressed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from ..errors import InputError
from ..files import to_json
from ..pipelines.available_methods import runnable_in
from ..pipelines.base import shipped
from . import markup, method_text
from .comparison import Comparison, State
from .folders import Folders, told_as
from .frontier import frontier_page, read_report, shipped_reports
from .generation_view import Wish
from .job_queue import BROKEN, Desk, QueuedJob, visitor_of
from .limits import Limits, checked_number, checked_picture, checked_text, checked_upload
from .model_cache import ModelCache
from .tabs import TABS, Tab

logger = logging.getLogger(__name__)
INTRO = """# mmspec
One model, one prompt, one seed: first speculatively, on the left, then plainly, on the right.
"""
_QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
PICTURES = [".png", ".jpg", ".jpeg", ".webp"]
_QUICK = 4  # events at a time that are done at once; a picture to be shown takes memory


class Page:
    """The demo.

    Args:
        cache: its models.
        folders: which paths visitors may name.
        limits: what else they may ask for.
        example: file of the picture to ask about as long as none is uploaded; None: there is none.
    """

    def __init__(
        self, cache: ModelCache, folders: Folders, limits: Limits, example: Path | None = None
    ) -> None:
        self.cache, self.folders, self.limits, self.example = cache, folders, limits, example
        self.desk: Desk[State] = Desk(limits.waiting, limits.waiting_of_host)

    def build(self) -> gr.Blocks:
        """The page as Gradio serves it."""
        page: gr.Blocks
        with gr.Blocks(title="mmspec", analytics_enabled=False, delete_cache=(600, 3600)) as page:
            gr.Markdown(INTRO)
            with gr.Tabs():
                for tab in TABS:
                    with gr.Tab(tab.title, id=tab.modality):
                        self._modality(tab)
                with gr.Tab("Frontier", id="frontier") as frontier:
                    self._frontier(frontier)
            page.unload(self._left)
        page.queue(max_size=50, default_concurrency_limit=_QUICK)
        return page

    # --- a modality -------------------------------------------------------------------------------

    def _modality(self, tab: Tab) -> None:
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
                gr.HTML(markup.panel(title, ""), elem_classes=f"mm-{side}", min_width=300)
                for side, title in (("speculative", "speculative"), ("plain", "plain"))
            ]
        names = list(inputs)

        def generate(request: gr.Request, *values: Any) -> Iterator[Any]:
            given = dict(zip(names, values, strict=True))
            yield from self.generate(tab, given, request)

        # who waits for a place at the desk holds one here; as many are left for who is told no
        most: dict[str, Any] = {
            "concurrency_limit": 2 * self.limits.waiting,
            "concurrency_id": "generate",
        }
        go.click(generate, list(inputs.values()), [headline, *panels], **most, **_QUIET)
        stop.click(self._stop, None, None, queue=False, **_QUIET)

    def _asked(self, tab: Tab) -> dict[str, Any]:
        """Fields of what to make, by name."""
        inputs: dict[str, Any] = {}
        inputs["prompt"] = gr.Textbox(
            tab.examples[0], label=tab.asks, lines=2, max_length=self.limits.prompt
        )
        with gr.Row(elem_classes="mm-examples"):
            for example in tab.examples:
                put = f"() => {to_json(example)}"  # in the browser: nobody else is asked
                gr.Button(example, size="sm").click(None, None, inputs["prompt"], js=put, **_QUIET)
        hint = gr.HTML(self._hint(tab, self.cache.names(tab.modality)[0]), elem_classes="mm-hints")
        if tab.pictured:
            inputs["picture"] = self._picture()
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
            event(partial(self._hint, tab), fields, hint, **_QUIET)
        return inputs

    def _hint(self, tab: Tab, model: str, typed: str = "") -> str:
        """What to ask the embedded model for, if that is the one."""
        own = not typed.strip() and self.cache.embedded(tab.modality, model)
        return markup.hint(tab.knows) if own else ""

    def _picture(self) -> Any:
        """A field for an upload; beside it the picture that is asked about."""
        with gr.Row():
            upload = gr.File(
                label="Picture (PNG, JPEG or WebP)", file_types=PICTURES, height=110, scale=3
            )
            shown = gr.HTML(self._thumbnail(None), elem_classes="mm-upload")
        upload.change(self._thumbnail, upload, shown, **_QUIET)
        return upload

    def _thumbnail(self, path: Any) -> str:
        def make() -> str:
            picture = checked_picture(path or self.example, self.limits)
            picture.thumbnail((256, 256))
            return markup.picture(picture, "the picture that is asked about", "mm-thumbnail")

        return _told(make) if path or self.example else ""

    def _method(self, tab: Tab, model: Any, path: Any) -> dict[str, Any]:
        """Fields of how to speculate, by name.

        The methods are those that the model can run: what is chosen in field `model`, or typed into
        field `path`.
        """
        modality = tab.modality
        offered, first = self._offered(tab, self.cache.names(modality)[0])
        method = gr.Dropdown(offered, value=first, label="Method")
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
            return gr.Dropdown(offered, value=chosen if chosen in offered else first)

        method.change(change, [method, more], [about, knob], **_QUIET)
        for event in (knob.change, more.blur):
            event(partial(self._about, tab), [method, knob, more], about, **_QUIET)
        fields = [method, model] if path is None else [method, model, path]
        model.change(offer, fields, method, **_QUIET)
        if path is not None:
            path.blur(offer, fields, method, **_QUIET)
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
        offered = [name for name in tab.methods if name in able]
        return offered, next((name for name in (*tab.first, *offered) if name in offered), None)

    def _about(self, tab: Tab, method: str | None, value: Any = None, more: str = "") -> str:
        """What a method is with its knob and further settings, or what is wrong with them."""

        def told() -> str:
            if method is None:
                return method_text.about(None, tab.modality)
            settings = checked_text(more, "the settings", self.limits.settings)
            _, config = method_text.configured(method, tab.modality, value, settings)
            return method_text.about(config, tab.modality)

        return _told(told)

    def _knob(self, knob: method_text.Knob | None) -> Any:
        if knob is None:
            return gr.Number(None, label="This method has no knob", interactive=False)
        return gr.Number(knob.value, label=knob.label, interactive=True, precision=None)

    def generate(self, tab: Tab, given: Mapping[str, Any], request: Any) -> Iterator[Any]:
        """What the page shows from the press of the button on: headline, and both panels.

        Args:
            given: values of the fields by name.
            request: of the visitor.
        """
        yield "", markup.panel("speculative", ""), markup.panel("plain", "")
        jobs: list[QueuedJob[State]] = []

        def submit() -> str:
            work = self._work(tab, *self._wish(tab, given, request))
            jobs.append(self.desk.submit(*visitor_of(request), work))
            return ""

        if refused := _told(submit):
            yield _only(refused)
            return
        try:
            yield from self._watched(jobs[0])
        finally:  # a visitor who is gone needs no answer
            self.desk.drop(jobs[0])

    def _wish(
        self, tab: Tab, given: Mapping[str, Any], request: Any
    ) -> tuple[Wish, str, Path | None]:
        """What is asked for, checked; how the visitor calls its model, and where that is."""
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
        wish = Wish(prompt, config, name, seed, call, picture)
        return (wish, path, self.folders.find(path, request)) if path else (wish, model, folder)

    def _work(
        self, tab: Tab, wish: Wish, called: str, folder: Path | None
    ) -> Callable[[QueuedJob[State]], None]:
        def work(job: QueuedJob[State]) -> None:
            job.tell(State(markup.message("Loading the model …")))
            with told_as(called, folder or shipped().get(called)):
                model = self.cache.load(tab.modality, folder)
            Comparison(tab.make, model, wish, job, self.limits.seconds).run()

        return work

    def _watched(self, job: QueuedJob[State]) -> Iterator[Any]:
        begun = False
        for state in job.states():
            ahead = self.desk.ahead(job)
            if state is not None:
                begun = True
                panels = (html or gr.skip() for html in (state.speculative, state.plain))
                yield state.headline, *panels
            elif job.cancelled:
                yield _only(markup.message("Stopping …"))
            elif ahead:
                runs = "one run is" if ahead == 1 else f"{ahead} runs are"
                yield _only(markup.message(f"Waiting: {runs} before yours."))
        if job.error is not None:
            yield _only(markup.message(job.error, "error"))
        elif not begun:
            yield _only(markup.message("Stopped."))

    def _stop(self, request: gr.Request) -> None:
        self.desk.cancel(str(request.session_hash))

    def _left(self, request: gr.Request) -> None:
        self.desk.cancel(str(request.session_hash))

    # --- reports ----------------------------------------------------------------------------------

    def _frontier(self, tab: gr.Tab) -> None:
        gr.Markdown(
            "Speed against quality, of a `report.json` that `mmspec eval run` wrote. "
            "Up and to the right is better."
        )
        known = shipped_reports()
        with gr.Row():
            first = next(iter(known), "")
            chosen = gr.Dropdown(["", *known], value=first, label="A report of this project")
            upload = gr.File(label="Your report.json", file_types=[".json"], height=110)
            path = gr.Textbox(
                "", label="Or its path", visible=self.folders.offered, placeholder="path/to/report"
            )
        shown = gr.HTML("", elem_classes="mm-report")

        def show(request: gr.Request, source: str, value: Any) -> str:
            return _told(lambda: self.report(source, value, request))

        for source, field, event in (
            ("shipped", chosen, chosen.change),
            ("shipped", chosen, tab.select),
            ("upload", upload, upload.change),
            ("path", path, path.submit),
        ):
            name = gr.State(source)
            event(show, [name, field], shown, concurrency_limit=1, concurrency_id="draw", **_QUIET)

    def report(self, source: str, value: Any, request: Any) -> str:
        """A report as HTML; nothing for no value.

        Args:
            source: "shipped", "upload" or "path".
            value: name, uploaded file or path.

        Raises:
            InputError: there is no such report, or it can't be drawn.
        """
        if not value:
            return ""
        if source == "shipped":
            path, name = shipped_reports().get(str(value)), str(value)
            if path is None:
                raise InputError(f"there is no report {name!r} here")
        elif source == "upload":
            path, name = checked_upload(value, "report", self.limits), "the upload"
        else:
            name = checked_text(value, "the path", 1000)
            path = self.folders.find(name, request)
            if path.is_dir():  # its report may be a link that leads elsewhere
                path = self.folders.find(str(Path(name) / "report.json"), request)
        return frontier_page(read_report(path, name, self.limits))


def _told(make: Callable[[], str]) -> str:
    """What is made, or one line that says why not: a visitor never sees a trace."""
    try:
        return make()
    except InputError as error:
        return markup.message(str(error), "error")
    except Exception:
        logger.exception("the demo's page failed")
        return markup.message(BROKEN, "error")


def _only(headline: str) -> Any:
    """A headline over panels that stay."""
    return headline, gr.skip(), gr.skip()
