"""Quality metrics, one a file: pure functions of a model's outputs and the references."""
