"""`mmspec video`: a clip from a prompt, block by block."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import to_json
from ..methods import serving
from ..methods.parts.blocks import JudgedOptions
from ..models.truncation import gathered
from ..progress import no_bars
from . import options


def add_parser(commands: Any) -> None:
    video = options.add_command(commands, "video", _video, "make a video from a prompt")
    video.add_argument("prompt", help="what to show, such as 'a red circle moves down'")
    options.add_model(video)
    video.add_argument(
        "--method",
        default="sdvg",
        help=f"{', '.join(serving('video'))}; with settings: 'sdvg[frame_rule=mean]' "
        "(default: sdvg)",
    )
    video.add_argument("--weights", type=Path, help="file or folder of the reward's checkpoint")
    options.add_runs(video, "make it", "video")
    length = video.add_mutually_exclusive_group()
    length.add_argument("--blocks", type=int, help="length in blocks (default: the model's own)")
    length.add_argument("--num-frames", type=int, help="length in frames, of whole blocks")
    video.add_argument("--height", type=int, help="pixels (default: the model's own)")
    video.add_argument("--width", type=int, help="pixels (default: the model's own)")
    video.add_argument("--steps", type=int, help="from noise to a block (default: the model's own)")
    video.add_argument("--shift", type=float, help="warps the steps (default: the model's own)")
    video.add_argument("--guidance", type=float, help="guidance scale (default: the model's own)")
    video.add_argument("--fps", type=int, default=16, help="frames a second (default: 16)")
    video.add_argument("-o", "--out", type=Path, default=Path("out"), help="folder (default: out)")
    options.add_settings(video, "video")


@gathered()
def _video(args: argparse.Namespace) -> int:
    name, config = options.configured(args)
    resolved = config.resolve("video")
    if not args.prompt.strip():
        raise InputError("the prompt is empty; say what to show")
    options.check_range(args, 1, 1000, "num_videos")
    options.check_range(args, 1, 240, "fps")
    options.check_range(args, 1, None, "blocks")
    out = options.folder(args.out)
    pipe = _open(args, resolved.of(JudgedOptions).reward)

    from ..eval.data.videos import default_encoder
    from ..eval.showcase import Showcase, print_table
    from ..eval.showcase_video import film
    from ..pipelines.video.components import VideoSizes

    sizes, frames = VideoSizes(pipe.transformer, pipe.vae), args.num_frames
    if args.blocks is not None:
        frames = sizes.frames(args.blocks)
    call = {
        "num_frames": sizes.frames(sizes.blocks(frames)),
        "height": args.height,
        "width": args.width,
        "num_inference_steps": args.steps,
        "shift": args.shift,
        "guidance_scale": args.guidance,
    }
    pipe.check_call(config, **call)
    methods = options.methods_of(args, name, config)
    show = Showcase(pipe, methods, args.prompt, args.num_videos, args.seed, call)
    encoder = None
    try:
        encoder = default_encoder()
    except InputError as error:
        print(f"mmspec: {error}; the clips are written as GIF alone", file=sys.stderr)
    record = film(show, out, args.fps, encoder)
    if args.json:
        print(to_json(record, indent=2))
    else:
        print_table(record["methods"])
        for method, row in record["methods"].items():
            parts = ", ".join(f"{part} {spent:.2f} s" for part, spent in row["parts"].items())
            reused = row["reused_share"]
            shares = f"{row['drafted_share']:.0%} of the blocks drafted"
            shares += f", {reused:.0%} of the layers reused" if reused else ""
            print(f"{method}: {shares}; {parts}")
        print(f"clips and stats.json are in {out}/")
    return 0


def _open(args: argparse.Namespace, reward: str) -> Any:
    """The video pipeline, on its device, with the reward that is asked."""
    from ..rewards.registry import REWARDS, load_reward
    from ..rewards.router import RouterReward

    routed = reward == RouterReward.name
    if args.weights is not None and routed:
        raise InputError("--weights are a reward's; say which with --reward, not the router's")
    weights = "" if routed else REWARDS.get(reward).weights
    if args.weights is None and weights:
        raise InputError(
            f"{reward} needs its weights: pass --weights PATH, where PATH is {weights}"
        )
    pipe = options.open_pipeline(args, "video")
    if not routed:
        pipe.reward = load_reward(reward, args.weights, args.device)
    pipe.set_progress_bar_config(disable=no_bars(), leave=False)
    return pipe
