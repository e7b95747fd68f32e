from database.conftest import desk, emptied, other, session, shared

__all__ = ["desk", "emptied", "other", "session", "shared"]
