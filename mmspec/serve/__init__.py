"""The server: OpenAI's routes over the pipelines, requests that wait in batches."""
