-- Usage of models by minute: a row for each request filled the disk of a busy service. inference_usage is not read any
-- more, and goes with a later release.

CREATE TABLE inference_totals (
    project_id        TEXT NOT NULL,
    at                BIGINT NOT NULL,         -- beginning of the minute
    model             TEXT NOT NULL,
    key_id            TEXT NOT NULL,           -- the API key that asked; empty for persons
    service           TEXT NOT NULL,           -- the run of a service that counted
    org_id            TEXT NOT NULL,
    requests          BIGINT NOT NULL,
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    cost              BIGINT NOT NULL,         -- billionths
    estimated         BIGINT NOT NULL,         -- requests whose tokens are an estimate
    PRIMARY KEY (project_id, at, model, key_id, service)
);

-- How far the journal of each run of a service is part of the totals.
CREATE TABLE inference_journals (
    service           TEXT PRIMARY KEY,
    segment           BIGINT NOT NULL
);

INSERT INTO inference_totals (project_id, at, model, key_id, service, org_id, requests, prompt_tokens,
                              completion_tokens, cost, estimated)
SELECT project_id, at / 60000000 * 60000000, model, COALESCE(key_id, ''), service, org_id, COUNT(*),
       CAST(SUM(prompt_tokens) AS BIGINT), CAST(SUM(completion_tokens) AS BIGINT), CAST(SUM(cost) AS BIGINT),
       CAST(SUM(estimated) AS BIGINT)
FROM inference_usage GROUP BY 1, 2, 3, 4, 5, 6;
