-- serves: 0005
-- What operators ask of a host about one of its workers, and the answer. Short-lived rows.
CREATE TABLE pgworkers.request (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host        uuid        NOT NULL,
    kind        text        NOT NULL,
    job_id      bigint,                                  -- of this job, whatever worker has it
    queue       text,                                    -- or of this worker
    slot        integer,
    asked_at    timestamptz NOT NULL DEFAULT now(),
    taken_at    timestamptz,
    answered_at timestamptz,
    done        boolean,
    answer      text,
    CONSTRAINT request_kind CHECK (kind IN ('stack', 'suspend', 'resume', 'kill', 'leave'))
);
CREATE INDEX request_open ON pgworkers.request (host) WHERE taken_at IS NULL;
CREATE INDEX request_asked ON pgworkers.request (asked_at);
