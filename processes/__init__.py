"""Runs commands durably and confined: each in a folder that says not started, running, done or lost."""
