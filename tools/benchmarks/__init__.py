"""Measurements, each a ratio against a baseline of the same run; none is a test."""
