"""What the streams of a live job are read from: files, archives, servers, Kafka, and made-up rows."""
