"""Several processes behind one port: front ends speak gRPC and read texts, one executor has the model, one queue and HTTP.

For a device that one Python process cannot feed. ``supervisor`` starts the others and replaces one that dies; ``front_end`` and
``executor`` are what they run; ``link`` and ``desk`` are the two ends of the Unix socket between those, ``wire`` is what goes over it.
"""
