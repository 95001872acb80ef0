//! Files that use each other in a circle cannot be understood, moved or tested one at a time.
//!
//! A file uses another one where a path of its code, by `use` or in place, leads to what is written there. A path is
//! followed through what other files export, so that a front door is not taken for what stands behind it. Methods are
//! not followed: nothing in the text tells whose they are.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{lines, sources};

/// Circles that stay, and why: the files of one, or a folder within which there may be some.
const HARMLESS: [(&[&str], &str); 9] = [
    (&["server/src/services/gateway/"], "the service makes what the path of a request holds, and is held by it"),
    (
        &[
            "server/src/db/connect.rs",
            "server/src/db/json.rs",
            "server/src/db/leader/group.rs",
            "server/src/db/leader/mod.rs",
            "server/src/db/leader/settled.rs",
            "server/src/db/leader/watch.rs",
            "server/src/db/leader/writer.rs",
            "server/src/db/listing.rs",
            "server/src/db/migrate.rs",
            "server/src/db/mod.rs",
            "server/src/db/query.rs",
            "server/src/db/reader.rs",
            "server/src/db/row.rs",
        ],
        "a database, a transaction and a statement are made of each other; the files tell two servers apart",
    ),
    (&["server/src/http/auth.rs", "server/src/http/authority.rs"], "a grant is asked for again for whom it let in"),
    (
        &["server/src/app.rs", "server/src/app/doors.rs", "server/src/app/standby.rs"],
        "the doors of the service open onto what the service is, and stand while it stands by",
    ),
    (
        &[
            "host/src/sandbox/qemu/captured.rs",
            "host/src/sandbox/qemu/checkpoint.rs",
            "host/src/sandbox/qemu/machine.rs",
            "host/src/sandbox/qemu/mod.rs",
            "host/src/sandbox/qemu/stalled.rs",
            "host/src/sandbox/qemu/warm.rs",
        ],
        "one engine, whose methods stand in a file for each thing that they act on",
    ),
    (
        &[
            "server/src/services/sandbox/reconcile/sandbox.rs",
            "server/src/services/sandbox/reconcile/sandbox/record.rs",
        ],
        "one reconciler: what it does, and what it records of it",
    ),
    (
        &[
            "server/src/services/sandbox/store/layer.rs",
            "server/src/services/sandbox/store/mod.rs",
            "server/src/services/sandbox/store/sandbox.rs",
        ],
        "what a row lets go of is looked for in all rows",
    ),
    (
        &["server/src/services/vm/reconcile/vm.rs", "server/src/services/vm/reconcile/vm/record.rs"],
        "one reconciler: what it does, and what it records of it",
    ),
    (
        &["testkit/src/upstream.rs", "testkit/src/upstream/wire.rs"],
        "one server for tests: what it was asked, and how it speaks",
    ),
];

/// The names of a path, in order.
type Names = Vec<String>;

/// What a file says of itself and of others.
#[derive(Default)]
struct Module {
    file: String,
    /// What it imports for itself, by the name it has here.
    imports: HashMap<String, Names>,
    /// What it exports, though it may be written elsewhere.
    exports: HashMap<String, Names>,
    /// Modules all of which it exports.
    exports_all: Vec<Names>,
    /// Every path in its code.
    paths: Vec<Names>,
    /// What is written in it.
    items: HashSet<String>,
}

/// The words and signs of a file's code, without comments, tests and texts.
fn words(text: &str) -> Names {
    let code: Vec<char> = lines(text).collect::<Vec<_>>().join("\n").chars().collect();
    let (mut words, mut at) = (Vec::new(), 0);
    while let Some(&first) = code.get(at) {
        let rest = &code[at..];
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = match first {
            '/' if rest.get(1) == Some(&'/') => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
            'r' if matches!(rest.get(1), Some('"' | '#')) && raw_text(rest).is_some() => {
                raw_text(rest).expect("a text")
            }
            '"' => text_until(rest, '"'),
            // A lifetime has no second quote.
            '\'' if rest.get(1) == Some(&'\\') || rest.get(2) == Some(&'\'') => text_until(rest, '\''),
            ':' if rest.get(1) == Some(&':') => 2,
            c if is_word(c) => rest.iter().position(|c| !is_word(*c)).unwrap_or(rest.len()),
            _ => 1,
        };
        if first == ':' || is_word(first) && !rest[..length].contains(&'"') || "{}();,*<.!=#".contains(first) {
            words.push(rest[..length].iter().collect());
        }
        at += length;
    }
    words
}

