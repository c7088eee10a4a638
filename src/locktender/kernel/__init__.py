"""The pure core: decides, explains and simulates with one set of rules. No I/O, no clock, no randomness."""
