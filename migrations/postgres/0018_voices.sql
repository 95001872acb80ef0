-- Voices that administrators added.

CREATE TABLE voices (
    id         TEXT PRIMARY KEY,
    spec       TEXT NOT NULL,                 -- JSON, as it was asked for
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
