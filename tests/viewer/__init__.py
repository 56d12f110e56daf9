"""The viewer in a real Chromium, against real servers."""
