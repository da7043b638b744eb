"""The files that evaluation reads and writes: pictures, prompts, captions, questions, videos."""
