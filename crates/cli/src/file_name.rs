//! Names of things that are made of the names of files.

/// A name of at most so many characters from that of a file or from a URL: `Fedora-Cloud_42.qcow2` is `fedora-cloud-42`.
pub fn slug_of(source: &str, most: usize) -> String {
    let file = source.split(['?', '#']).next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    let stem = [".qcow2", ".img", ".raw"].iter().find_map(|end| file.strip_suffix(end)).unwrap_or(file);
    let text: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    text.trim_matches('-').chars().take(most).collect::<String>().trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::slug_of;

    #[test]
    fn names_of_files() {
        assert_eq!(slug_of("https://example.org/a/Fedora-Cloud_42.qcow2?x=1", 40), "fedora-cloud-42");
        assert_eq!(slug_of("noble-server.img", 40), "noble-server");
        assert_eq!(slug_of("noble-server.img", 6), "noble");
    }
}
