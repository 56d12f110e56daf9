"""The bundle that is served by default: the highest version in the checkout."""

from sentiment.model.bundle import CHECKOUT_BUNDLES, find_bundle

ENGLISH = find_bundle("english", [CHECKOUT_BUNDLES])
# As metrics, logs and calls name it.
NAME = f"english/{ENGLISH.name}"
