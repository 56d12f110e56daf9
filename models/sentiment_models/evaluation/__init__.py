"""Measurements of a bundle: accuracy, calibration, behavioural tests, long texts, references, comparisons."""
