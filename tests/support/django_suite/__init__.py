"""Tests that run inside the example project: `manage.py test django_suite` (tests/tree/test_django_project.py)."""
