"""What comes: when calls arrive, how long their texts are, and the texts. Pure: knows no clock, network, model or server."""
