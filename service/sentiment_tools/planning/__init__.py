"""Capacity planning: simulates the server's own scheduler in virtual time. No network, no clock; only ``measuring`` runs a model."""
