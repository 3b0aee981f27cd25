"""Speed and memory, measured: each benchmark returns numbers ready for JSON."""
