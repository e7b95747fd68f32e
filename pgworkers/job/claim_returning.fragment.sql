-- Fragment: what a claim returns of each job: the fields of ClaimedJob (job/model.py), in their order. A test compares the names.
j.id, j.lease, j.queue, j.task, j.args::text AS args, j.attempt, j.crashes, j.max_attempts, j.max_crashes,
date_part('epoch', j.timeout) AS timeout_seconds, j.memory AS memory_bytes,
date_part('epoch', j.deadline_at - now()) AS seconds_to_deadline, j.checkpoint::text AS checkpoint, j.meta::text AS meta, j.errors,
least(greatest(date_part('epoch', now() - j.run_at), 0), 3153600000) AS ready_seconds,
j.cancel_at IS NOT NULL AS is_cancel_requested, j.priority,
j.behind_limit OR j.concurrency_key IS NOT NULL AS is_limited, j.consecutive_losses,
extract(epoch FROM j.deadline_at)::double precision AS deadline_epoch,
(date_part('epoch', j.claimed_at) * 1000000)::bigint AS claimed_at_us
