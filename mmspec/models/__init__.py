"""Networks that transformers and diffusers lack, and what makes a model a `Target`."""