/// How long a text is, with its quotes.
fn text_until(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while let Some(c) = rest.get(at) {
        match c {
            '\\' => at += 2,
            c if *c == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// How long a raw text is, if one begins here.
fn raw_text(rest: &[char]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    let begin = hashes + 2;
    (rest.get(begin - 1) == Some(&'"')).then_some(())?;
    let end = |at: &usize| rest[*at] == '"' && rest[at + 1..].iter().take_while(|c| **c == '#').count() >= hashes;
    (begin..rest.len()).find(end).map(|at| at + 1 + hashes)
}

/// Reads the tree of a `use` from a word on: each path with the name that it has from now on. Answers where it ends.
fn read_use(words: &[String], mut at: usize, before: &[String], found: &mut Vec<(Names, String)>) -> usize {
    let mut path = before.to_vec();
    loop {
        match words.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while words.get(at).is_some_and(|word| word != "}") {
                    at = read_use(words, at, &path, found);
                    at += usize::from(words.get(at).is_some_and(|word| word == ","));
                }
                return at + 1;
            }
            Some("::") => at += 1,
            Some("as") => {
                let name = words.get(at + 1).cloned().unwrap_or_default();
                found.push((path, name));
                return at + 2;
            }
            Some(word) if ![",", "}", ";"].contains(&word) => {
                path.push(word.to_owned());
                at += 1;
            }
            _ => {
                path.pop_if(|last| last == "self");
                let name = path.last().cloned().unwrap_or_default();
                found.push((path, name));
                return at;
            }
        }
    }
}

/// Where what follows `pub(…)` begins.
fn behind_visibility(words: &[String], at: usize) -> usize {
    let is_narrow = words.get(at).is_some_and(|word| word == "(")
        && words.get(at + 1).is_some_and(|word| ["in", "super", "crate", "self"].contains(&word.as_str()));
    let end = || words[at..].iter().position(|word| word == ")").map(|length| at + length + 1);
    is_narrow.then(end).flatten().unwrap_or(at)
}

impl Module {
    fn read(file: &str, text: &str) -> Self {
        const ITEMS: [&str; 9] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules"];
        let words = words(text);
        let mut module = Self { file: file.to_owned(), ..Self::default() };
        let (mut at, mut is_public, mut used) = (0, false, Vec::new());
        while let Some(word) = words.get(at) {
            match word.as_str() {
                "pub" => {
                    at = behind_visibility(&words, at + 1);
                    is_public = true;
                    continue;
                }
                // What a closure or a future captures is no import.
                "use" if words.get(at + 1).is_none_or(|next| next != "<") => {
                    let mut found = Vec::new();
                    at = read_use(&words, at + 1, &[], &mut found);
                    if is_public {
                        module.export(found);
                    } else {
                        used.extend(found);
                    }
                }
                word if ITEMS.contains(&word) => {
                    module.items.extend(words.get(at + 1).filter(|name| *name != "!").cloned());
                    at += 1;
                }
                _ => at = module.read_path(&words, at),
            }
            is_public = false;
        }
        for (path, name) in used {
            // Who goes on from an imported module uses what is named behind it, and not the module itself.
            if !module.paths.iter().any(|path| path[0] == name) {
                module.paths.push(path.clone());
            }
            module.imports.insert(name, path);
        }
        module
    }

    fn export(&mut self, found: Vec<(Names, String)>) {
        for (mut path, name) in found {
            if name == "*" {
                path.pop();
                self.exports_all.push(path);
            } else {
                self.exports.insert(name, path);
            }
        }
    }

    /// Notes the path that begins at a word, if one does, and answers where it ends.
    fn read_path(&mut self, words: &[String], at: usize) -> usize {
        let is_name =
            |at: usize| words.get(at).is_some_and(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'));
        let mut end = at;
        if is_name(at) {
            while words.get(end + 1).is_some_and(|word| word == "::") && is_name(end + 2) {
                end += 2;
            }
        }
        let goes_on = at > 0 && ["::", "."].contains(&words[at - 1].as_str());
        if end > at && !goes_on {
            self.paths.push(words[at..=end].iter().step_by(2).cloned().collect());
        }
        end + 1
    }
}

/// The modules of a crate, by their paths.
struct Crate(BTreeMap<Names, Module>);

impl Crate {
    /// Of files by their paths below `crates/`.
    fn of(name: &str, files: &[(String, String)]) -> Self {
        let module = |(file, text): &(String, String)| {
            let inside = file.strip_prefix(&format!("{name}/src/"))?.strip_suffix(".rs")?;
            let mut path: Names = inside.split('/').map(str::to_owned).collect();
            path.pop_if(|last| last == "mod");
            if ["lib", "main"].iter().any(|root| path == [*root]) {
                path.clear();
            }
            let is_test = path.iter().any(|name| name == "tests");
            (!is_test).then(|| (path, Module::read(file, text)))
        };
        Self(files.iter().filter_map(module).collect())
    }

    /// A path as it is from the crate's root, if it leads to somewhere in the crate.
    fn absolute(&self, here: &Names, path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([here, rest].concat()),
            "super" => {
                let ups = path.iter().take_while(|name| *name == "super").count();
                Some([&here[..here.len().checked_sub(ups)?], &path[ups..]].concat())
            }
            _ if self.0.contains_key(&[here, &path[..1]].concat()) => Some([here, path].concat()),
            name => {
                let module = self.0.get(here)?;
                let known = module.exports.get(name).or_else(|| module.imports.get(name))?;
                // A crate that has the name of what is imported of it.
                let is_other = known.first() == Some(first);
                let begin = if is_other { None } else { self.absolute(here, known) };
                begin.map(|begin| [&begin, rest].concat())
            }
        }
    }

    /// The module in which is written what a path from the root leads to.
    fn home(&self, path: &[String], steps: usize) -> Option<Names> {
        let length = (0..=path.len()).rev().find(|length| self.0.contains_key(&path[..*length]))?;
        let (here, rest) = (path[..length].to_vec(), &path[length..]);
        let Some(name) = rest.first().filter(|_| steps > 0) else { return Some(here) };
        let module = &self.0[&here];
        let onwards = |begin: Names| self.home(&[&begin, &rest[1..]].concat(), steps - 1);
        if let Some(exported) = module.exports.get(name) {
            return self.absolute(&here, exported).and_then(onwards);
        }
        for all in &module.exports_all {
            let begin = self.absolute(&here, all);
            if let Some(begin) = begin.filter(|begin| self.0.get(begin).is_some_and(|m| m.items.contains(name))) {
                return self.home(&[&begin, rest].concat(), steps - 1);
            }
        }
        // Children see what their parent imports.
        match module.imports.get(name).and_then(|imported| self.absolute(&here, imported)) {
            Some(begin) if begin != path => onwards(begin),
            _ => Some(here),
        }
    }

    /// The modules that a module uses.
    fn uses(&self, here: &Names, module: &Module) -> BTreeSet<Names> {
        let home = |path: &Names| self.home(&self.absolute(here, path)?, 10);
        module.paths.iter().filter_map(home).filter(|used| used != here).collect()
    }

    /// Every circle, each by its files.
    fn circles(&self) -> Vec<BTreeSet<&str>> {
        let uses: BTreeMap<&Names, BTreeSet<Names>> =
            self.0.iter().map(|(here, module)| (here, self.uses(here, module))).collect();
        let reached = |begin: &Names| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![begin]);
            while let Some(here) = next.pop() {
                next.extend(uses[here].iter().filter(|used| reached.insert((*used).clone())));
            }
            reached
        };
        let reached: BTreeMap<&Names, BTreeSet<Names>> = uses.keys().map(|here| (*here, reached(here))).collect();
        let mut circles = BTreeSet::new();
        for (here, all) in &reached {
            let circle: BTreeSet<_> = all.iter().filter(|other| reached[other].contains(*here)).collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        let files = |circle: BTreeSet<&Names>| circle.into_iter().map(|path| self.0[path].file.as_str()).collect();
        circles.into_iter().map(files).collect()
    }
}

