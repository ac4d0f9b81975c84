"""Fork: several operators reading one arc."""
