"""Server of the page: from this machine alone, nothing but the page, nothing from the network."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from ..errors import absent
from ..hosts import check_address, is_loopback, taken
from ..methods import MODALITIES, Modality
from .folders import Folders
from .limits import Limits
from .model_cache import ModelCache


@contextmanager
def served(
    models: Mapping[Modality, Sequence[Path]],
    host: str = "127.0.0.1",
    port: int | None = 7860,
    models_root: Path | None = None,
    device: str = "cpu",
    limits: Limits | None = None,
) -> Iterator[str]:
    """Serve the demo while the block runs; gives its address.

    Args:
        models: folders to offer beside the embedded models, by modality.
        host, port: where; a port of None: any that is free.
        models_root: visitors may name folders inside of it. None: on a loopback address visitors
            from this machine may name any, on others nobody may.
        device: where models run.

    Raises:
        InputError: Gradio is missing, the address can't be had, or a folder's index can't be read.
    """
    check_address(host, port)
    with tempfile.TemporaryDirectory(prefix="mmspec-demo-") as scratch, ExitStack() as stack:
        # uploads go to a folder and vanish with it, nobody is called home
        own = {"GRADIO_TEMP_DIR": scratch, "GRADIO_ANALYTICS_ENABLED": "False"}
        stack.enter_context(patch.dict(os.environ, own))
        try:
            import gradio as gr
        except ModuleNotFoundError as error:
            raise absent("the demo needs gradio", "demo") from error
        from starlette.middleware import Middleware

        from .page import Page
        from .request_guard import RequestGuard

        limits = limits or Limits()
        local = is_loopback(host)
        folders = Folders(models_root, anywhere=local)
        cache = ModelCache(models, device)
        for modality in MODALITIES:
            for name in cache.names(modality):  # what can't be read is said before anybody visits
                cache.methods(modality, name)
        page = Page(cache, folders, limits, _example(Path(scratch)))
        blocks = page.build()
        fonts = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]
        theme = gr.themes.Base(primary_hue="blue", font=fonts[0], font_mono=fonts[1])
        guard = Middleware(RequestGuard, limits=limits, scratch=Path(scratch), local=local)
        try:
            _, address, _ = blocks.launch(
                server_name=host,
                server_port=port,
                prevent_thread_lock=True,
                quiet=True,
                share=False,
                show_error=False,
                allowed_paths=[],
                max_file_size=limits.upload_bytes,
                app_kwargs={"middleware": [guard]},
                enable_monitoring=False,
                run_history=False,
                footer_links=[],
                ssr_mode=False,
                pwa=False,
                mcp_server=False,
                theme=theme,
                css_paths=Path(__file__).with_name("page.css"),
            )
        except OSError as error:
            page.jobs.close()
            raise taken(host, port, error) from error
        try:
            yield address
        finally:
            page.jobs.close()
            blocks.close(verbose=False)


def _example(folder: Path) -> Path:
    """A picture that the embedded model can be asked about."""
    import numpy as np
    from PIL import Image

    from ..worlds.shapes.render import render
    from ..worlds.shapes.scene import sample

    _, scene = sample(np.random.default_rng(3), "two_object")
    path = folder / "example.png"
    Image.fromarray(render(scene, 256)).save(path)
    return path
