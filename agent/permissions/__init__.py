"""Permissions: pure verdicts from facts and rules, and the thin edge that gathers the facts."""
