from database.conftest import emptied, host, other, session, shared

__all__ = ["emptied", "host", "other", "session", "shared"]
