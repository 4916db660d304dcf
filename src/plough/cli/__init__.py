"""The command line: one module per verb, and the only part of Plough that prints."""
