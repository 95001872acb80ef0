//! What `COPY` and `ADD` result in: patterns, a destination, and the owner of the copies.

use super::instruction::Transfer;
use super::pattern::Pattern;
use super::scope::Scope;
use super::step::{Copy, Inline, Origin};

/// Resolves a transfer whose origin is known.
pub fn resolve(transfer: &Transfer, origin: Origin, scope: &mut Scope<'_>) -> Result<Copy, String> {
    let mut sources = Vec::with_capacity(transfer.sources.len());
    for source in &transfer.sources {
        let source = scope.word(source)?;
        if source.is_empty() {
            return Err("a source is empty; a variable in it has no value".to_owned());
        }
        let pattern = Pattern::parse(&source)?;
        sources.push(
            pattern.literal().map_or(source, |literal| if literal.is_empty() { ".".into() } else { escape(&literal) }),
        );
    }
    let mut inline = Vec::with_capacity(transfer.inline.len());
    for heredoc in &transfer.inline {
        let content = if heredoc.expand { scope.heredoc(&heredoc.content)? } else { heredoc.content.clone() };
        inline.push(Inline { name: heredoc.name.clone(), content });
    }
    let to = scope.word(&transfer.to)?;
    if to.is_empty() {
        return Err("the destination is empty; a variable in it has no value".to_owned());
    }
    let into = to.ends_with('/') || to == "." || to.ends_with("/.");
    let several = sources.len() + inline.len() > 1;
    if several && !into {
        return Err(format!("several sources need a directory to go to; write '{to}/'"));
    }
    let owner = transfer.chown.as_ref().map(|owner| scope.word(owner)).transpose()?;
    if let Some(owner) = &owner {
        account(owner).map_err(|why| format!("--chown {why}"))?;
    }
    let mode = transfer.chmod.as_ref().map(|mode| scope.word(mode)).transpose()?;
    let mode = mode.map(|mode| permissions(&mode)).transpose()?;
    let to = absolute(&to, scope.config.directory())?;
    Ok(Copy { origin, sources, inline, to, into, owner, mode, extract: transfer.add })
}

/// A pattern that matches exactly this path.
fn escape(path: &str) -> String {
    let special = |c| matches!(c, '*' | '?' | '[' | '\\');
    path.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

/// An absolute path, taken relative to a directory, without `.`, `..` and empty parts.
pub fn absolute(path: &str, from: &str) -> Result<String, String> {
    if path.contains('\0') {
        return Err("a path cannot contain the character NUL".to_owned());
    }
    let start = if path.starts_with('/') { "" } else { from };
    let mut parts: Vec<&str> = Vec::new();
    for part in start.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let path = format!("/{}", parts.join("/"));
    if path.len() >= 4096 { Err("a path may have 4,095 bytes at most".to_owned()) } else { Ok(path) }
}

/// Whether a text names an account, `name[:group]` or numbers.
pub fn account(text: &str) -> Result<(), String> {
    let (user, group) = text.split_once(':').unwrap_or((text, "0"));
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '$');
    let good = |name: &str| !name.is_empty() && name.len() <= 64 && !name.starts_with('-') && name.chars().all(fits);
    if good(user) && good(group) {
        return Ok(());
    }
    Err("takes a user such as 'app', 'app:app' or '1000:1000'".to_owned())
}

fn permissions(text: &str) -> Result<u32, String> {
    let digits = (3..=5).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o7777);
    mode.ok_or_else(|| format!("--chmod takes permissions in octal, such as 755, not '{text}'"))
}
