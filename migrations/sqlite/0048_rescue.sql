-- A VM that runs a rescue system has the user whom that lets in.

ALTER TABLE vms ADD COLUMN rescue_user TEXT;
