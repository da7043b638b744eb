"""What each modality knows of measuring itself; the rest of `eval` asks only `base.Modality`."""
