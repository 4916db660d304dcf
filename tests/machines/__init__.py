"""Machines to probe and to plan for, without owning them.

    <name>.json        what `probe` says of the machine; feed it to `plough plan --machine`
    <name>.tree.json   a really captured tree (scripts/capture_machine.py): path -> content
    build.py           makes such a tree from a short specification, file by file as Linux writes it
    specs.py           the specifications: one per machine that was not captured
    trees.py           NAMES, and `unpack(name, directory)` for tests

After a change to the probe or a specification, `python -m tests.machines` writes every <name>.json anew;
look at the difference before you commit it. tests/topology/test_machines.py compares.
"""
