"""The tour: a sample conversation becomes memory, step by step."""
