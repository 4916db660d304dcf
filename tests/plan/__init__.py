"""Tests of plough.plan."""
