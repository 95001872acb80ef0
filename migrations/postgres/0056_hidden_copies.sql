-- A copy from which an image is made is the platform's own, as one from which a backup is made.
UPDATE disk_snapshots SET hidden = 1 WHERE project_image_id IS NOT NULL;
