"""Clips of moving shapes, captioned in plain words, and their judge.

The shapes, colours, the tones behind them and the detector are the shapes world's. Its textures are
not: they would take more of a small autoencoder than all that moves.
"""
