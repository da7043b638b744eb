"""Evaluation: result schema, runner, reports and metrics, imported as `mmspec.eval`."""
