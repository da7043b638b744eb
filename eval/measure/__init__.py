"""What is measured: speed, quality, intervals, differences."""
