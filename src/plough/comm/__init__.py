"""Plough's own collectives for CPU ranks: the C++ that moves and reduces, and what builds and loads it."""
