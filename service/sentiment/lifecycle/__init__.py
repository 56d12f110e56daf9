"""The lifecycle of models: loading, warm-up, changes while others serve, and unloading."""
