"""How to test jobs in a Django project: docs/how-to/test-your-app.md."""

from __future__ import annotations

from django.test import SimpleTestCase, TestCase, TransactionTestCase

from orders import jobs
from orders.models import Order
from pgworkers.testing.django import CaptureJobs


class OrderTests(CaptureJobs, TestCase):
    """`TestCase` never commits, so Django's own helper runs what waits for the commit."""

    def test_the_order_is_confirmed_after_its_commit(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            order = jobs.place_order("ada@example.com")
            self.jobs.assert_nothing_enqueued()
        self.jobs.assert_enqueued(jobs.confirm, order_id=order.id, count=1)
        self.jobs.run()
        order.refresh_from_db()
        self.assertTrue(order.is_confirmed)

    def test_each_test_has_its_own_box(self) -> None:
        self.jobs.assert_nothing_enqueued()

    async def test_async_tests(self) -> None:
        order = await Order.objects.acreate(customer="ada@example.com")
        job = await jobs.confirm.aenqueue(order.pk)
        await self.jobs.arun()
        self.assertEqual(await job.aresult(), "ada@example.com")


class CommittedOrderTests(CaptureJobs, TransactionTestCase):
    """`TransactionTestCase` commits, so the job is enqueued by itself."""

    def test_the_order_is_confirmed(self) -> None:
        order = jobs.place_order("ada@example.com")
        self.jobs.run()
        self.assertTrue(Order.objects.get(id=order.pk).is_confirmed)

    def test_a_rolled_back_order_has_no_job(self) -> None:
        from django.db import transaction

        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            jobs.place_order("ada@example.com")
            raise ZeroDivisionError
        self.jobs.assert_nothing_enqueued()


class TestWithoutTheMixin(SimpleTestCase):
    """The runner captures its jobs too: no test reaches a database with a job."""

    def test_nothing_leaves_the_process(self) -> None:
        job = jobs.confirm.enqueue(1)
        self.assertEqual(job.state, "ready")
