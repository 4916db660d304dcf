"""Threads, communication threads and bucket size, found by measuring. Only `ranks.py` imports torch."""
