-- What a service of schema 25 added to those rows: whose folder the database was, a sandbox that runs, one that is paused,
-- one that is gone, and a template that is being built.

INSERT INTO keeper (id,folder,path,host,run,runs,seen_at)
VALUES (1,'00000000-0000-0000-0000-0000000000f0','/srv/berth','alpha','00000000-0000-0000-0000-0000000000f1',0,1780000000000000);
INSERT INTO sandboxes (id,org_id,project_id,name,slot,phase,wish,metadata,env,vcpu,memory_mb,disk_gb,network,run_user,on_timeout,fresh,reserved,generation,host_boot,phase_since,ready_since,created_at,updated_at)
VALUES ('00000000-0000-0000-0000-0000000000a1','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','s1',1,'Ready','ready','{}','{}',1,256,10,'{}','user','pause',0,1,4,'x',1780000000000000,1780000000000000,1780000000000000,1780000000000000);
INSERT INTO sandboxes (id,org_id,project_id,name,slot,phase,wish,metadata,env,vcpu,memory_mb,disk_gb,network,run_user,on_timeout,fresh,reserved,generation,host_boot,phase_since,created_at,updated_at)
VALUES ('00000000-0000-0000-0000-0000000000a2','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','s2',2,'Paused','paused','{}','{}',1,256,10,'{}','user','pause',0,0,7,'x',1780000000000000,1780000000000000,1780000000000000);
INSERT INTO sandboxes (id,org_id,project_id,name,phase,wish,metadata,env,vcpu,memory_mb,disk_gb,network,run_user,on_timeout,fresh,generation,phase_since,created_at,updated_at,deleted_at)
VALUES ('00000000-0000-0000-0000-0000000000a3','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','s3','Deleted','deleted','{}','{}',1,256,10,'{}','user','pause',0,1,1780000000000000,1780000000000000,1780000000000000,1780000000000000);
INSERT INTO sandbox_templates (id,org_id,project_id,name,status,source_kind,source,vcpu,memory_mb,disk_gb,env,run_user,slot,machines,warm,status_since,created_at,updated_at)
VALUES ('00000000-0000-0000-0000-0000000000b1','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','t1','building','image','debian',1,512,10,'{}','user',3,2,'wanted',1780000000000000,1780000000000000,1780000000000000);
INSERT INTO machines (owner_id,owner_kind,machines,vcpu,memory_mb) VALUES ('00000000-0000-0000-0000-0000000000b1','template',2,1,512);
INSERT INTO machines (owner_id,owner_kind,machines,vcpu,memory_mb) VALUES ('00000000-0000-0000-0000-0000000000a1','sandbox',1,1,256);