/// Whether a circle is one that may stay.
fn is_of(circle: &BTreeSet<&str>, known: &[&str]) -> bool {
    circle.iter().all(|file| known.iter().any(|known| file == known || known.ends_with('/') && file.starts_with(known)))
}

#[test]
fn files_do_not_use_each_other_in_circles() {
    let files = sources("");
    let crates: BTreeSet<_> =
        files.iter().filter_map(|(file, _)| file.split_once("/src/")).map(|(name, _)| name).collect();
    let mut there = BTreeSet::new();
    for name in crates {
        for circle in Crate::of(name, &files).circles() {
            let known = HARMLESS.iter().position(|(known, _)| is_of(&circle, known));
            assert!(
                known.is_some(),
                "these files use each other in a circle: {circle:?}. Give what closes it a file of its own; HARMLESS \
                 lists the circles that stay, with their reasons"
            );
            there.extend(known);
        }
    }
    for (index, (known, why)) in HARMLESS.iter().enumerate() {
        assert!(there.contains(&index), "{known:?} is no circle any more ({why}): take it out of HARMLESS");
    }
}

/// The circles of a crate of a few files.
fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let files: Vec<_> = files.iter().map(|(file, text)| (format!("a/src/{file}"), (*text).to_owned())).collect();
    let found = Crate::of("a", &files);
    let names = |circle: BTreeSet<&str>| circle.into_iter().map(|file| file.replace("a/src/", "")).collect();
    found.circles().into_iter().map(names).collect()
}

