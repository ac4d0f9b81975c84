"""What is computed: batches, buffers with registers, expressions, and one operator per file."""
