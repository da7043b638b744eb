"""Questions about pictures: answered, timed beside transformers' own generation, and graded."""
