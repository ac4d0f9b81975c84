"""Settings that every test shares."""

from hypothesis import settings

# Durations belong to bench/: a slow machine must not fail a test.
settings.register_profile("millrace", deadline=None)
settings.load_profile("millrace")
