-- Since when a project has its slug, which decides whose it is where several have it. Of a project that a service from before
-- this column made it is null: since it was made.

ALTER TABLE projects ADD COLUMN slug_since BIGINT;
UPDATE projects SET slug_since = created_at;
