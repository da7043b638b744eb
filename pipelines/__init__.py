"""Diffusers-style pipelines, one a modality. Imported as `mmspec.pipelines`."""
