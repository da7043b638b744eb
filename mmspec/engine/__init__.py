"""The speculate–verify engine. It knows no modality and imports no model."""
