"""Tests of Django projects: capture jobs in `TestCase`, `TransactionTestCase` and whole runs of `manage.py test`.

`CaptureJobs` is a mixin that opens a box for each test. `CapturingRunner` is a test runner that opens one for the whole run,
so that no test without the mixin reaches a database with a job. The mixin works with every class of `unittest`.
"""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, Any, ClassVar

from django.conf import settings
from django.test.runner import DiscoverRunner

from pgworkers.errors import UsageError

if TYPE_CHECKING:
    from pgworkers.app import App
    from pgworkers.testing.box import Box

#: The name in Django's settings of the app: "shop.jobs:app".
APP_SETTING = "PGWORKERS_APP"


def configured_app() -> App:
    """The app that PGWORKERS_APP in Django's settings names."""
    config = getattr(settings, APP_SETTING, None)
    if not config:
        raise UsageError(
            f'{APP_SETTING} is not set; write {APP_SETTING} = "shop.jobs:app" in the settings of Django'
        )
    from pgworkers.app_import import import_app

    return import_app(str(config))


class CaptureJobs(unittest.TestCase):
    """A mixin for test classes: `class OrderTests(CaptureJobs, TestCase)`. Each test has its own `self.jobs`, a box."""

    #: The app whose jobs are captured. None: that of the setting PGWORKERS_APP.
    pgworkers_app: ClassVar[App | None] = None
    #: Options of `app.testing()`.
    pgworkers_options: ClassVar[dict[str, Any]] = {}
    jobs: Box

    def setUp(self) -> None:
        super().setUp()
        app = self.pgworkers_app or configured_app()
        self.jobs = app.testing(**self.pgworkers_options)
        self.jobs.__enter__()
        self.addCleanup(self.jobs.__exit__, None, None, None)


class CapturingRunner(DiscoverRunner):
    """A runner that captures the jobs of all tests: `TEST_RUNNER = "pgworkers.testing.django.CapturingRunner"`."""

    def run_suite(self, suite: Any, **options: Any) -> Any:
        with configured_app().testing():
            return super().run_suite(suite, **options)
