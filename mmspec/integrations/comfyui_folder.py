"""A folder for ComfyUI's `custom_nodes`: the nodes of `comfyui.py`, and workflows to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files import to_json
from .exported import REQUIRED, write_folder

# workflows in ComfyUI's API form, which its canvas loads, too
DRAW: dict[str, Any] = {
    "1": {
        "class_type": "MmspecLoadModel",
        "inputs": {"kind": "image", "model": "", "device": "cpu"},
    },
    "2": {
        "class_type": "MmspecSpeculate",
        "inputs": {"model": ["1", 0], "method": "scd", "settings": ""},
    },
    "3": {
        "class_type": "MmspecDrawPicture",
        "inputs": {
            "model": ["2", 0],
            "prompt": "a photo of a red circle left of a blue square",
            "number": 2,
            "seed": 0,
        },
    },
    "4": {
        "class_type": "MmspecLoadModel",
        "inputs": {"kind": "vlm", "model": "", "device": "cpu"},
    },
    "5": {
        "class_type": "MmspecAskAboutPicture",
        "inputs": {
            "model": ["4", 0],
            "image": ["3", 0],
            "question": "Describe the picture in detail.",
            "max_tokens": 60,
        },
    },
    "6": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "drawn"}},
}
CLIP: dict[str, Any] = {
    "1": {
        "class_type": "MmspecLoadModel",
        "inputs": {"kind": "video", "model": "", "device": "cpu"},
    },
    "2": {
        "class_type": "MmspecMakeClip",
        "inputs": {"model": ["1", 0], "prompt": "a red circle moves down", "seed": 0},
    },
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "clip"}},
}


CODE = '''"""Nodes of mmspec, which this only names."""

from mmspec.integrations.comfyui import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
'''


def write_comfyui(folder: Path) -> None:
    """Write a folder for ComfyUI's `custom_nodes`: the nodes, and workflows to begin with.

    Raises:
        InputError: the folder holds something.
    """
    flows = {"draw_and_ask": DRAW, "clip": CLIP}
    texts = {
        f"workflows/{name}.json": to_json(flow, indent=2) + "\n" for name, flow in flows.items()
    }
    write_folder(folder, {"__init__.py": CODE, "requirements.txt": REQUIRED, **texts})
