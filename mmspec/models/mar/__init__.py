"""MAR: continuous tokens, drawn by a diffusion head."""
