"""LlamaGen: transformer, VQ tokenizer, and the small networks that draft for it."""
