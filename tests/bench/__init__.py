"""Tests of plough.bench."""