#[test]
fn circles_are_found_whichever_way_a_path_goes() {
    let both = [["b.rs", "c.rs"]];
    let root = ("lib.rs", "mod b;\nmod c;\n");
    let uses_c = ("b.rs", "use crate::c::C;\npub struct B;\n");
    for back in [
        "use crate::b::B;\npub struct C;\n",
        "use super::{b::{self, B}};\npub struct C;\n",
        "pub(crate) struct C;\nfn c() { let _ = crate::b::B; }\n",
        "use crate::b;\npub struct C;\nfn c(_: b::B) {}\n",
        "use crate::b as other;\npub struct C;\nfn c<'a>(_: &'a other::B) {}\n",
    ] {
        assert_eq!(circles_of(&[root, uses_c, ("c.rs", back)]), both, "{back}");
    }
    for none in [
        "pub struct C;\n// use crate::b::B;\n",
        "pub struct C;\nconst TEXT: &str = \"a \\\n crate::b::B\";\nconst RAW: &str = r#\"\"crate::b::B\"#;\n",
        "pub struct C;\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n",
        "pub struct C;\npub(in crate::b) struct D;\n",
        "use other::b::B;\npub struct C;\nconst QUOTE: char = '\"';\n",
    ] {
        assert!(circles_of(&[root, uses_c, ("c.rs", none)]).is_empty(), "{none}");
    }
}

#[test]
fn a_front_door_is_not_what_stands_behind_it() {
    let child = ("b/child.rs", "use crate::b::B;\npub fn go(_: B) {}\n");
    let own = ("b/mod.rs", "mod child;\npub struct B;\npub fn go() { child::go(B) }\n");
    assert_eq!(circles_of(&[("lib.rs", "mod b;\n"), own, child]), [["b/child.rs", "b/mod.rs"]]);
    let door = ("b/mod.rs", "mod child;\nmod own;\npub use own::B;\npub fn go() { child::go(B) }\n");
    let moved = ("b/own.rs", "pub struct B;\n");
    assert!(circles_of(&[("lib.rs", "mod b;\n"), door, moved, child]).is_empty());
    let all = ("b/mod.rs", "mod child;\nmod own;\npub use own::*;\npub fn go() { child::go(B) }\n");
    assert!(circles_of(&[("lib.rs", "mod b;\n"), all, moved, child]).is_empty());
    let knows = ("b/own.rs", "use super::child;\npub struct B;\nfn go() { child::go(B) }\n");
    assert_eq!(circles_of(&[("lib.rs", "mod b;\n"), door, knows, child]), [["b/child.rs", "b/own.rs"]]);
}
