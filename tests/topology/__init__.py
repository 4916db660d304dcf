"""Tests of plough.topology."""
