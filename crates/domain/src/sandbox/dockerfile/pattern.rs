//! Patterns of paths, as `COPY` and `.dockerignore` have them.
//!
//! `*` and `?` match characters other than `/`, `[a-z]` and `[^a-z]` one character of a class, `\` makes the next
//! character literal, and a part `**` matches any number of directories.

/// Most bytes of a pattern.
pub const MAX_PATTERN: usize = 4096;
/// Most patterns of a `.dockerignore`.
pub const MAX_PATTERNS: usize = 1000;

/// One pattern, relative and without empty parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// `**`
    Any,
    Name(Vec<Item>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Char(char),
    One,
    Many,
    Class { not: bool, ranges: Vec<(char, char)> },
}

impl Pattern {
    /// Parses a pattern. Drops `.` and empty parts; `..` removes the part before it.
    ///
    /// # Errors
    /// A sentence, if a class is not closed, the pattern is too long, or `..` leads out.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_PATTERN {
            return Err(format!("a pattern may have {MAX_PATTERN} bytes at most"));
        }
        let mut parts = Vec::new();
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop().ok_or_else(|| format!("'{text}' leads out of the build's files"))?),
                "**" => parts.push(Part::Any),
                name => parts.push(Part::Name(items(name)?)),
            }
        }
        Ok(Self(parts))
    }

    /// Whether it matches only the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Its path, if it matches exactly one.
    pub fn literal(&self) -> Option<String> {
        let name = |part: &Part| match part {
            Part::Any => None,
            Part::Name(items) => {
                items.iter().map(|item| if let Item::Char(c) = item { Some(*c) } else { None }).collect()
            }
        };
        Some(self.0.iter().map(name).collect::<Option<Vec<String>>>()?.join("/"))
    }

    /// The directory that contains everything it matches, and how deep below at most; any depth with `**`.
    pub fn within(&self) -> (String, Option<usize>) {
        let plain =
            |part: &&Part| matches!(part, Part::Name(items) if items.iter().all(|i| matches!(i, Item::Char(_))));
        let count = self.0.iter().take_while(plain).count();
        let above = Self(self.0[..count].to_vec()).literal().unwrap_or_default();
        let depth = if self.0.contains(&Part::Any) { None } else { Some(self.0.len() - count) };
        (above, depth)
    }

    /// Whether it may match something below a directory without matching the whole directory.
    fn reaches_below(&self, directory: &str) -> bool {
        let parts = |path: &str| path.split('/').filter(|part| !part.is_empty()).map(ToOwned::to_owned).collect();
        let (above, depth) = self.within();
        let (above, directory): (Vec<String>, Vec<String>) = (parts(&above), parts(directory));
        let is_on_the_way = above.starts_with(&directory) || directory.starts_with(&above);
        is_on_the_way && depth.is_none_or(|depth| above.len() + depth > directory.len())
    }

    /// Whether it matches a path, which is relative and without `.` or empty parts.
    pub fn matches(&self, path: &str) -> bool {
        self.walk(path).last() == Some(&true)
    }

    /// Whether it matches a path or a directory above it.
    pub fn covers(&self, path: &str) -> bool {
        self.walk(path).contains(&true)
    }

    /// For each leading part of a path, whether the whole pattern matches it.
    fn walk(&self, path: &str) -> Vec<bool> {
        let mut states = self.closure(vec![true]);
        let mut found = Vec::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let mut next = vec![false; self.0.len() + 1];
            for (at, part) in self.0.iter().enumerate().filter(|(at, _)| states[*at]) {
                match part {
                    Part::Any => next[at] = true,
                    Part::Name(items) if fits(items, name) => next[at + 1] = true,
                    Part::Name(_) => {}
                }
            }
            states = self.closure(next);
            found.push(states[self.0.len()]);
        }
        if found.is_empty() {
            found.push(states[self.0.len()]);
        }
        found
    }

    /// Adds the states after a `**`, since that may match nothing.
    fn closure(&self, mut states: Vec<bool>) -> Vec<bool> {
        states.resize(self.0.len() + 1, false);
        for (at, part) in self.0.iter().enumerate() {
            if states[at] && *part == Part::Any {
                states[at + 1] = true;
            }
        }
        states
    }
}

fn items(text: &str) -> Result<Vec<Item>, String> {
    let mut items = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        items.push(match c {
            '*' if items.last() == Some(&Item::Many) => continue,
            '*' => Item::Many,
            '?' => Item::One,
            '\\' => Item::Char(chars.next().ok_or("a pattern cannot end with '\\'")?),
            '[' => {
                class(&mut chars).ok_or_else(|| format!("'[' is never closed in '{text}'; write '[[]' for itself"))?
            }
            c => Item::Char(c),
        });
    }
    Ok(items)
}

fn class(chars: &mut std::str::Chars<'_>) -> Option<Item> {
    let mut ranges = Vec::new();
    let not = chars.as_str().starts_with(['^', '!']);
    if not {
        chars.next();
    }
    loop {
        let low = match chars.next()? {
            ']' if !ranges.is_empty() => return Some(Item::Class { not, ranges }),
            '\\' => chars.next()?,
            c => c,
        };
        let mut high = low;
        if chars.as_str().starts_with('-') && !chars.as_str().starts_with("-]") {
            chars.next();
            high = match chars.next()? {
                '\\' => chars.next()?,
                c => c,
            };
        }
        ranges.push((low, high));
    }
}

