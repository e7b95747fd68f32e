"""What listens: facts become log lines (`log.py`) and metrics (`metrics.py`).

Nothing here decides anything, and nothing here may delay a job: lines go through a bounded buffer to a writer thread,
metrics are counters in memory. Only the master has an observer; workers and supervisors tell their facts to it.
"""
