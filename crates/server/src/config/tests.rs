use super::*;

fn with(text: &str, env: &[(&str, &str)]) -> Result<Config> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("berth.toml");
    std::fs::write(&file, text)?;
    Config::from_sources(Some(&file), |name| {
        if name == "HOME" {
            return Some("/home/someone".into());
        }
        env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
    })
}

#[test]
fn defaults_are_complete() {
    let config = with("", &[]).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.data_dir, Path::new("/home/someone/.local/share/berth"));
    assert_eq!(config.database_url, "sqlite:/home/someone/.local/share/berth/berth.db");
    assert_eq!(config.base_url, "http://127.0.0.1:8080");
    assert!(config.catalog.vm_configs.iter().any(|c| c.id == "tiny" && c.memory_mb == 512));
}

#[test]
fn who_speaks_tls_is_reached_by_https() {
    let config = with("[http]\ntls = { cert = \"/c.pem\", key = \"/k.pem\" }\n", &[]).unwrap();
    assert_eq!((config.base_url.as_str(), config.public_url()), ("https://127.0.0.1:8080", None));
    let config = with("base_url = \"https://berth.example.com/\"", &[]).unwrap();
    assert_eq!(config.public_url(), Some("https://berth.example.com"));
}

#[test]
fn models_and_voices_are_read() {
    let text = "[[models]]\nid = \"acme/tiny\"\naliases = [\"tiny\"]\nprice = { input = 0.15, output = 0.60 }\n\
                [[models.upstreams]]\nurl = \"http://127.0.0.1:9101/v1\"\nweight = 3\n\
                [[voices]]\nid = \"alloy\"\nespeak = \"de\"\n[[voices]]\nid = \"anna\"\nespeak = \"de+f2\"\n";
    let config = with(text, &[]).unwrap();
    let model = &config.models[0];
    assert_eq!((model.id.as_str(), model.upstreams[0].weight, model.price.input.0), ("acme/tiny", 3, 150_000_000));
    assert_eq!(config.voices.len(), 7, "one more than there are, and one in another's place");
    assert_eq!(with("", &[]).unwrap().voices, Voice::defaults());
}

#[test]
fn proxies_are_trusted_by_network_or_address() {
    assert!(with("", &[]).unwrap().http.trusted_proxies.is_empty());
    let text = "[http]\ntrusted_proxies = [\"10.0.0.0/8\", \"127.0.0.1\", \"2001:db8::/32\"]\n";
    let networks = with(text, &[]).unwrap().http.trusted_proxies;
    let shown: Vec<String> = networks.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.0.0.0/8", "127.0.0.1/32", "2001:db8::/32"]);
}

#[test]
fn what_others_reach_is_not_on_loopback_only() {
    for (text, expected) in [
        ("", true),
        ("listen = \"[::1]:8080\"\n", true),
        ("listen = \"127.0.0.1:80\"\nbase_url = \"http://localhost:80\"\n", true),
        ("base_url = \"http://127.0.0.2\"\n", true),
        ("listen = \"0.0.0.0:8080\"\n", false),
        ("listen = \"[::]:8080\"\n", false),
        ("listen = \"192.0.2.1:8080\"\n", false),
        ("base_url = \"https://berth.example.com\"\n", false),
        ("[http]\ntrusted_proxies = [\"127.0.0.1\"]\n", false),
        ("[http]\nadmin_listen = \"192.0.2.1:8443\"\n", false),
        ("[http]\nadmin_listen = \"127.0.0.1:8443\"\n", true),
        ("[http]\nmetrics_listen = \"0.0.0.0:9090\"\n", true),
    ] {
        let config = with(text, &[]).unwrap();
        let mode = if expected { SignUpMode::Open } else { SignUpMode::Invited };
        assert_eq!((config.is_loopback_only(), config.sign_up()), (expected, mode), "{text}");
        let told = with(&format!("{text}\n[identity]\nsignup = \"closed\"\n"), &[]).unwrap();
        assert_eq!(told.sign_up(), SignUpMode::Closed);
    }
}

#[test]
fn environment_wins_over_the_file() {
    let config =
        with("listen = \"127.0.0.1:1\"\n[identity]\naccess_token_seconds = 60\n", &[("BERTH_LISTEN", "127.0.0.1:2")])
            .unwrap();
    assert_eq!(config.listen.port(), 2);
    assert_eq!(config.identity.access_token_seconds, 60);
}

