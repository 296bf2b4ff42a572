"""The write side: what may happen, and the log that says what did."""
