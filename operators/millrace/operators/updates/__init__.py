"""Update streams: the newest row of each key, and joins with it."""
