"""The vocabulary of a session and the append-only log that holds it."""
