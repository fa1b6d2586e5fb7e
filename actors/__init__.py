"""Ray skins around plain classes. Nothing here yet: a session runs in one process."""
