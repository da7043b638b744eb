"""The reports that people read, drawn from a finished run's `report.json` and samples."""
