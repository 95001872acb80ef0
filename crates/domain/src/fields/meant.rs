//! What may be meant by a name that is not known.
//!
//! People slip in three ways: a letter is wrong (`egres`), a part of the name is missing (`template` for `template_id`),
//! or the name is another system's (`cpus`, `ttl`). Each has a rule here, the surest first; where none fits, the names
//! that are known are told.

/// Longest name that is compared, in bytes: all that are known are shorter.
const LONGEST: usize = 64;

/// Names that people bring along, and what they are called here. A path counts where its first part is known.
const ELSEWHERE: [(&str, &str); 33] = [
    ("allow", "network.allow"),
    ("args", "argv"),
    ("command", "cmd"),
    ("cores", "vcpu"),
    ("cpu", "vcpu"),
    ("cpus", "vcpu"),
    ("deny", "network.deny"),
    ("dir", "cwd"),
    ("directory", "cwd"),
    ("disks", "data_disks"),
    ("egress", "network.egress"),
    ("environment", "env"),
    ("expiry", "expires_at"),
    ("flavor", "vm_config_id"),
    ("image", "root_disk.create_disk_request.image_id"),
    ("image_id", "root_disk.create_disk_request.image_id"),
    ("instance_type", "vm_config_id"),
    ("keys", "ssh_keys"),
    ("lifetime", "timeout_seconds"),
    ("machine_type", "vm_config_id"),
    ("permissions", "scopes"),
    ("public_key", "ssh_keys"),
    ("ram", "memory_mb"),
    ("size", "vm_config_id"),
    ("tags", "labels"),
    ("tags", "metadata"),
    ("title", "name"),
    ("ttl", "timeout_seconds"),
    ("username", "email"),
    ("userdata", "user_data"),
    ("volumes", "data_disks"),
    ("workdir", "cwd"),
    ("working_dir", "cwd"),
];

/// What is said of a name that is not known: "no such field; `template_id` may be meant". `kind` is what it would be, a
/// field or a parameter.
pub fn unknown(kind: &str, name: &str, known: &[String]) -> String {
    match meant(name, known) {
        Some(other) => format!("no such {kind}; {other} may be meant"),
        None if known.is_empty() => format!("no such {kind}; there are none here"),
        None => format!("no such {kind}; there are: {}", known.join(", ")),
    }
}

/// A name as it is shown: nobody makes an answer longer than it has to be.
pub fn shown(name: &str) -> String {
    let mut short: String = name.chars().take(LONGEST).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short
}

fn meant<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    if name.len() > LONGEST {
        return None;
    }
    let find = |same: &dyn Fn(&str) -> bool| known.iter().map(String::as_str).find(|other| same(other));
    let part = |whole: &str, part: &str| whole.strip_prefix(part).is_some_and(|rest| rest.starts_with('_'));
    let end = |whole: &str, part: &str| whole.strip_suffix(part).is_some_and(|rest| rest.ends_with('_'));
    let name = &name.replace('-', "_");
    find(&|other| plain(other) == plain(name))
        .or_else(|| find(&|other| part(other, name) || part(name, other)))
        .or_else(|| elsewhere(name, known))
        .or_else(|| find(&|other| end(other, name) || end(name, other)))
        .or_else(|| nearest(name, known))
}

/// Without what tells `templateId`, `template-id` and `template_id` apart.
fn plain(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

fn elsewhere(name: &str, known: &[String]) -> Option<&'static str> {
    let is_known = |path: &str| known.iter().any(|other| path.split('.').next() == Some(other));
    ELSEWHERE.iter().find(|(theirs, ours)| *theirs == name && is_known(ours)).map(|(_, ours)| *ours)
}

/// The name that fewest slips lead to: at most one for every three letters.
fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let others = known.iter().map(|other| (distance(name, other), other));
    let close = |(slips, other): &(usize, &String)| slips * 3 <= name.chars().count().max(other.chars().count());
    others.filter(close).min_by_key(|(slips, _)| *slips).map(|(_, other)| other.as_str())
}

/// Letters added, left out, replaced, or exchanged with their neighbour (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut row = vec![i + 1; b.len() + 1];
        for (j, right) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(left != right);
            row[j + 1] = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *left == b[j - 1] && a[i - 1] == *right {
                row[j + 1] = row[j + 1].min(before[j - 1] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, known: &[&str]) -> Option<String> {
        let known: Vec<String> = known.iter().map(|&name| name.to_owned()).collect();
        meant(name, &known).map(str::to_owned)
    }

    #[test]
    fn slips_of_every_kind_are_understood() {
        let sandbox =
            ["template_id", "snapshot_id", "timeout_seconds", "idle_timeout_seconds", "network", "env", "name"];
        for (name, meant) in [
            ("template", "template_id"),
            ("templateId", "template_id"),
            ("timeout", "timeout_seconds"),
            ("idle-timeout", "idle_timeout_seconds"),
            ("egress", "network.egress"),
            ("environment", "env"),
            ("ttl", "timeout_seconds"),
            ("nmae", "name"),
            ("netwrok", "network"),
        ] {
            assert_eq!(of(name, &sandbox).as_deref(), Some(meant), "{name}");
        }
        assert_eq!(of("memory", &["include_memory"]).as_deref(), Some("include_memory"));
        assert_eq!(of("exposed_port", &["exposed_ports", "name"]).as_deref(), Some("exposed_ports"));
    }

    #[test]
    fn what_is_like_nothing_is_told_what_there_is() {
        let known = ["name".to_owned(), "slug".to_owned()];
        assert_eq!(unknown("field", "colour", &known), "no such field; there are: name, slug");
        assert_eq!(unknown("field", "names", &known), "no such field; name may be meant");
        assert_eq!(unknown("parameter", "force", &[]), "no such parameter; there are none here");
        // A path is meant only where it begins with what is known.
        assert_eq!(of("egress", &["name"]), None);
        assert_eq!(of("x", &["y"]), None);
    }

    #[test]
    fn distances() {
        for (a, b, slips) in [("", "", 0), ("a", "", 1), ("abc", "acb", 1), ("kitten", "sitting", 3), ("ä", "a", 1)] {
            assert_eq!((distance(a, b), distance(b, a)), (slips, slips), "{a} {b}");
        }
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shown(&"ü".repeat(64)), "ü".repeat(64));
        assert_eq!(shown(&"ü".repeat(65)), format!("{}…", "ü".repeat(64)));
        assert_eq!(of(&"a".repeat(65), &["a"]), None);
    }
}
