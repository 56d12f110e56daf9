"""How the model of the Triton peer is called. Without imports: its server has other packages than its callers."""

MODEL, INPUT = "bert", "text"
