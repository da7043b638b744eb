"""The parts that come with the library, by kind."""
