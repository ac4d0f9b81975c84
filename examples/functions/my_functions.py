"""Functions and aggregates for SQL: name this module in the configuration, or run

millrace run trips.sql --input trips=trips.jsonl --functions my_functions
"""

import math

import numpy as np

from millrace.functions import aggregate, function

EARTH_KM = 6371.0


@function("double", returns="double")
def celsius(fahrenheit):
    """Per tuple. A null argument returns null without a call."""
    return (fahrenheit - 32) / 1.8


@function("double", "double", "double", "double", returns="double", vectorised=True)
def distance_km(lat1, lon1, lat2, lon2):
    """Over arrays: one call for many rows. The distance along a great circle."""
    lat1, lon1, lat2, lon2 = (np.radians(array) for array in (lat1, lon1, lat2, lon2))
    half = np.sin((lat2 - lat1) / 2) ** 2 + np.cos(lat1) * np.cos(lat2) * np.sin((lon2 - lon1) / 2) ** 2
    return 2 * EARTH_KM * np.arcsin(np.sqrt(half))


@function("text", returns="text", nulls=True)
def plate(text):
    """`nulls=True`: called for null arguments, too."""
    return "unknown" if text is None else text.replace(" ", "").upper()


@aggregate("double", "double", returns="double")
class weighted_mean:  # noqa: N801 - SQL's name
    """With merge, panes of sliding windows and parts of sessions are combined."""

    @staticmethod
    def init():
        return 0.0, 0.0

    @staticmethod
    def iterate(state, value, weight):
        if weight < 0:
            raise ValueError(f"expected a weight of at least 0, got {weight}")
        total, weights = state
        return total + value * weight, weights + weight

    @staticmethod
    def merge(state, other):
        return state[0] + other[0], state[1] + other[1]

    @staticmethod
    def terminate(state):
        total, weights = state
        return total / weights if weights else None


@aggregate("double", returns="double", vectorised=True)
class geometric_mean:  # noqa: N801
    """Over arrays: each call has some of a group's rows."""

    @staticmethod
    def init():
        return 0.0, 0

    @staticmethod
    def iterate(state, values):
        if (values <= 0).any():
            raise ValueError("expected values above 0")
        return state[0] + np.log(values).sum(), state[1] + len(values)

    @staticmethod
    def merge(state, other):
        return state[0] + other[0], state[1] + other[1]

    @staticmethod
    def terminate(state):
        return math.exp(state[0] / state[1]) if state[1] else None


@aggregate("text", returns="text")
class route:  # noqa: N801
    """Without merge, a session keeps its rows and aggregates them in order of time when it ends."""

    @staticmethod
    def init():
        return []

    @staticmethod
    def iterate(state, place):
        if not state or state[-1] != place:
            state.append(place)
        return state

    @staticmethod
    def terminate(state):
        return " > ".join(state)
