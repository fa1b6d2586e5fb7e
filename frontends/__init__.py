"""Faces for people and programs: they read events and send commands. No Ray and no database here."""
