"""Shared by all tests: helper modules on the path, small random networks and pipelines."""

from __future__ import annotations

import os
import resource
import sys
import zlib
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # each of the processes has a core of its own
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray's workers give way to other processes, of which the tests have many
os.environ.setdefault("RAY_worker_niceness", "0")

# for `forked`, `fresh`, `machines`, `mutants`, `packed_rows`, `rounding`, `serving`, `toys`,
# `visits`, `vlms` and `windows`, under importmode=importlib
_ACCEPT = ("", "/gaussian", "/lantern")
_ENGINE = ("engine", "engine/length", *(f"engine/accept{room}" for room in _ACCEPT))
_ROOMS = ("app", "doctor", "models", "models/heads/formats", "serve", "train/vlm")
for room in ("", *_ROOMS, *_ENGINE):
    sys.path.append(str(Path(__file__).parent / room))


def pytest_addoption(parser):
    parser.addoption("--other-rounding", type=int, metavar="SEED", help="see tests/rounding.py")
    told = "of the tests marked slow run one part of N, K from 0 on: all parts together are all"
    parser.addoption("--slow-part", type=part, metavar="K/N", help=told)


def part(text: str) -> tuple[int, int]:
    """A part of several, K/N."""
    k, n = map(int, text.split("/"))
    if not 0 <= k < n:
        raise ValueError(text)
    return k, n


def in_part(nodeid: str, k: int, n: int) -> bool:
    """True for the tests of part k of n, always the same and on any machine."""
    return zlib.crc32(nodeid.encode()) % n == k


LEFT_OUT: Counter[str] = Counter()
# marks of tests that want something more
OPTIONAL = ("gpu", "browser", "slow", "speculators", "fresh")


def pytest_collection_modifyitems(config, items):
    """Files with tests that take long come first, so that no process waits for one at the end, and
    of them those about the whole package, which take the longest."""
    here = Path(__file__).parent
    slow = {item for item in items if item.get_closest_marker("slow")}
    if chosen := config.getoption("--slow-part"):
        others = [item for item in items if item in slow and not in_part(item.nodeid, *chosen)]
        slow -= {*others}
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)
    long = {item.path for item in slow}
    items.sort(key=lambda item: (item.path not in long, item.path.parent != here))


