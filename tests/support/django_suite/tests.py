"""Connections, transactions, the backend of django.tasks and the admin, with a real Django on a real Postgres."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

from django.contrib.auth.models import Permission, User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone
from django_tasks import TaskResultStatus, task, task_backends
from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist, TaskResultMismatch
from django_tasks.signals import task_enqueued
from orders.models import Order
from orders.tasks import thank, write_receipt

from pgworkers import App, DuplicateJob, UsageError
from pgworkers.context import Ctx
from pgworkers.django import app
from pgworkers.django.backend import PgworkersBackend
from pgworkers.django.django_task import exception_class_path, run_django_task
from pgworkers.django.models import Failure, JobRecord, Queue

JOBS = 'SELECT count(*) FROM "pgworkers"."job"'


@task(takes_context=True)
def with_context(context: Any, n: int) -> int:
    return n + context.attempt


@task()
async def coroutine(n: int) -> int:
    await asyncio.sleep(0)
    return n * 2


@task()
def fails() -> None:
    raise LookupError("not there")


def run(result: Any) -> Any:
    """Run the stored job of a task in this process, as a worker would."""
    job = JobRecord.objects.get(pk=result.id)
    return run_django_task(Ctx(job=job.pk, task=job.task, queue=job.queue), **job.args)


def execute(sql: str, params: Any = None) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall() if cursor.description else None


class ConnectionTest(TransactionTestCase):
    def setUp(self) -> None:
        execute('TRUNCATE "pgworkers"."job"')

    def tearDown(self) -> None:
        app.close()

    def count(self) -> int:
        return int(execute(JOBS)[0][0])

    def test_alias_wrapper_and_proxy_are_the_same_transaction(self) -> None:
        for conn in ("default", connection, connections["default"], connection.connection):
            with self.subTest(conn=type(conn)):
                with self.assertRaises(ZeroDivisionError), transaction.atomic():
                    write_receipt.using(conn=conn if conn is not None else "default").enqueue(1)
                    self.assertEqual(self.count(), 1)
                    raise ZeroDivisionError
                self.assertEqual(self.count(), 0)
        with transaction.atomic():
            write_receipt.using(conn="default").enqueue(1)
        self.assertEqual(self.count(), 1)

    def test_inside_atomic_the_connection_is_used_by_itself(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            write_receipt.enqueue(1)
            app.enqueue_many([write_receipt.prepare(2)])
            app.batch([write_receipt.prepare(3)])
            self.assertEqual(self.count(), 3)
            raise ZeroDivisionError
        self.assertEqual(self.count(), 0)
        with transaction.atomic():
            write_receipt.enqueue(1)
            app.enqueue_many([write_receipt.prepare(2)])
            app.batch([write_receipt.prepare(3)])
        self.assertEqual(self.count(), 3)

    def test_a_rolled_back_savepoint_takes_its_jobs_along(self) -> None:
        with transaction.atomic():
            write_receipt.enqueue(1)
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                write_receipt.enqueue(2)
                raise ZeroDivisionError
        self.assertEqual([job.args for job in JobRecord.objects.all()], [{"order_id": 1}])

    def test_outside_atomic_the_job_is_there_at_once(self) -> None:
        write_receipt.enqueue(1)
        self.assertEqual(self.count(), 1)

    def test_another_database_is_not_joined(self) -> None:
        elsewhere = App(dsn="postgresql://127.0.0.1:1/elsewhere", django=True, connect_timeout="2s")
        elsewhere.queue("default")
        job = elsewhere.task(name="job")(lambda: None)
        with transaction.atomic():
            with self.assertRaisesRegex(Exception, "nothing was|not reached|refused|cannot"):
                job.enqueue()
            self.assertEqual(self.count(), 0)

    def test_a_refused_key_leaves_atomic_usable(self) -> None:
        write_receipt.using(unique="k").enqueue(1)
        with transaction.atomic():
            with self.assertRaises(DuplicateJob):
                write_receipt.using(unique="k", on_conflict="raise").enqueue(2)
            Order.objects.create(item="lamp")
        self.assertEqual(Order.objects.count(), 1)

    def test_a_broken_transaction_is_not_committed_in_silence(self) -> None:
        execute(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '22000'; END $$"
        )
        execute(
            'CREATE TRIGGER refuse BEFORE INSERT ON "pgworkers"."job" FOR EACH ROW EXECUTE FUNCTION public.refuse()'
        )
        try:
            with self.assertRaises(transaction.TransactionManagementError), transaction.atomic():
                try:
                    write_receipt.enqueue(1)
                except Exception:
                    pass  # a program that goes on must learn that nothing can be committed
                Order.objects.create(item="lamp")
        finally:
            execute("DROP FUNCTION public.refuse() CASCADE")
        self.assertEqual(Order.objects.count(), 0)

    def test_an_unknown_alias_is_named(self) -> None:
        with self.assertRaisesRegex(UsageError, "no such database .*default.*nothing was enqueued"):
            write_receipt.using(conn="nowhere").enqueue(1)

    def test_a_closed_connection_is_opened(self) -> None:
        connection.close()
        write_receipt.using(conn=connection).enqueue(1)
        self.assertEqual(self.count(), 1)


class HandlerTest(TransactionTestCase):
    def test_connections_are_checked_around_a_handler(self) -> None:
        """A connection that broke while the worker was idle is replaced, as before a request."""
        order = Order.objects.create(item="lamp")
        pid = connection.connection.info.backend_pid
        connection.close_at = 0  # it is too old
        text = write_receipt.run_handler(None, b'{"order_id": %d}' % order.pk)
        self.assertEqual(text, "Receipt for lamp")
        self.assertEqual(Order.objects.get().receipt, text)
        self.assertNotEqual(connection.connection.info.backend_pid, pid)

    def test_also_around_a_coroutine(self) -> None:
        shop = App(django=True)
        shop.queue("default")

        async def handler() -> int:
            return await Order.objects.acount()

        result = shop.task(handler).run_handler(None, b"{}")
        self.assertEqual(asyncio.run(result), 0)


class BackendTest(TestCase):
    def test_what_it_claims(self) -> None:
        backend = task_backends["default"]
        self.assertIsInstance(backend, PgworkersBackend)
        self.assertTrue(backend.supports_defer and backend.supports_async_task)
        self.assertTrue(backend.supports_get_result and backend.supports_priority)

    def test_enqueue_and_get_result(self) -> None:
        seen = []
        task_enqueued.connect(lambda task_result, **_: seen.append(task_result.id), weak=False)
        result = thank.enqueue(7)
        self.assertEqual(result.status, TaskResultStatus.READY)
        self.assertEqual(seen, [result.id])
        found = thank.get_result(result.id)
        self.assertEqual((found.args, found.kwargs, found.attempts), ([7], {}, 0))
        self.assertEqual((found.task.priority, found.task.queue_name), (10, "mail"))
        self.assertEqual(JobRecord.objects.get(pk=result.id).priority, 10)
        with self.assertRaises(ValueError):
            _ = found.return_value

    def test_arguments_that_are_not_json_are_refused(self) -> None:
        with self.assertRaises(TypeError):
            thank.enqueue(object())
        self.assertEqual(JobRecord.objects.count(), 0)

    def test_defer(self) -> None:
        when = timezone.now() + datetime.timedelta(hours=1)
        result = thank.using(run_after=when).enqueue(7)
        job = JobRecord.objects.get(pk=result.id)
        self.assertEqual((job.state, job.run_at), ("scheduled", when))
        self.assertEqual(thank.get_result(result.id).task.run_after, when)

    @override_settings(USE_TZ=False)
    def test_defer_without_time_zones(self) -> None:
        when = datetime.datetime.now() + datetime.timedelta(hours=1)
        result = thank.using(run_after=when).enqueue(7)
        self.assertEqual(thank.get_result(result.id).task.run_after, when)
        self.assertEqual(JobRecord.objects.get(pk=result.id).state, "scheduled")

    def test_jobs_of_sql_do_not_count_as_results(self) -> None:
        for args in ("{}", '{"task": 1, "args": [], "kwargs": {}, "backend": "default"}'):
            ((number,),) = execute("SELECT id FROM pgworkers.enqueue('django_task', %s, 'default')", [args])
            with self.subTest(args=args), self.assertRaises(TaskResultDoesNotExist):
                thank.get_result(str(number))

    def test_other_results(self) -> None:
        mine = write_receipt.enqueue(1)
        for result_id in ("x", "", "-1", "0", "9" * 40, "٣", str(mine.id), "9223372036854775807"):
            with self.subTest(result_id=result_id), self.assertRaises(TaskResultDoesNotExist):
                thank.get_result(result_id)
        with self.assertRaises(TaskResultMismatch):
            fails.get_result(thank.enqueue(1).id)

    def test_running(self) -> None:
        self.assertEqual(run(with_context.enqueue(5)), 6)
        self.assertEqual(run(coroutine.enqueue(4)), 8)
        order = Order.objects.create(item="lamp")
        run(thank.enqueue(order.pk))
        order.refresh_from_db()
        self.assertTrue(order.is_thanked)
        with self.assertRaises(LookupError):
            run(fails.enqueue())

    def test_hostile_paths_run_nothing(self) -> None:
        for path in ("os.system", "orders.models.Order", "no.such.module"):
            with self.subTest(path=path), self.assertRaises((TypeError, ImportError)):
                run_django_task(
                    Ctx(job=1, task="django_task", queue="default"), path, ["true"], {}, "default"
                )

    def test_wrong_queue_and_options(self) -> None:
        with self.assertRaises(InvalidTaskError):
            thank.using(queue_name="nowhere")
        with self.assertRaises(ImproperlyConfigured):
            PgworkersBackend("x", {"OPTIONS": {"retires": 1}})
        self.assertEqual(
            [one.id for one in PgworkersBackend("x", {"QUEUES": ["nowhere"]}).check()], ["pgworkers.E001"]
        )

    def test_class_of_an_error(self) -> None:
        trace = "Traceback:\n  File x\nshop.errors.Sold: out\nkey: value"
        self.assertEqual(exception_class_path("Sold: out key: value", trace), "shop.errors.Sold")
        self.assertEqual(exception_class_path("ValueError", "Traceback:\nValueError"), "builtins.ValueError")
        self.assertEqual(exception_class_path("killed after 5s", ""), "pgworkers.errors.JobFailed")


class AsyncBackendTest(TransactionTestCase):
    def tearDown(self) -> None:
        app.close()

    async def test_aenqueue_and_aget_result(self) -> None:
        result = await coroutine.aenqueue(4)
        found = await coroutine.aget_result(result.id)
        self.assertEqual(found.status, TaskResultStatus.READY)
        await result.arefresh()


class AdminTest(TransactionTestCase):
    def setUp(self) -> None:
        execute(
            'TRUNCATE "pgworkers"."job", "pgworkers"."history", "pgworkers"."queue", "pgworkers"."operation"'
        )
        self.root = User.objects.create_superuser("root", password="x")
        self.client.force_login(self.root)

    def tearDown(self) -> None:
        app.close()

    def act(self, model: str, action: str, *keys: Any) -> str:
        answer = self.client.post(
            f"/admin/pgworkers/{model}/", {"action": action, "_selected_action": keys}, follow=True
        )
        self.assertEqual(answer.status_code, 200)
        return " ".join(str(message) for message in answer.context["messages"])

    def test_pages(self) -> None:
        job = write_receipt.enqueue(1)
        for model in ("jobrecord", "failure", "queue", "schedule"):
            self.assertEqual(self.client.get(f"/admin/pgworkers/{model}/").status_code, 200)
        page = self.client.get(f"/admin/pgworkers/jobrecord/{job.id}/change/")
        self.assertContains(page, "write_receipt")
        self.assertNotContains(page, 'name="_save"')
        self.assertEqual(self.client.get("/admin/pgworkers/jobrecord/?q=write_receipt").status_code, 200)
        self.assertEqual(self.client.get("/admin/pgworkers/jobrecord/add/").status_code, 403)
        self.assertEqual(
            self.client.post(f"/admin/pgworkers/jobrecord/{job.id}/delete/", {"post": "yes"}).status_code, 403
        )
        self.assertEqual(
            self.client.post(f"/admin/pgworkers/jobrecord/{job.id}/change/", {"state": "dead"}).status_code,
            403,
        )

    def test_cancel_retry_and_discard(self) -> None:
        job = write_receipt.enqueue(1)
        self.assertIn("cancelled 1 jobs", self.act("jobrecord", "cancel_jobs", job.id))
        self.assertEqual(job.refresh().state, "cancelled")
        self.assertIn("retried 1 jobs", self.act("jobrecord", "retry_jobs", job.id))
        self.assertIn("discarded 1 jobs", self.act("jobrecord", "discard_jobs", job.id))
        self.assertEqual(Failure.objects.get().pk, job.id)
        self.assertContains(self.client.get(f"/admin/pgworkers/failure/{job.id}/change/"), "discarded")
        self.assertIn("retried 1 jobs", self.act("failure", "retry_jobs", job.id))
        self.assertEqual(app.job(job.id).state, "ready")
        reasons = execute('SELECT DISTINCT reason FROM "pgworkers"."operation"')
        self.assertEqual(reasons, [("in Django's admin, by root",)])

    def test_pause_and_resume_a_queue(self) -> None:
        execute('INSERT INTO "pgworkers"."queue" (name) VALUES (\'default\')')
        self.act("queue", "pause_queues", "default")
        self.assertTrue(Queue.objects.get().paused)
        self.act("queue", "resume_queues", "default")
        self.assertFalse(Queue.objects.get().paused)

    def test_a_user_who_may_only_look_has_no_actions(self) -> None:
        job = write_receipt.enqueue(1)
        user = User.objects.create_user("viewer", password="x", is_staff=True)
        user.user_permissions.add(Permission.objects.get(codename="view_jobrecord"))
        self.client.force_login(user)
        self.assertEqual(self.client.get("/admin/pgworkers/jobrecord/").status_code, 200)
        self.act("jobrecord", "cancel_jobs", job.id)
        self.assertEqual(job.refresh().state, "ready")
        self.assertEqual(self.client.get("/admin/pgworkers/queue/").status_code, 403)


class MigrateTest(TransactionTestCase):
    def test_migrating_again_changes_nothing_and_makes_no_files(self) -> None:
        call_command("migrate", verbosity=0)
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)
