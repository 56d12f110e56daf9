"""The process that serves: its parts put together, its event loop, its signals and its end."""
