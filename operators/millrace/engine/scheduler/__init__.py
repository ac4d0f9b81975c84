"""The scheduler: state table, rules, components, and the strategy `chain`."""
