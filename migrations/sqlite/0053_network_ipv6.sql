-- IPv6 addresses of networks; a member's follows from its other one. Networks from before have none.

ALTER TABLE networks ADD COLUMN cidr6 TEXT;
