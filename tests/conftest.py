"""What holds for every test."""

import os

from hypothesis import settings

# The same cases in each run: a change is judged by what it changes. HYPOTHESIS_PROFILE=random looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
