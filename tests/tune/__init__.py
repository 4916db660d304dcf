"""Tests of plough.tune."""
