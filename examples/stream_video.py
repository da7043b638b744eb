"""A clip as it is made: who made each block, and caches that do not grow with it."""

import torch
from PIL import Image

from mmspec import SpecConfig, VideoPipeline
from mmspec.models.wan.window import ContextWindow

pipe = VideoPipeline.from_pretrained()  # the embedded model; or a folder of yours
pipe.enable_speculation(SpecConfig("sdvg"))
frames = []


def show(pipe, block):
    held = pipe.nbytes / 2**20
    print(f"block {block.number}: by the {block.made_by}, {held:.1f} MiB of caches")
    frames.extend(Image.fromarray(f) for f in block.pictures.permute(0, 2, 3, 1).numpy())


out = pipe(
    "a red circle moves down",
    num_frames=285,  # 24 blocks, twice as many as the model was trained for
    window=ContextWindow(4, sink=1),  # earlier blocks that are read, and the first that stay
    generator=torch.Generator().manual_seed(0),
    output_type="none",  # its pictures go to the callback alone
    callback_on_block=show,
)
frames[0].save("clip.gif", save_all=True, append_images=frames[1:], duration=62, loop=0)
print(f"drafted: {out.made_by[0].count('drafter') / len(out.made_by[0]):.0%}")
