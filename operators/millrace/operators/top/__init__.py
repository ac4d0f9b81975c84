"""Top n per partition: ROW_NUMBER() over an order."""
