"""The actors and what hosts them: sessions, their doors, the daemon that keeps them alive."""