/// Whether the items match a name: greedy, with one place to backtrack to.
fn fits(items: &[Item], name: &str) -> bool {
    let name = name.chars().collect::<Vec<_>>();
    let (mut item, mut at) = (0, 0);
    let mut back = None;
    loop {
        match items.get(item) {
            Some(Item::Many) => {
                back = Some((item, at));
                item += 1;
                continue;
            }
            Some(one) if at < name.len() && one.is(name[at]) => {
                item += 1;
                at += 1;
                continue;
            }
            None if at == name.len() => return true,
            _ => {}
        }
        let Some((star, from)) = back.filter(|(_, from)| *from < name.len()) else { return false };
        back = Some((star, from + 1));
        (item, at) = (star + 1, from + 1);
    }
}

impl Item {
    fn is(&self, c: char) -> bool {
        match self {
            Self::Char(wanted) => *wanted == c,
            Self::One => true,
            Self::Many => false,
            Self::Class { not, ranges } => ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *not,
        }
    }
}

/// What a `.dockerignore` excludes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignore(Vec<(bool, Pattern)>);

impl Ignore {
    /// Parses a `.dockerignore`; a line that begins with `!` includes again what an earlier one excluded.
    ///
    /// # Errors
    /// A sentence with the number of the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut patterns = Vec::new();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            let line = line.trim();
            let (back, line) = line.strip_prefix('!').map_or((false, line), |line| (true, line.trim()));
            let pattern = Pattern::parse(line).map_err(|why| format!(".dockerignore, line {}: {why}.", index + 1))?;
            if !pattern.is_root() {
                patterns.push((back, pattern));
            }
            if patterns.len() > MAX_PATTERNS {
                return Err(format!("A .dockerignore may have {MAX_PATTERNS} patterns at most."));
            }
        }
        Ok(Self(patterns))
    }

    /// Whether it excludes a path.
    pub fn leaves_out(&self, path: &str) -> bool {
        self.0.iter().rev().find(|(_, pattern)| pattern.covers(path)).is_some_and(|(back, _)| !back)
    }

    /// Whether it may include something below an excluded directory again. If not, the build need not look there.
    pub fn takes_back_below(&self, directory: &str) -> bool {
        self.0.iter().any(|(back, pattern)| *back && pattern.reaches_below(directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(path)
    }

    #[test]
    fn patterns_match_what_they_say() {
        for (pattern, path) in [
            ("a", "a"),
            ("./a//b/", "a/b"),
            ("a/../b", "b"),
            ("*", "abc"),
            ("*.go", "x.go"),
            ("a*b*c", "aXbYbc"),
            ("?b", "ab"),
            ("[a-c]x[^0-9]", "bxz"),
            (r"\*[\]]", "*]"),
            ("**", "a/b/c"),
            ("**/x", "x"),
            ("**/x", "a/b/x"),
            ("a/**/x", "a/x"),
            ("a/**/x", "a/b/c/x"),
            ("a/**", "a/b"),
            ("ä?", "äö"),
            ("", ""),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in
            [("*", "a/b"), ("a", "a/b"), ("a?", "a/"), ("[^a]", "a"), ("*.go", "x.goo"), ("**/x", "xx"), ("a/b", "a")]
        {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn broken_patterns_are_refused() {
        for bad in ["[", "[a", "a\\", "..", "a/../.."] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
        assert!(Pattern::parse(&"a".repeat(MAX_PATTERN)).is_ok());
        assert!(Pattern::parse(&"a".repeat(MAX_PATTERN + 1)).is_err());
        assert_eq!(Pattern::parse("a/./b").unwrap().literal().as_deref(), Some("a/b"));
        assert_eq!(Pattern::parse("a/*").unwrap().literal(), None);
        assert_eq!(Pattern::parse("a/b/*/c*").unwrap().within(), ("a/b".into(), Some(2)));
        assert_eq!(Pattern::parse("a/**/c*").unwrap().within(), ("a".into(), None));
    }

    #[test]
    fn the_last_line_that_speaks_of_a_path_decides() {
        let ignore =
            Ignore::parse("# no\n\nnode_modules\n*.md\n!README.md\n/dist/\n**/*.tmp\nsecret*\n!a/b\n").unwrap();
        for left_out in ["node_modules", "node_modules/a/b.js", "x.md", "dist/app", "c/x.tmp", "secrets/k"] {
            assert!(ignore.leaves_out(left_out), "{left_out}");
        }
        for kept in ["README.md", "src/x.md", "src/node_modules", "a", "a/b/c.tmp", "a/b/c"] {
            assert!(!ignore.leaves_out(kept), "{kept}");
        }
        assert!(Ignore::parse("**/*.tmp").unwrap().leaves_out("a/b.tmp/c"));
        assert!(Ignore::parse("a\n[").unwrap_err().contains("line 2"));
        assert!(Ignore::parse(&"a\n".repeat(MAX_PATTERNS)).is_ok());
        assert!(Ignore::parse(&"a\n".repeat(MAX_PATTERNS + 1)).is_err());
    }

    proptest! {
        #[test]
        fn a_plain_name_matches_itself_and_its_escapes(name in "[a-z*?.\\[]{1,12}", other in "[a-z]{1,3}") {
            let escaped = name.chars().flat_map(|c| ['\\', c]).collect::<String>();
            let (pattern, below) = (Pattern::parse(&escaped).unwrap(), format!("{name}/{other}"));
            prop_assert!(pattern.matches(&name) && pattern.covers(&below) && !pattern.matches(&below));
            let (anywhere, twice) = (format!("**/{other}"), format!("{other}/{other}"));
            prop_assert!(matches(&anywhere, &twice));
        }

        #[test]
        fn nothing_makes_it_panic(pattern in r"[ab*?/\\\[\]^\-.!]{0,20}", path in "[ab/.]{0,20}") {
            if let Ok(pattern) = Pattern::parse(&pattern) {
                let _ = (pattern.matches(&path), pattern.covers(&path));
            }
            let _ = Ignore::parse(&pattern).map(|ignore| ignore.leaves_out(&path));
        }
    }
}
