"""Tests of plough.doctor."""
