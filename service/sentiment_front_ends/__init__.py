"""Several processes behind one port: front ends serve gRPC and tokenize; one executor has the model, its queue and HTTP.

For a device that one Python process cannot keep busy. ``supervisor`` starts the other processes and replaces those that die.
``front_end`` and ``executor`` are what they run. ``executor_client`` and ``executor_endpoint`` are the two ends of the Unix socket between
them; ``frames`` is its protocol.
"""
