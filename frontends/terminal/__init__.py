"""Plain text in a terminal or a pipe."""
