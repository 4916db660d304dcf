"""Inside a rank: the group, the checks, and transformers' Trainer made to mean what it says on CPUs."""
