"""torch's own tests of a distributed backend, which ship in its wheel, run against `ccl`."""
