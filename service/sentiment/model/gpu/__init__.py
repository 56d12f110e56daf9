"""Models on a GPU: devices, their memory, the graphs made for them."""
