"""The README's picture: the same prompts and seeds by three methods, with the calls of each."""

from textwrap import fill

import torch
from PIL import Image, ImageDraw, ImageFont

from mmspec import ImagePipeline, SpecConfig

PROMPTS = (
    "a photo of a red circle and a blue square",
    "a photo of two green stars",
    "a photo of a purple heart",
    "a photo of a yellow triangle above a red square",
)
METHODS = {
    "plain": ("plain decoding", SpecConfig("plain")),
    "scd": ("scd: the same law", SpecConfig("scd", window=32)),
    "mulo-sd": ("mulo-sd: lossy,\nsmall picture first", SpecConfig("mulo-sd")),
}
SIDE, GAP, LEFT, TOP = 160, 10, 190, 46
pipe = ImagePipeline.from_pretrained()
width, height = LEFT + len(PROMPTS) * (SIDE + GAP), TOP + len(METHODS) * (SIDE + GAP)
sheet = Image.new("RGB", (width, height), "white")  # a page may be dark
write = ImageDraw.Draw(sheet).text
for row, (name, (title, config)) in enumerate(METHODS.items()):
    pipe.enable_speculation(config)
    seeds = [torch.Generator().manual_seed(seed) for seed in range(len(PROMPTS))]
    out = pipe(list(PROMPTS), generator=seeds)
    calls = f"{sum(out.stats.calls) / len(PROMPTS):.0f} calls of the model"
    if small := out.stats.sibling_calls:  # of as large a model, which draws small pictures
        calls += f"\nand {sum(small) / len(PROMPTS):.0f} of its sibling"
    y = TOP + row * (SIDE + GAP)
    write((GAP, y + 40), f"{title}\n{calls}", "black", ImageFont.load_default(16))
    for column, (image, prompt) in enumerate(zip(out.images, PROMPTS, strict=True)):
        x = LEFT + column * (SIDE + GAP)
        sheet.paste(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS), (x, y))
        write((x, 6), fill(prompt[len("a photo of ") :], 22), "black", ImageFont.load_default(14))
    print(f"{name}: {' '.join(calls.split())}")
sheet.save("compare.png")
