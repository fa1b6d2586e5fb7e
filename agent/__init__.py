"""The mind of an agent: what it knows, what it decides, the loop. No Ray and no DuckDB here."""
