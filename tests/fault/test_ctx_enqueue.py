"""What a handler enqueues with its own end exists if and only if that end is written."""

from __future__ import annotations

import textwrap

from support.cluster import Cluster, wait_for
from support.proxy import Proxy, mark

MORE = textwrap.dedent(
    """
    @app.task(retries=1, backoff=0)
    def parent(ctx: Ctx, how: str, times: int = 1) -> None:
        note(ctx, "START")
        ctx.enqueue(*(work.using(meta={"parent": ctx.job}).prepare(value=how) for _ in range(3)))
        if ctx.attempt <= times:
            match how:
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "fail":
                    raise ValueError("on purpose")
                case "discard":
                    raise Discard("useless")
        note(ctx, "END")
    """
)


#: A rule that a user added to the table: it refuses some children.
RULE = """
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.args ->> 'value' = 'refused' THEN RAISE EXCEPTION 'no' USING ERRCODE = 'check_violation'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON pgworkers.job FOR EACH ROW EXECUTE FUNCTION public.refuse();
"""


def test_children_exist_once_for_each_end_and_never_without_one(proxy: Proxy, cluster: Cluster) -> None:
    cluster.declare(MORE)
    cluster.db.execute(RULE)
    cluster.start(queues="default:2", dsn=proxy.dsn)
    lost = proxy.lose_reply(mark("job/finish"), times=2)
    well = cluster.enqueue("parent", 4, args={"how": "well"})
    wait_for(lambda: lost.hits == 2, what="two ends were committed and nobody heard of it")
    twice = [cluster.enqueue("parent", args={"how": how})[0] for how in ("die", "fail")]
    [refused] = cluster.enqueue("parent", args={"how": "refused"})
    never = [refused, *cluster.enqueue("parent", args={"how": "discard"})]
    never += cluster.enqueue("parent", args={"how": "fail", "times": 9})
    cluster.until_all_ended()
    born = dict(
        cluster.db.execute(
            "SELECT (meta -> 'parent')::bigint, count(*) FROM pgworkers.jobs WHERE task = 'work' GROUP BY 1"
        ).fetchall()
    )
    assert born == dict.fromkeys([*well, *twice], 3), "of the attempt that succeeded, and of no other"
    assert {cluster.row(job)["attempt"] for job in twice} == {2}
    assert {cluster.state(job) for job in never} == {"dead"}
    assert "the database refused what the handler left" in cluster.row(refused)["error"]
