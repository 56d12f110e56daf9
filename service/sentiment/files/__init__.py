"""Texts from files, answers to files, and reports with plots."""
