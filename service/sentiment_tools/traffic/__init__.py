"""Generated traffic: arrival times, text lengths and texts. Pure: knows no clock, network, model or server."""
