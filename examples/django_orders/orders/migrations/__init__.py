"""Migrations of the orders."""
