"""Data that ships with the package: embedded models in `models/`, prompt sets in `prompts/`."""
