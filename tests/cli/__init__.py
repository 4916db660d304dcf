"""Tests of plough.cli."""
