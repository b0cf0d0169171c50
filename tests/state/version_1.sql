-- the store of version 1 as it was released; {identity} is INTEGER NOT NULL or BIGSERIAL NOT NULL

CREATE TABLE conduit_consumers (
    pipeline VARCHAR(128) NOT NULL,
    consumer VARCHAR(256) NOT NULL,
    kind VARCHAR(8) NOT NULL,
    delivered BIGINT NOT NULL,
    step BIGINT NOT NULL,
    target TEXT NOT NULL,
    PRIMARY KEY (pipeline, consumer)
);

CREATE TABLE conduit_dead_letters (
    pipeline VARCHAR(128) NOT NULL,
    step BIGINT NOT NULL,
    number INTEGER NOT NULL,
    source VARCHAR(256) NOT NULL,
    generation BIGINT NOT NULL,
    position TEXT NOT NULL,
    "offset" BIGINT NOT NULL,
    node VARCHAR(512) NOT NULL,
    code VARCHAR(128) NOT NULL,
    message TEXT NOT NULL,
    at_ns BIGINT NOT NULL,
    PRIMARY KEY (pipeline, step, number)
);

CREATE TABLE conduit_deliveries (
    pipeline VARCHAR(128) NOT NULL,
    step BIGINT NOT NULL,
    consumer VARCHAR(256) NOT NULL,
    hash VARCHAR(64) NOT NULL,
    state VARCHAR(8) NOT NULL,
    PRIMARY KEY (pipeline, step, consumer)
);

CREATE TABLE conduit_history (
    id {identity},
    pipeline VARCHAR(128) NOT NULL,
    at_ns BIGINT NOT NULL,
    event VARCHAR(64) NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX conduit_history_by_pipeline ON conduit_history (pipeline, id);

CREATE TABLE conduit_meta (
    name VARCHAR(64) NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE conduit_owners (
    thing VARCHAR(768) NOT NULL,
    pipeline VARCHAR(128) NOT NULL,
    consumer VARCHAR(256) NOT NULL,
    PRIMARY KEY (thing)
);

CREATE TABLE conduit_pipelines (
    pipeline VARCHAR(128) NOT NULL,
    epoch BIGINT NOT NULL,
    heartbeat BIGINT NOT NULL,
    owner TEXT NOT NULL,
    status VARCHAR(16) NOT NULL,
    reason VARCHAR(16) NOT NULL,
    error TEXT NOT NULL,
    next_step BIGINT NOT NULL,
    "window" TEXT NOT NULL,
    file TEXT NOT NULL,
    updated_ns BIGINT NOT NULL,
    PRIMARY KEY (pipeline)
);

CREATE TABLE conduit_sources (
    pipeline VARCHAR(128) NOT NULL,
    source VARCHAR(256) NOT NULL,
    generation BIGINT NOT NULL,
    unit TEXT NOT NULL,
    position TEXT NOT NULL,
    records BIGINT NOT NULL,
    acked BIGINT NOT NULL,
    filtered BIGINT NOT NULL,
    nacked BIGINT NOT NULL,
    PRIMARY KEY (pipeline, source)
);

CREATE TABLE conduit_steps (
    pipeline VARCHAR(128) NOT NULL,
    step BIGINT NOT NULL,
    state VARCHAR(8) NOT NULL,
    plan TEXT NOT NULL,
    decision TEXT NOT NULL,
    planned_ns BIGINT NOT NULL,
    done_ns BIGINT NOT NULL,
    PRIMARY KEY (pipeline, step)
);
