"""Talking to models: requests, replies, faults, and a scripted model that needs no network."""
