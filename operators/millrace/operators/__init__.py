"""What is computed: the frame that every operator runs in, and a folder per operator."""
