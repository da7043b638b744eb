"""Vision-language models: rows, peers, entropy and experts of their suites."""