def pytest_deselected(items):
    for item in items:
        marks = [name for name in OPTIONAL if item.get_closest_marker(name)]
        LEFT_OUT.update(marks[:1])


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(LEFT_OUT)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Of xdist: each process leaves out the same."""
    LEFT_OUT.update(Counter(getattr(node, "workeroutput", {}).get("left_out", {})) - LEFT_OUT)


def pytest_terminal_summary(terminalreporter):
    for name, count in LEFT_OUT.items():
        terminalreporter.write_line(f"left out: {count} tests marked {name}; pytest -m {name}")


@pytest.fixture(scope="module")
def browser():
    """A real browser, for tests that are marked so."""
    from windows import opened

    with opened() as found:
        yield found


@pytest.fixture(autouse=True, scope="session")
def kernels_round(request):
    """As they do here; or, if asked, as a machine of this seed might."""
    seed = request.config.getoption("--other-rounding")
    if seed is None:
        yield
        return
    from rounding import other_rounding

    with other_rounding(seed):
        yield


@pytest.fixture(autouse=True)
def calls_take_no_time(monkeypatch):
    """For the switch between methods, which then stays with the first: no clock decides, and no
    round is left plain to be timed."""
    monkeypatch.setattr("mmspec.engine.length.guard.now", lambda: 0.0)


@pytest.fixture(autouse=True)
def torch_is_left_as_it_was():
    """A test that left inference mode on, or other threads, would change those after it."""
    torch = sys.modules.get("torch")
    threads = None if torch is None else torch.get_num_threads()
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        if threads is not None:
            torch.set_num_threads(threads)
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()


@pytest.fixture(scope="session")
def tiny_llamagen():
    """Builds `LlamaGenTransformer`s with random weights; equal arguments, equal weights."""
    import torch

    from mmspec.models.llamagen.transformer import LlamaGenTransformer

    def build(
        *, grid=4, vocab=16, prefix=5, n_kv_head=None, rotary_prefix="identity", dtype=torch.float64
    ):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = LlamaGenTransformer(
                vocab_size=vocab,
                block_size=grid * grid,
                dim=32,
                n_layer=2,
                n_head=4,
                n_kv_head=n_kv_head,
                multiple_of=16,
                caption_dim=8,
                cls_token_num=prefix,
                rotary_prefix=rotary_prefix,
            )
            for weight in model.parameters():
                # norms too: the decoder folds them away, which ones would hide
                torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
        model.eval()
        return model.double() if dtype == torch.float64 else model

    return build


@pytest.fixture(scope="session")
def guided_rows():
    """Builds the `GuidedDecoder` of some rows of a batch of captions; equal rows, equal inputs."""
    import torch

    from mmspec.engine.warp import Warp
    from mmspec.models.guided import GuidedDecoder
    from mmspec.models.llamagen.decoder import LlamaGenDecoder
    from mmspec.models.setting import Setting

    def build(
        model, pads, rows=None, *, scale=2.0, warp=None, limit=None, scratch=8, uncond_pads=None
    ):
        """`pads[b]`: padded columns of caption b; the unconditional twin has the same unless said.

        Returns the decoder, the prefix `[R, T, D]` and its mask `[R, T]`.
        """
        with torch.random.fork_rng():
            torch.manual_seed(1)
            count, width = len(pads), model.prefix_length
            captions = torch.randn(count, width, model.config.caption_dim)
        rows = list(range(count)) if rows is None else rows
        columns = torch.arange(width)
        with torch.inference_mode():
            prefix = model.cls_embedding(captions.to(model.output.weight.dtype))[rows]
            mask = (columns >= torch.tensor(pads)[:, None])[rows]
            if scale is not None:
                nothing = model.cls_embedding(model.cls_embedding.uncond_embedding)
                prefix = torch.cat([prefix, nothing.expand(len(rows), -1, -1)])
                twin = (columns >= torch.tensor(uncond_pads or pads)[:, None])[rows]
                mask = torch.cat([mask, twin])
            guided = GuidedDecoder(
                LlamaGenDecoder(model),
                Setting(
                    prefix,
                    mask,
                    scale,
                    warp or Warp(),
                    model.grid**2 if limit is None else limit,
                    model.grid,
                    scratch,
                ),
            )
        return guided, prefix, mask

    return build


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    """A saved `ImagePipeline` of random weights: 4×4 tokens (32 px), 2×2 by its sibling (16 px)."""
    import torch
    from transformers import T5Config, T5EncoderModel

    from mmspec import ImagePipeline
    from mmspec.models.heads.judge import JudgeHead
    from mmspec.models.llamagen.dflash_head import DFlashHead
    from mmspec.models.llamagen.eagle_head import EagleHead
    from mmspec.models.llamagen.spatial_heads import SpatialHeads
    from mmspec.models.llamagen.transformer import LlamaGenTransformer
    from mmspec.models.llamagen.upsampler import LatentUpsampler
    from mmspec.models.llamagen.vq import VQModel
    from mmspec.train.caption_encoder import TEXT_ENCODER
    from mmspec.train.tokenizers import caption_tokenizer

    words = caption_tokenizer()

    def network(grid: int, layers: int = 2, masked: bool = False) -> LlamaGenTransformer:
        model = LlamaGenTransformer(
            vocab_size=128,
            block_size=grid * grid,
            dim=32,
            n_layer=layers,
            n_head=2,
            multiple_of=16,
            caption_dim=32,
            cls_token_num=16,
            rotary_prefix="identity",
            mask_token_id=128 if masked else None,
        )
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
        # laws that lean on place and caption more than on the last token: drafts have a chance
        tokens = model.tok_embeddings.weight.data
        tokens.copy_(tokens[:1] + 0.1 * tokens)
        return model.eval()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        size = {**TEXT_ENCODER, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1}
        target, drafter = network(4), network(4, layers=1)
        shared = drafter.state_dict().keys()  # the target without its last layer
        drafter.load_state_dict({name: target.state_dict()[name] for name in shared})
        pipe = ImagePipeline(
            target,
            VQModel(
                codebook_size=128,
                codebook_show_usage=False,
                ch=32,
                ch_mult=(1, 1),
                num_res_blocks=1,
                z_channels=32,
                patch_size=4,
            ).eval(),
            T5EncoderModel(T5Config(vocab_size=len(words), **size)).eval(),
            words,
            drafter=drafter,
            sibling=network(2),
            upsampler=LatentUpsampler(codebook_size=128, width=32, depth=1).eval(),
            eagle=EagleHead(dim=32, n_head=2, hidden_dim=32).eval(),
            spatial=SpatialHeads(dim=32, cell_dim=16, hidden_dim=16, reach=1, left=1).eval(),
            row_drafter=network(4, layers=1, masked=True),
            judge=JudgeHead(32).eval(),
            dflash=DFlashHead(32, 2, None, 32, 1, 5, (1, 2)).eval(),
        )
        folder = tmp_path_factory.mktemp("tiny") / "image"
        pipe.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def crops():
    """64 crops of 64×64 px, none of one colour, from eight photographs that scikit-image ships."""
    from PIL import Image
    from skimage import data

    names = ["astronaut", "chelsea", "coffee", "rocket", "hubble_deep_field", "retina"]
    names += ["immunohistochemistry", "colorwheel"]
    photos = [Image.fromarray(getattr(data, name)()).convert("RGB") for name in names]
    corners = [
        (photo, int(x * photo.width), int(y * photo.height))
        for photo in photos
        for y in (0.25, 0.55)
        for x in (0.2, 0.35, 0.5, 0.65)
    ]
    return [photo.crop((x, y, x + 64, y + 64)) for photo, x, y in corners]


@pytest.fixture
def full_disk():
    """`with full_disk(size):` no file grows beyond `size` bytes, as if the disk were full."""

    @contextmanager
    def limited(size: int):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited
