"""Triton kernel search. Nothing here yet."""
