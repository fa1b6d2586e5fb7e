"""Typed settings with their defaults, and the only reader of the environment."""
