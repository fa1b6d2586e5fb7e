"""Git for agents: hardened calls, snapshots, a pool of worktrees, merges into the user's checkout."""
