-- Builds of templates: archives that are sent for them, and what they told.

CREATE TABLE sandbox_uploads (
    id         TEXT PRIMARY KEY,              -- the file on the host is named after it
    org_id     TEXT NOT NULL REFERENCES orgs (id),
    project_id TEXT NOT NULL REFERENCES projects (id),
    bytes      BIGINT NOT NULL,               -- of what was received
    state      TEXT NOT NULL,                 -- receiving, present
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX sandbox_uploads_of_project ON sandbox_uploads (project_id, created_at DESC, id DESC);
CREATE INDEX sandbox_uploads_by_end ON sandbox_uploads (expires_at);

CREATE TABLE sandbox_build_logs (
    template_id TEXT PRIMARY KEY REFERENCES sandbox_templates (id),
    starts_at   BIGINT NOT NULL,              -- bytes before it that are not kept
    log         TEXT NOT NULL
);

ALTER TABLE sandbox_templates ADD COLUMN context_id TEXT; -- the upload that COPY takes files from
