-- Models behind the gateway: what requests took, what administrators added, and what a project may take.

-- Usage outlives what it names: nothing of it keeps a project or a key from being deleted.
CREATE TABLE inference_usage (
    id                TEXT PRIMARY KEY,       -- of the request
    at                BIGINT NOT NULL,
    org_id            TEXT NOT NULL,
    project_id        TEXT NOT NULL,
    key_id            TEXT,                   -- the API key that asked, or
    user_id           TEXT,                   -- the person
    model             TEXT NOT NULL,
    operation         TEXT NOT NULL,          -- chat, completions, embeddings, speech
    status            BIGINT NOT NULL,        -- of the answer; 499 is a client that left
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    cost              BIGINT NOT NULL,        -- billionths
    estimated         BIGINT NOT NULL,
    service           TEXT NOT NULL           -- the run of a service that wrote it
);
CREATE INDEX inference_usage_of_project ON inference_usage (project_id, at);

CREATE TABLE models (
    id         TEXT PRIMARY KEY,
    spec       TEXT NOT NULL,                 -- JSON, as it was asked for
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

ALTER TABLE quotas ADD COLUMN tokens_per_minute BIGINT;
ALTER TABLE quotas ADD COLUMN spend_per_month BIGINT; -- whole units
