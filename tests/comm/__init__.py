"""Tests of plough.comm."""
