"""A shop: orders whose receipts are written by jobs."""
