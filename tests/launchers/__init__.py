"""Tests of plough.launchers."""
