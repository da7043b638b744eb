"""The recipe of draft heads over language models."""
