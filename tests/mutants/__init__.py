"""Broken copies of the package: each removes one rule, and its named checks must fail. Run by scripts/mutants.

A mutant is a replacement in one or more files, found by a pattern, so that it survives code that moves; tests/law checks
that every one still applies. `note` explains a mutant that stands for a rule which this design does not have.

`catalogue` has all of them. Those whose names begin with a row of docs/reliability/checklist.md remove the fix of that row.
"""
