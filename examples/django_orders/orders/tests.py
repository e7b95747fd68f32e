"""Tests of the shop: jobs of a TestCase are rolled back with it, and never reach another database."""

from django.test import TestCase, TransactionTestCase

from orders.models import Order
from orders.tasks import thank, write_receipt
from pgworkers.django import app
from pgworkers.django.models import JobRecord


class BuyTest(TestCase):
    def test_an_order_and_its_jobs_are_made_together(self) -> None:
        answer = self.client.post("/buy/lamp/").json()
        self.assertEqual(Order.objects.get().pk, answer["order"])
        self.assertEqual(JobRecord.objects.get(pk=answer["job"]).args, {"order_id": answer["order"]})
        self.assertEqual(JobRecord.objects.count(), 2)

    def test_nothing_is_left_of_a_sale_that_failed(self) -> None:
        with self.assertRaises(LookupError):
            self.client.post("/buy/unicorn/")
        self.assertEqual(Order.objects.count(), 0)
        self.assertEqual(JobRecord.objects.count(), 0)

    def test_a_handler_is_a_function(self) -> None:
        order = Order.objects.create(item="lamp")
        self.assertEqual(write_receipt(order.pk), "Receipt for lamp")
        self.assertEqual(thank.call(order.pk), f"thanked for order {order.pk}")


class CommittedTest(TransactionTestCase):
    def tearDown(self) -> None:
        app.close()  # its connection would keep the test database from being dropped

    def test_without_a_transaction_the_job_is_in_the_test_database(self) -> None:
        job = write_receipt.enqueue(1)
        self.assertEqual(JobRecord.objects.get(pk=job.id).state, "ready")
        job.cancel()
