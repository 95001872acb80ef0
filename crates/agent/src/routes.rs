//! Every route, and the methods it has.

use http::Method;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Boot,
    Identity,
    Freeze,
    Thaw,
    Metrics,
    Unpack,
    Pack,
    Run,
    StatRoot,
    Tunnel,
    ReadFile,
    WriteFile,
    List,
    Stat,
    Exists,
    Mkdir,
    Remove,
    Move,
    Watch,
    OpenWatch,
    PollWatch,
    CloseWatch,
    Archive,
    Extract,
    Command,
    StartProcess,
    Processes,
    Process,
    EndProcess,
    Logs,
    Stdin,
    Signal,
    Resize,
    Terminal,
}

impl Route {
    /// Whether only the host may ask for it, and does so before there is an identity.
    pub fn is_control(self) -> bool {
        matches!(
            self,
            Self::Boot
                | Self::Identity
                | Self::Freeze
                | Self::Thaw
                | Self::Metrics
                | Self::Unpack
                | Self::Pack
                | Self::Run
                | Self::StatRoot
        )
    }
}

/// `{}` stands for one part of the path.
const TABLE: &[(&str, &[(Method, Route)])] = &[
    ("/runtime/commands", &[(Method::POST, Route::Command)]),
    ("/runtime/files/content", &[(Method::GET, Route::ReadFile), (Method::PUT, Route::WriteFile)]),
    ("/runtime/files/list", &[(Method::GET, Route::List)]),
    ("/runtime/files/stat", &[(Method::GET, Route::Stat)]),
    ("/runtime/files/exists", &[(Method::GET, Route::Exists)]),
    ("/runtime/files/mkdir", &[(Method::POST, Route::Mkdir)]),
    ("/runtime/files/remove", &[(Method::POST, Route::Remove)]),
    ("/runtime/files/move", &[(Method::POST, Route::Move)]),
    ("/runtime/files/watch", &[(Method::GET, Route::Watch)]),
    ("/runtime/files/watches", &[(Method::POST, Route::OpenWatch)]),
    ("/runtime/files/watches/{}", &[(Method::GET, Route::PollWatch), (Method::DELETE, Route::CloseWatch)]),
    ("/runtime/files/archive", &[(Method::POST, Route::Archive)]),
    ("/runtime/files/extract", &[(Method::POST, Route::Extract)]),
    ("/runtime/processes", &[(Method::GET, Route::Processes), (Method::POST, Route::StartProcess)]),
    ("/runtime/processes/{}", &[(Method::GET, Route::Process), (Method::DELETE, Route::EndProcess)]),
    ("/runtime/processes/{}/logs", &[(Method::GET, Route::Logs)]),
    ("/runtime/processes/{}/stdin", &[(Method::POST, Route::Stdin)]),
    ("/runtime/processes/{}/signal", &[(Method::POST, Route::Signal)]),
    ("/runtime/processes/{}/resize", &[(Method::POST, Route::Resize)]),
    ("/runtime/terminal", &[(Method::POST, Route::Terminal)]),
    ("/tunnel/{}", &[(Method::POST, Route::Tunnel)]),
    ("/control/metrics", &[(Method::GET, Route::Metrics)]),
    ("/control/identity", &[(Method::PUT, Route::Identity)]),
    ("/control/freeze", &[(Method::POST, Route::Freeze)]),
    ("/control/thaw", &[(Method::POST, Route::Thaw)]),
    ("/control/boot", &[(Method::POST, Route::Boot)]),
    ("/control/unpack", &[(Method::POST, Route::Unpack)]),
    ("/control/pack", &[(Method::POST, Route::Pack)]),
    ("/control/run", &[(Method::POST, Route::Run)]),
    ("/control/stat", &[(Method::GET, Route::StatRoot)]),
];

/// Why no route was found.
#[derive(Debug, PartialEq, Eq)]
pub enum Missing {
    /// No such path.
    Path,
    /// The path has only these methods, in the form of `Allow`.
    Method(String),
}

/// The route of a request, and the part of the path at `{}`.
pub fn find<'a>(method: &Method, path: &'a str) -> Result<(Route, &'a str), Missing> {
    let matching = TABLE.iter().find_map(|(pattern, methods)| Some((matches(pattern, path)?, methods)));
    let (parameter, methods) = matching.ok_or(Missing::Path)?;
    if let Some((_, route)) = methods.iter().find(|(known, _)| known == method) {
        return Ok((*route, parameter));
    }
    let allow = methods.iter().map(|(known, _)| known.as_str()).collect::<Vec<_>>();
    Err(Missing::Method(allow.join(", ")))
}

/// What is asked about the whole machine comes below `/machine`, and has the routes of `/runtime`: an agent that knows
/// nothing of it refuses, where it would pass over a parameter and take another file for the one that was meant.
fn matches<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
    let (pattern, path) = match path.strip_prefix("/machine/") {
        Some(path) => (pattern.strip_prefix("/runtime/")?, path),
        None => (pattern, path),
    };
    let Some((before, after)) = pattern.split_once("{}") else { return (pattern == path).then_some("") };
    let parameter = path.strip_prefix(before)?.strip_suffix(after)?;
    (!parameter.is_empty() && !parameter.contains('/')).then_some(parameter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_route_for_each_method() {
        assert_eq!(find(&Method::GET, "/runtime/processes/7/logs"), Ok((Route::Logs, "7")));
        assert_eq!(find(&Method::DELETE, "/runtime/processes/7"), Ok((Route::EndProcess, "7")));
        assert_eq!(find(&Method::POST, "/tunnel/80"), Ok((Route::Tunnel, "80")));
        assert_eq!(find(&Method::GET, "/machine/processes/7/logs"), Ok((Route::Logs, "7")));
        for path in ["/machine/tunnel/80", "/machine/control/boot", "/machine/runtime/commands", "/machine/"] {
            assert_eq!(find(&Method::POST, path), Err(Missing::Path), "{path}");
        }
        for path in ["/", "/runtime", "/runtime/processes/", "/runtime/processes//logs", "/runtime/processes/7/8"] {
            assert_eq!(find(&Method::GET, path), Err(Missing::Path), "{path}");
        }
        assert_eq!(find(&Method::PATCH, "/runtime/files/content"), Err(Missing::Method("GET, PUT".into())));
    }

    #[test]
    fn no_pattern_hides_another() {
        for (index, (pattern, _)) in TABLE.iter().enumerate() {
            let path = pattern.replace("{}", "1");
            assert_eq!(TABLE.iter().position(|(other, _)| matches(other, &path).is_some()), Some(index), "{path}");
        }
    }
}
