"""Block-causal Wan: video, block by block."""
