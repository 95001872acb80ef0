//! The service's refusals, in the words that the person typed.
//!
//! The API names its own fields and paths. A person typed options and knows commands, so each command lists the option
//! for each field.

use berth_client::Error;

/// An option or argument, and its field. `[]` stands for any number in brackets; a field below another one belongs to
/// that one unless it has a line of its own.
pub type Words = &'static [(&'static str, &'static str)];

/// For requests that the API's messages suggest: what to type instead.
const COMMANDS: [(&str, &str); 28] = [
    ("GET /api/v1/vm_configs lists", "berth catalog lists"),
    ("GET /api/v1/plans lists", "berth catalog lists"),
    ("GET /api/v1/regions lists", "berth catalog lists"),
    ("GET /api/v1/images lists", "berth image list shows"),
    ("GET …/images lists", "berth image list shows"),
    ("Make a snapshot of it (POST …/disk_snapshots)", "Make a snapshot of it (berth disk snapshot create DISK)"),
    ("GET /v1/models lists", "berth model list shows"),
    ("GET /api/v1/admin/models lists", "berth model list shows"),
    ("GET …/sandbox_templates lists", "berth template list shows"),
    ("GET …/sandboxes lists", "berth sandbox list shows"),
    ("Take the snapshot without include_memory", "Take it without --include-memory"),
    ("Fork it without include_memory", "Fork it without --include-memory"),
    ("GET …/networks/ID lists", "berth network show NETWORK lists"),
    ("'GET processes' lists", "berth sandbox ps SANDBOX shows"),
    ("Delete one: GET …/sandbox_uploads lists them", "One that is not built of goes after a day"),
    ("send them by POST …/sandbox_uploads and name them in context_id", "name their directory: --context DIR"),
    ("or ask with 'replace' that this one takes its place", "or let this one take its place: --replace"),
    ("POST …/sandboxes/{id}/resume wakes it", "berth sandbox resume wakes it"),
    ("with auto_resume, requests to it do, too", "after berth sandbox update SANDBOX --auto-resume, its use does, too"),
    ("Sign in first: send 'Authorization: Bearer <access_token>' from POST /api/v1/auth/login", "Sign in first"),
    (
        "Send 'Authorization: Bearer <access_token>' from POST /api/v1/auth/login",
        "Type: unset BERTH_API_KEY; berth login",
    ),
    ("with POST or PATCH …/api_keys", "by berth key create or berth key update"),
    ("have it changed with PATCH …/api_keys", "have it changed by berth key update KEY --from NETWORK"),
    ("with DELETE /api/v1/users/me", "by berth account delete"),
    ("PUT /api/v1/admin/orgs/{org_id}/quota sets it", "berth quota set --org ORG sets it"),
    ("GET /api/v1/users/me tells", "berth whoami tells"),
    ("with POST /api/v1/auth/email/verification", "by berth account verify --email ADDRESS"),
    (
        "send the token of the invitation's link as 'invitation_token'",
        "type berth signup --invitation LINK, with the link of the invitation's mail",
    ),
];

/// The service's error, with the options of a command in place of fields.
pub fn retold(error: Error, words: Words) -> Error {
    match error {
        Error::Api { status, code, details, retry_after, request_id, .. } if !details.is_empty() => {
            let message = lines(details.iter().map(|d| (d.field.as_str(), d.message.as_str())), words);
            Error::Api { status, code, message, details, retry_after, request_id }
        }
        other => other,
    }
}

/// The messages about fields, with options in their place.
pub fn lines<'a>(details: impl Iterator<Item = (&'a str, &'a str)>, words: Words) -> String {
    let mut lines = Vec::new();
    for line in details.map(|(field, message)| line(field, message, words)) {
        // One option may set several fields, as a machine's name is also its root disk's.
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.join("\n")
}

fn line(field: &str, message: &str, words: Words) -> String {
    match option(field, words) {
        Some(option) => format!("{option} {message}"),
        None => format!("{field}: {message}"),
    }
}

