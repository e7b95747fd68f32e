"""Broken twins of the product: each breaks one rule and must turn its named check red. Run by scripts/mutants.

A mutant is a replacement in one or more files, found by a pattern, so that it survives code that moves; tests/law looks
that every one still applies. Where a mutant of FAULTS.md means nothing in our design, `note` says why and
what stands for it.

`catalogue` has all of them. Those in `deaths`, `boundary` and `daily_use` are named after a row of issue 18 and take its
mend back.
"""
