-- An image that is gone says so in its status, too.
UPDATE images SET status = 'deleted' WHERE deleted_at IS NOT NULL;
