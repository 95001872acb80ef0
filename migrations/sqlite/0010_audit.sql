-- The audit log of the whole platform: by time, for administrators and for what removes old records.

CREATE INDEX audit_by_age ON audit (created_at DESC, id DESC);
