"""Modalities: how each is measured; the rest of `eval` asks only `modality.Modality`."""
