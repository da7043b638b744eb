"""Speculation where users are already: in transformers' own calls, on canvases."""
