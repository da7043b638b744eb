"""Speculation for a model of transformers in one line; `generate` is called as ever."""

import numpy as np
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

import mmspec
from mmspec.worlds.shapes import render, sample

folder = mmspec.embedded_folder("vlm")  # stands for any checkpoint of LLaVA's or Qwen-VL's classes
model = AutoModelForImageTextToText.from_pretrained(folder)
processor = AutoProcessor.from_pretrained(folder)
_, scene = sample(np.random.default_rng(0), "counting", "held_out")
question = "<|user|><image>Describe the picture in detail.<|assistant|>"
inputs = processor(
    images=[Image.fromarray(render(scene, 96))], text=[question], return_tensors="pt"
)
plain = model.generate(**inputs, max_new_tokens=60, do_sample=False)

head = mmspec.load_head(folder / "heads" / "eagle")
mmspec.enable_speculation(model, head=head)  # the one line
fast = model.generate(**inputs, max_new_tokens=60, do_sample=False)

print(processor.batch_decode(fast, skip_special_tokens=True)[0])
print("the same tokens:", plain.tolist() == fast.tolist())
