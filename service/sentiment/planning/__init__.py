"""How much hardware a load needs: the server's own scheduler on virtual time. No network, no clock; only ``measuring`` runs a model."""
