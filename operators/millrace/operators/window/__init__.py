"""Window: rows once per window that they fall into, without aggregates."""