/// The option of a field, or of the nearest one above it.
fn option(field: &str, words: Words) -> Option<&'static str> {
    let mut name = unnumbered(field);
    loop {
        if let Some((_, option)) = words.iter().find(|(known, _)| *known == name) {
            return Some(option);
        }
        let end = name.rfind(['.', '['])?;
        name.truncate(end);
    }
}

/// A field without the numbers in brackets: for `create_disks[0].name`, but not for `sha256`.
fn unnumbered(field: &str) -> String {
    let mut inside = false;
    let mut stays = |c: char| {
        inside = (inside || c == '[') && c != ']';
        !(inside && c.is_ascii_digit())
    };
    field.chars().filter(|c| stays(*c)).collect()
}

/// A sentence of the service, with commands in place of requests.
pub fn sentence(text: &str) -> String {
    COMMANDS.iter().fold(text.to_owned(), |text, (request, command)| text.replace(request, command))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use berth_client::FieldError;

    const WORDS: Words = &[
        ("vm_config_id", "--size"),
        ("root_disk.create_disk_request.size_gb", "--disk"),
        ("data_disks.create_disks[]", "--data"),
        ("sha256", "--sha256"),
    ];

    fn refused(details: &[(&str, &str)]) -> Error {
        let details =
            details.iter().map(|(field, message)| FieldError { field: (*field).into(), message: (*message).into() });
        Error::Api {
            status: 400,
            code: "invalid_request".into(),
            message: "vm_config_id: is not known".into(),
            details: details.collect(),
            retry_after: None,
            request_id: String::new(),
        }
    }

    #[test]
    fn what_a_sandbox_with_a_gpu_cannot_do_is_said_in_words_of_the_command_line() {
        let said = sentence("Fork it without include_memory: the new ones boot from its disk.");
        assert_eq!(said, "Fork it without --include-memory: the new ones boot from its disk.");
        let said = sentence("Take the snapshot without include_memory: it has the disk.");
        assert_eq!(said, "Take it without --include-memory: it has the disk.");
    }

    #[test]
    fn fields_become_options() {
        let error = retold(refused(&[("vm_config_id", "is not known"), ("labels", "is wrong")]), WORDS);
        assert_eq!(error.to_string(), "--size is not known\nlabels: is wrong");
        for (field, option) in [
            ("root_disk.create_disk_request.size_gb", "--disk"),
            ("data_disks.create_disks[0].name", "--data"),
            ("data_disks.create_disks[12]", "--data"),
            ("sha256", "--sha256"),
        ] {
            assert_eq!(super::option(field, WORDS), Some(option), "{field}");
        }
        assert_eq!(super::option("root_disk", WORDS), None);
        assert_eq!(super::option("", WORDS), None);
    }

    #[test]
    fn an_option_that_became_several_fields_is_named_once() {
        const NAMES: Words = &[("name", "NAME"), ("root_disk.name", "NAME"), ("size", "--size")];
        let error = retold(refused(&[("name", "is long"), ("size", "is 0"), ("root_disk.name", "is long")]), NAMES);
        assert_eq!(error.to_string(), "NAME is long\n--size is 0");
    }

    #[test]
    fn requests_become_commands() {
        for (said, told) in [
            ("is not known; GET /api/v1/vm_configs lists what is", "is not known; berth catalog lists what is"),
            (
                "This API key lacks the scope 'vm'. Make or change one with POST or PATCH …/api_keys.",
                "This API key lacks the scope 'vm'. Make or change one by berth key create or berth key update.",
            ),
            (
                "It takes a person. Send 'Authorization: Bearer <access_token>' from POST /api/v1/auth/login.",
                "It takes a person. Type: unset BERTH_API_KEY; berth login.",
            ),
            (
                "Sign in first: send 'Authorization: Bearer <access_token>' from POST /api/v1/auth/login.",
                "Sign in first.",
            ),
            (
                "The sandbox is paused. POST …/sandboxes/{id}/resume wakes it; with auto_resume, requests to it do, too.",
                "The sandbox is paused. berth sandbox resume wakes it; after berth sandbox update SANDBOX --auto-resume, \
                 its use does, too.",
            ),
            (
                "A project may have 16 uploads at a time. Delete one: GET …/sandbox_uploads lists them.",
                "A project may have 16 uploads at a time. One that is not built of goes after a day.",
            ),
            (
                "Nobody deletes themselves here. Delete your account with DELETE /api/v1/users/me.",
                "Nobody deletes themselves here. Delete your account by berth account delete.",
            ),
            (
                "is a limit of an organization; PUT /api/v1/admin/orgs/{org_id}/quota sets it",
                "is a limit of an organization; berth quota set --org ORG sets it",
            ),
            (
                "Use it from a network it is for, or have it changed with PATCH …/api_keys.",
                "Use it from a network it is for, or have it changed by berth key update KEY --from NETWORK.",
            ),
            (
                "Open the link in the mail, or have it sent again with POST /api/v1/auth/email/verification.",
                "Open the link in the mail, or have it sent again by berth account verify --email ADDRESS.",
            ),
            (
                "Only who was invited signs up here: send the token of the invitation's link as 'invitation_token'.",
                "Only who was invited signs up here: type berth signup --invitation LINK, with the link of the \
                 invitation's mail.",
            ),
            ("GET /v1/models lists those there are.", "berth model list shows those there are."),
            (
                "There is no such model. GET /api/v1/admin/models lists them.",
                "There is no such model. berth model list shows them.",
            ),
            (
                "There is no such process; 'GET processes' lists those there are.",
                "There is no such process; berth sandbox ps SANDBOX shows those there are.",
            ),
        ] {
            assert_eq!(sentence(said), told);
        }
    }

    /// Requests that the service never names to a person at a command line, and why.
    const UNTYPED: [(&str, &str); 3] = [
        ("There is no such voice. GET /api/v1/admin/voices lists them.", "no command is about voices"),
        ("There is no such host. GET /api/v1/admin/hosts lists them.", "no command is about hosts"),
        ("GET /health HTTP/1.1", "a model's server is asked this"),
    ];

    /// The texts in Rust files below a folder, without tests and comments.
    fn sources(folder: &Path, all: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            match entry.path() {
                path if path.file_stem().unwrap().to_string_lossy().ends_with("tests") => {}
                path if path.is_dir() => sources(&path, all),
                path => {
                    let text = std::fs::read_to_string(path).unwrap();
                    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                    lines.for_each(|line| all.extend([line, "\n"]));
                }
            }
        }
    }

    /// All texts of the service.
    fn said() -> String {
        let mut all = String::new();
        for of in ["server", "host", "domain", "agent"] {
            sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(of).join("src"), &mut all);
        }
        // A sentence may continue on the next line.
        all.split("\\\n").map(str::trim_start).collect()
    }

    /// Positions where a text names requests: methods with paths.
    fn requests(text: &str) -> Vec<usize> {
        let methods = ["GET", "POST", "PUT", "PATCH", "DELETE"];
        let places = methods.iter().flat_map(|method| text.match_indices(method));
        let named = |rest: &str| rest.starts_with(" /") || rest.starts_with(" …/");
        places.filter(|(at, method)| named(&text[at + method.len()..])).map(|(at, _)| at).collect()
    }

    #[test]
    fn what_is_said_otherwise_is_what_the_service_says() {
        let said = said();
        for request in COMMANDS.iter().chain(&UNTYPED).map(|(request, _)| request) {
            assert!(said.contains(request), "nobody says {request:?}");
        }
    }

    #[test]
    fn every_request_that_the_service_names_is_said_otherwise() {
        let said = said();
        let known = COMMANDS.iter().chain(&UNTYPED).flat_map(|(text, _)| said.match_indices(text));
        let known: Vec<_> = known.map(|(at, text)| at..at + text.len()).collect();
        let named = requests(&said);
        assert!(named.len() > COMMANDS.len() / 2, "{named:?}");
        for at in named {
            let line = said[at..].lines().next();
            assert!(known.iter().any(|known| known.contains(&at)), "what does a person type for this: {line:?}");
        }
    }
}
