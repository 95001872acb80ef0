-- Identity in full: verification, suspension, invitations, API keys, quotas, referrals, the outbox.

ALTER TABLE users ADD COLUMN phone_verified_at BIGINT;
ALTER TABLE users ADD COLUMN suspended_at BIGINT;
ALTER TABLE users ADD COLUMN deleted_at BIGINT;       -- the row stays for the records that name it, without its person
ALTER TABLE users ADD COLUMN referral_code TEXT;
CREATE UNIQUE INDEX users_by_referral_code ON users (referral_code) WHERE referral_code IS NOT NULL;

ALTER TABLE orgs ADD COLUMN suspended_at BIGINT;
ALTER TABLE orgs ADD COLUMN deleted_at BIGINT;
ALTER TABLE projects ADD COLUMN deleted_at BIGINT;

ALTER TABLE sessions ADD COLUMN address TEXT;         -- where the sign-in came from

ALTER TABLE audit ADD COLUMN actor_kind TEXT NOT NULL DEFAULT 'user'; -- user, api_key, platform
CREATE INDEX audit_of_actor ON audit (org_id, actor, created_at DESC);

CREATE TABLE one_time_tokens (
    id              TEXT PRIMARY KEY,
    purpose         TEXT NOT NULL,             -- verify_email, verify_phone, reset_password, invitation
    subject         TEXT NOT NULL,             -- id of the user or the invitation
    recipient       TEXT NOT NULL,             -- the address or number it was sent to
    token_hash      TEXT UNIQUE,               -- SHA-256, hexadecimal
    code_hash       TEXT,                      -- SHA-256 of id and code
    tries           BIGINT NOT NULL DEFAULT 0, -- wrong codes so far
    created_at      BIGINT NOT NULL,
    expires_at      BIGINT NOT NULL,
    code_expires_at BIGINT,
    used_at         BIGINT
);
CREATE INDEX one_time_tokens_of_subject ON one_time_tokens (subject, purpose, created_at);

CREATE TABLE outbox (
    id           TEXT PRIMARY KEY,
    kind         TEXT NOT NULL,                -- what is told; the text is made when it is sent
    recipient    TEXT NOT NULL,                -- address or phone number
    subject      TEXT,                         -- id of what it is about
    attempts     BIGINT NOT NULL DEFAULT 0,
    message      TEXT,                         -- why the last attempt failed
    work_at      BIGINT,                       -- null when it is settled
    created_at   BIGINT NOT NULL,
    settled_at   BIGINT,
    outcome      TEXT                          -- sent, unneeded, failed
);
CREATE INDEX outbox_with_work ON outbox (work_at) WHERE work_at IS NOT NULL;

CREATE TABLE invitations (
    id            TEXT PRIMARY KEY,
    org_id        TEXT NOT NULL REFERENCES orgs (id),
    email         TEXT NOT NULL,
    email_key     TEXT NOT NULL,
    role          TEXT NOT NULL,
    project_roles TEXT NOT NULL,               -- JSON: [{project_id, role}]
    invited_by    TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    expires_at    BIGINT NOT NULL,
    accepted_at   BIGINT,
    revoked_at    BIGINT
);
CREATE INDEX invitations_of_org ON invitations (org_id, created_at DESC);

CREATE TABLE api_keys (
    id           TEXT PRIMARY KEY,
    org_id       TEXT NOT NULL REFERENCES orgs (id),
    project_id   TEXT NOT NULL REFERENCES projects (id),
    name         TEXT NOT NULL,
    public_id    TEXT NOT NULL,                -- the 12 characters by which a key is recognised
    hash         TEXT NOT NULL UNIQUE,         -- SHA-256 of the whole key, hexadecimal
    scopes       TEXT NOT NULL,                -- vm,sandbox,inference
    created_by   TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    expires_at   BIGINT,
    revoked_at   BIGINT,
    last_used_at BIGINT
);
CREATE INDEX api_keys_of_project ON api_keys (project_id, created_at DESC);

CREATE TABLE quotas (
    project_id          TEXT PRIMARY KEY REFERENCES projects (id),
    vms                 BIGINT,
    vcpu                BIGINT,
    memory_mb           BIGINT,
    disks               BIGINT,
    disk_gb             BIGINT,
    sandboxes           BIGINT,
    requests_per_minute BIGINT,
    updated_at          BIGINT NOT NULL
);

CREATE TABLE referrals (
    id          TEXT PRIMARY KEY,
    referrer_id TEXT NOT NULL REFERENCES users (id),
    referred_id TEXT NOT NULL UNIQUE REFERENCES users (id),
    masked      TEXT NOT NULL,                 -- the address, as far as the referrer may see it
    status      TEXT NOT NULL,                 -- pending, qualified, rewarded, void
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);
CREATE INDEX referrals_of_referrer ON referrals (referrer_id, created_at DESC);