#[test]
fn what_an_address_is_verified_for_follows_from_where_the_service_listens() {
    for (text, expected) in [
        ("", VerifiedEmail::Never),
        ("listen = \"0.0.0.0:8080\"\n", VerifiedEmail::Acting),
        ("listen = \"[::1]:8080\"\n", VerifiedEmail::Never),
        ("[identity]\nrequire_verified_email = false\n", VerifiedEmail::Acting),
        ("[identity]\nrequire_verified_email = true\n", VerifiedEmail::SignIn),
        ("listen = \"0.0.0.0:1\"\n[identity]\nrequire_verified_email = \"never\"\n", VerifiedEmail::Never),
    ] {
        assert_eq!(with(text, &[]).unwrap().identity.require_verified_email, expected, "{text}");
    }
}

/// A configuration, its environment, and a word that its error must contain.
type Mistake = (&'static str, &'static [(&'static str, &'static str)], &'static str);

fn refused(mistakes: &[Mistake]) {
    for (text, env, word) in mistakes {
        let error = format!("{:#}", with(text, env).unwrap_err());
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn translated_code_is_as_much_as_the_operator_says() {
    for (text, expected) in [("", 128), ("translated_mb = 32", 32), ("translated_mb = 1024", 1024)] {
        let engine = with(&format!("[vm]\n{text}"), &[]).unwrap().vm_engine();
        assert_eq!(engine.translated_mb, expected, "{text}");
    }
}

#[test]
fn mistakes_are_named() {
    refused(&[
        ("lissten = 1", &[], "lissten"),
        ("[identity]\nfoo = 1", &[], "foo"),
        ("[http]\ntrusted_proxies = [\"10.0.0.0/33\"]", &[], "10.0.0.0/33"),
        ("[http]\ntrusted_proxies = [\"proxy.internal\"]", &[], "trusted_proxies"),
        ("[http]\ntrusted = []", &[], "trusted"),
        ("[audit]\nretention_days = -1", &[], "retention_days"),
        ("[audit]\nrefusals = 999", &[], "audit.refusals"),
        ("[audit]\nrefusals = 1000000001", &[], "audit.refusals"),
        ("[lost]\ndays = 0", &[], "lost.days"),
        ("[lost]\ndays = 3651", &[], "lost.days"),
        ("[secrets]\nfile = \"x\"", &[], "file"),
        ("[secrets]\nkey_env = \"NOT_SET\"", &[], "NOT_SET"),
        ("[secrets]\nkey_env = \"K\"\nkey_file = \"k\"", &[("K", "x")], "exclude each other"),
        ("[identity]\nrequire_verified_email = \"no\"", &[], "never"),
        ("[identity]\nsignup = \"maybe\"", &[], "signup"),
        ("[identity]\nsignups_per_minute_per_network = 0", &[], "signups_per_minute_per_network"),
        ("[identity]\nlogin_failures_ceiling = 4", &[], "login_failures_ceiling"),
        ("[identity]\nended_sessions_days = 0", &[], "ended_sessions_days"),
        ("[vm]\nstop_seconds = 0", &[], "stop_seconds"),
        ("[vm]\ntranslated_mb = 31", &[], "vm.translated_mb must be from 32 to 1024"),
        ("[vm]\ntranslated_mb = 1025", &[], "vm.translated_mb"),
        ("[quota.project]\nvms = -1", &[], "quota.project.vms"),
        ("[quota.organization]\nspend_per_month = 1000000001", &[], "quota.organization.spend_per_month"),
        ("[quota.project]\nwms = 1", &[], "wms"),
        ("[quota]\norganizations_per_person = -1", &[], "organizations_per_person"),
        ("[quota.organization]\nprojects = -1", &[], "quota.organization.projects"),
        ("[quota.project]\nprojects = 5", &[], "quota.organization.projects"),
        ("[sandbox]\norganization_stored_gb = 0", &[], "organization_stored_gb"),
        ("[machines]\nconfinement = \"none\"", &[], "`available` or `required`"),
        ("[machines]\nfirst_user = 1000", &[], "machines.first_user must be from 1048576"),
        ("[machines]\nfirst_user = 4294967295", &[], "machines.first_user"),
        ("[sandbox]\nmax_sandboxes = 0", &[], "max_sandboxes"),
        ("[sandbox]\nupload_mb = 0", &[], "upload_mb"),
        ("[sandbox]\nbuild_seconds = 3601", &[], "build_seconds"),
        ("[gateway]\nkeep_alive_millis = 0", &[], "keep_alive_millis"),
        ("[gateway]\nmax_requests_per_project = 0", &[], "max_requests_per_project"),
        ("[gateway]\nbody_mb = 63", &[], "gateway.body_mb "),
        ("[gateway]\nbody_mb_per_project = 1048577", &[], "body_mb_per_project"),
        ("[gateway]\nkey_env = [\"*\"]", &[], "key_env"),
        ("[traces]\nendpoint = \"collector\"", &[], "traces.endpoint"),
        ("[traces]\nurl = \"http://h\"", &[], "url"),
        ("[[models]]\nid = \"a\"\n", &[], "upstreams"),
        ("[[models]]\nid = \"a\"\nupstream = []\n", &[], "upstream: no such field"),
        ("[[models]]\nid = \"a\"\nupstreams = [{ url = \"http://h\", wait = 1 }]\n", &[], "wait: no such field"),
        (
            "[[models]]\nid = \"a\"\nprice = { put = 1 }\nupstreams = [{ url = \"http://h\" }]\n",
            &[],
            "price.put: no such field",
        ),
        (
            "[[models]]\nid = \"a\"\nupstreams = [{ url = \"http://h\", api_key_env = \"NOT_SET_ANYWHERE\" }]\n",
            &[],
            "NOT_SET_ANYWHERE",
        ),
        ("[[voices]]\nid = \"a\"\n", &[], "espeak"),
        ("", &[("BERTH_ACCEL", "fast")], "BERTH_ACCEL"),
        ("", &[("BERTH_LISTEN", "x")], "BERTH_LISTEN"),
    ]);
}

#[test]
fn mistakes_of_where_it_is_reached_are_named() {
    refused(&[
        ("[http]\ncors_origins = [\"app.example.com\"]", &[], "like https://app.example.com"),
        ("[http]\ncors_origins = [\"https://app.example.com/\"]", &[], "cors_origins"),
        ("[http]\ntls = { cert = \"a.pem\" }", &[], "key"),
        ("[http]\nmax_connections = 0", &[], "max_connections"),
        ("[http]\nmax_connections_per_client = 0", &[], "max_connections_per_client"),
        ("[http]\nhead_seconds = 0", &[], "head_seconds"),
        ("[http]\nidle_seconds = 0", &[], "idle_seconds"),
        ("database_wait_seconds = 0", &[], "database_wait_seconds must be 1 to 600"),
        ("database_wait_seconds = 601", &[], "database_wait_seconds must be 1 to 600"),
        ("database_connections = 3", &[], "database_connections must be 4 to 500"),
        ("database_connections = 501", &[], "database_connections must be 4 to 500"),
        ("[http]\nbody_grace_seconds = 0", &[], "body_grace_seconds must be 1 to 600"),
        ("[http]\nbody_grace_seconds = 601", &[], "body_grace_seconds must be 1 to 600"),
        ("[http]\nunread_seconds = 601", &[], "unread_seconds must be 1 to 600"),
        ("[http]\nmetrics_listen = \"127.0.0.1:8080\"", &[], "metrics_listen"),
        ("[http]\nmetrics_listen = \"[::1]:1\"\nadmin_listen = \"[::1]:1\"", &[], "different addresses"),
        ("", &[("BERTH_LOG", "loud")], "off, error, warn, info, debug, trace"),
        ("log = \"foo=bar=baz\"", &[], "'foo=bar=baz'"),
        ("", &[("BERTH_LOG_FORMAT", "xml")], "auto, json or text"),
        ("base_url = \"berth.example.com\"", &[], "like https://berth.example.com"),
        ("base_url = \"ftp://berth.example.com\"", &[], "like https://berth.example.com"),
        ("base_url = \"https://\"", &[], "base_url"),
        ("base_url = \"https://h/?a=b\"", &[], "base_url"),
        ("", &[("BERTH_DATABASE_URL", "mysql://x")], "sqlite:PATH"),
        ("database_url = \"postgress://h/x\"", &[], "postgress:"),
        ("[[vm_configs]]\nid = \"a\"\nvcpu = 0\nmemory_mb = 1\n", &[], "vcpu"),
    ]);
}

#[test]
fn warm_machines_go_by_their_older_name_too() {
    for name in ["warm_machines", "spares"] {
        let number =
            |most| with(&format!("[sandbox]\n{name} = {most}\n"), &[]).map(|config| config.sandbox.warm_machines);
        assert_eq!(number(64).unwrap(), Some(64));
        assert!(number(65).is_err());
    }
}
