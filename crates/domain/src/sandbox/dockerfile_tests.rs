use std::sync::Arc;

use super::plan::{Copy, Origin, Run};
use super::stages::Given;
use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Dockerfile {
    Dockerfile::parse(text).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

fn wrong(text: &str) -> String {
    match Dockerfile::parse(text) {
        Err(mistakes) => mistakes.to_string(),
        Ok(dockerfile) => match dockerfile.plan(&Given::new(), None, &debian) {
            Err(mistakes) => mistakes.to_string(),
            Ok(plan) => panic!("{text} was understood: {plan:?}"),
        },
    }
}

/// The configuration of these tests' bases.
#[expect(clippy::unnecessary_wraps, reason = "a plan asks whether a base is known")]
fn debian(_: &str) -> Option<ImageConfig> {
    let mut config = ImageConfig { cmd: Some(vec!["bash".into()]), ..ImageConfig::default() };
    config.set("PATH", "/usr/bin:/bin".into());
    Some(config)
}

fn plan_with(text: &str, given: &[(&str, &str)], target: Option<&str>) -> Plan {
    let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    parse(text).plan(&given, target, &debian).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

fn plan(text: &str) -> Plan {
    plan_with(text, &[], None)
}

fn runs(plan: &Plan) -> Vec<&Run> {
    let steps = plan.stages.iter().flat_map(|stage| &stage.steps);
    steps.filter_map(|step| if let Action::Run(run) = &step.action { Some(run) } else { None }).collect()
}

fn copies(plan: &Plan) -> Vec<&Copy> {
    let steps = plan.stages.iter().flat_map(|stage| &stage.steps);
    steps.filter_map(|step| if let Action::Copy(copy) = &step.action { Some(copy) } else { None }).collect()
}

const DAILY: &str = r#"# syntax=docker/dockerfile:1
ARG VERSION=12
FROM debian:${VERSION} AS build
WORKDIR /src
RUN apt-get update && \
    # a comment amid a command
    apt-get install -y \

      gcc
COPY ["main.c", "a file.c", "./"]
RUN ["gcc", "-o", "app", "main.c"]

from debian:${VERSION}
ARG PORT=80
ENV PATH=/opt/bin:$PATH PORT="$PORT" GREETING='hi $PORT'
ENV OLD form  with spaces
LABEL a=b
EXPOSE $PORT/tcp
COPY --from=build --chown=app:app --chmod=0755 /src/app /opt/bin/
USER app
WORKDIR work
RUN app --check
ENTRYPOINT ["app"]
CMD ["--port", "80"]
"#;

#[test]
fn a_daily_dockerfile_becomes_steps() {
    let plan = plan(DAILY);
    assert_eq!(parse(DAILY).images(&Given::new(), None).unwrap(), ["debian:12"]);
    assert_eq!(plan.stages.len(), 2);
    let [apt, gcc, check] = runs(&plan)[..] else { panic!("{plan:?}") };
    assert_eq!(apt.argv, ["/bin/sh", "-c", "apt-get update &&     apt-get install -y       gcc"]);
    assert_eq!((apt.cwd.as_str(), apt.user.as_deref(), apt.network), ("/src", None, true));
    assert_eq!(gcc.argv, ["gcc", "-o", "app", "main.c"]);
    assert_eq!((check.cwd.as_str(), check.user.as_deref()), ("/work", Some("app")));
    assert_eq!(check.env["PATH"], "/opt/bin:/usr/bin:/bin");
    assert_eq!(
        (&*check.env["PORT"], &*check.env["GREETING"], &*check.env["OLD"]),
        ("80", "hi $PORT", "form  with spaces")
    );
    let [sources, app] = copies(&plan)[..] else { panic!("{plan:?}") };
    assert_eq!((sources.sources.as_slice(), sources.to.as_str()), (&["main.c".into(), "a file.c".into()][..], "/src"));
    assert_eq!(app.origin, Origin::Base(Base::Stage(0)));
    assert_eq!((app.owner.as_deref(), app.mode, app.into, &*app.to), (Some("app:app"), Some(0o755), true, "/opt/bin"));
    assert_eq!(plan.config().start_command().as_deref(), Some("app --port 80"));
    assert_eq!((plan.config().user.as_deref(), plan.config().workdir.as_deref()), (Some("app"), Some("/work")));
    let lines = plan.stages[0].steps.iter().map(|step| step.line).collect::<Vec<_>>();
    assert_eq!(lines, [4, 5, 10, 11]);
}

#[test]
fn heredocs_stand_for_scripts_and_files() {
    let text = "FROM base\nARG A=1\nRUN <<EOF\necho $A\n# kept\n\nEOF\nRUN python3 - <<'PY' > out\nprint('$A')\nPY\n\
                RUN --network=none <<-X\n\t#!/usr/bin/env python3\n\tprint(1)\n\tX\n\
                COPY <<a.txt <<'b' more /etc/conf/\nA=$A\na.txt\nA=$A\nb\nRUN echo $((1<<2))\n";
    let plan = plan(text);
    let [shell, python, script, last] = runs(&plan)[..] else { panic!("{plan:?}") };
    assert_eq!(shell.argv, ["/bin/sh", "-c", "echo $A\n# kept\n\n"]);
    assert_eq!(python.argv[2], "python3 - <<'PY' > out\nprint('$A')\nPY\n");
    assert_eq!((script.argv[4].as_str(), script.network), ("#!/usr/bin/env python3\nprint(1)\n", false));
    assert_eq!((last.argv[2].as_str(), &*last.env["A"]), ("echo $((1<<2))", "1"));
    let copy = copies(&plan)[0];
    let inline = copy.inline.iter().map(|file| (file.name.as_str(), file.content.as_str())).collect::<Vec<_>>();
    assert_eq!(inline, [("a.txt", "A=1\n"), ("b", "A=$A\n")]);
    assert_eq!(copy.sources, ["more"]);
    assert!(wrong("FROM base\nRUN <<EOF\necho").contains("line 2: the heredoc 'EOF' has no end"));
}

#[test]
fn arguments_come_from_the_build_the_global_scope_and_defaults_in_this_order() {
    let text = "ARG V=1\nARG W\nFROM base\nRUN a\nARG V\nARG W=w\nARG X\nARG TARGETARCH\nENV E=$V$W$X$TARGETARCH\nENV E=e F=$E\nARG E=no\nRUN b\n";
    let plan = plan_with(text, &[("X", "x"), ("Y", "y")], None);
    let [a, b] = runs(&plan)[..] else { panic!("{plan:?}") };
    assert!(!a.env.contains_key("V"));
    assert_eq!((&*b.env["E"], &*b.env["F"], &*b.env["X"]), ("e", "1wxamd64", "x"));
    assert_eq!(plan.notes.len(), 1);
    assert!(plan.notes[0].message.contains("'Y'"));
    assert_eq!(runs(&plan_with(text, &[("V", "9"), ("W", "8")], None))[1].env["F"], "98amd64");
}

#[test]
fn only_stages_that_are_needed_are_built() {
    let text = "FROM one AS a\nRUN a\nFROM two AS unused\nRUN b\nFROM a AS c\nRUN c\nFROM scratch\nCOPY --from=C /x /\nCOPY --from=0 /y /\nCOPY --from=three:1 / /\n";
    let plan = plan(text);
    let bases = plan.stages.iter().map(|stage| stage.base.clone()).collect::<Vec<_>>();
    assert_eq!(bases, [Base::Image("one".into()), Base::Stage(0), Base::Scratch]);
    let origins = copies(&plan).into_iter().map(|copy| copy.origin.clone()).collect::<Vec<_>>();
    let from = |base| Origin::Base(base);
    assert_eq!(origins, [from(Base::Stage(1)), from(Base::Stage(0)), from(Base::Image("three:1".into()))]);
    assert_eq!(parse(text).images(&Given::new(), None).unwrap(), ["one", "three:1"]);
    assert_eq!(parse(text).images(&Given::new(), Some("unused")).unwrap(), ["two"]);
    assert_eq!(plan_with(text, &[], Some("Unused")).stages.len(), 1);
    let missing = parse(text).plan(&Given::new(), Some("d"), &debian).unwrap_err().to_string();
    assert!(missing.contains("a, unused, c"), "{missing}");
}

#[test]
fn what_programs_run_as_follows_docker() {
    let config = |text: &str| plan(text).config();
    assert_eq!(config("FROM a").start_command().as_deref(), Some("bash"));
    assert_eq!(config("FROM a\nENTRYPOINT [\"x\"]").start_command().as_deref(), Some("x"));
    assert_eq!(config("FROM a\nCMD [\"y\"]\nENTRYPOINT [\"x\"]").start_command().as_deref(), Some("x y"));
    assert_eq!(config("FROM a\nCMD a && b").start_command().as_deref(), Some("a && b"));
    assert_eq!(config("FROM a\nCMD []").start_command(), None);
    let bash = config("FROM a\nSHELL [\"/bin/bash\", \"-euo\", \"pipefail\", \"-c\"]\nCMD x | y");
    assert_eq!(bash.start_command().as_deref(), Some("/bin/bash -euo pipefail -c 'x | y'"));
}

#[test]
fn destinations_and_sources_are_cleaned() {
    let plan = plan("FROM a\nWORKDIR /w//x/../\nCOPY ./a/../b* c[[] /d/./e/\nCOPY . .\nADD x.tgz $NONE/y\n");
    let [first, second, third] = copies(&plan)[..] else { panic!("{plan:?}") };
    assert_eq!((first.sources.as_slice(), &*first.to), (&["./a/../b*".into(), "c[[]".into()][..], "/d/e"));
    assert_eq!((second.sources.as_slice(), &*second.to, second.into), (&[".".into()][..], "/w", true));
    assert_eq!((&*third.to, third.into, third.extract), ("/y", false, true));
}

#[test]
fn every_mistake_names_its_line_and_what_to_write() {
    for (text, says) in [
        ("", "needs a FROM"),
        ("# only\n", "needs a FROM"),
        ("RUN x\nFROM a", "line 1: only ARG"),
        ("FROM a\n\n\nFRMO b", "line 4: there is no instruction 'FRMO'"),
        ("FROM a\nRUN a\n&& b", "line 3: there is no instruction"),
        ("FROM a b", "write 'FROM base'"),
        ("FROM a AS 1x", "begin with a letter"),
        ("FROM a AS x\nFROM b AS X", "line 2: there is a stage 'x'"),
        ("FROM --platform=linux/arm64 a", "linux/amd64"),
        ("FROM $NONE", "names nothing"),
        ("FROM a\nRUN --mount=type=cache,target=/x a", "only saves time"),
        ("FROM a\nRUN --mount=target=/x a", "COPY the files first"),
        ("FROM a\nRUN --network=host a", "'default' or 'none'"),
        ("FROM a\nRUN --security=insecure a", "--security"),
        ("FROM a\nRUN", "needs a command"),
        ("FROM a\nRUN []", "names no program"),
        ("FROM a\nCOPY a", "what to copy and where to"),
        ("FROM a\nCOPY a b c", "write 'c/'"),
        ("FROM a\nCOPY ../a /", "leads out"),
        ("FROM a\nCOPY [ab /x", "'[' is never closed"),
        ("FROM a\nCOPY --from=3 a /", "no stage 3"),
        ("FROM a\nCOPY --chmod=u+x a /", "octal"),
        ("FROM a\nCOPY --chown=a:b:c a /", "--chown takes"),
        ("FROM a\nCOPY --parents a /", "--parents"),
        ("FROM a\nCOPY $X /", "source is empty"),
        ("FROM a\nADD --from=b a /", "COPY --from"),
        ("FROM a\nADD https://example.org/x.tgz /", "RUN curl -fsSL"),
        ("FROM a\nADD git@github.com:a/b.git /", "RUN git clone"),
        ("FROM a\nENV A", "has no value"),
        ("FROM a\nENV A=b C", "'C' is no name=value"),
        ("FROM a\nENV A='b", "never closed"),
        ("FROM a\nARG 1=2", "no name of an ARG"),
        ("FROM a\nWORKDIR", "needs a directory"),
        ("FROM a\nUSER $X", "USER takes"),
        ("FROM a\nSHELL bash", "SHELL takes a list"),
        ("FROM a\nONBUILD RUN x", "ONBUILD"),
        ("FROM a\nRUN a\0b", "NUL"),
        ("# escape=x\nFROM a", "escape character"),
    ] {
        let message = wrong(text);
        assert!(message.starts_with("line ") && message.contains(says), "{text:?}: {message}");
    }
    let several = wrong("FROM a\nRUN\nFOO\nCOPY x");
    assert!(["line 2", "line 3", "line 4"].iter().all(|line| several.contains(line)), "{several}");
}

#[test]
fn what_has_no_effect_is_noted() {
    let text = "FROM a\nVOLUME /x\nHEALTHCHECK NONE\nSTOPSIGNAL 9\nMAINTAINER me\nCOPY --link a /\nRUN ['a']\n";
    let lines = plan(text).notes.into_iter().map(|note| note.line).collect::<Vec<_>>();
    assert_eq!(lines, [2, 3, 4, 5, 6, 7]);
}

#[test]
fn another_escape_continues_lines() {
    let plan = plan("# escape=`\r\nFROM a\r\nRUN dir C:\\ `\r\n  && x\r\n");
    assert_eq!(runs(&plan)[0].argv[2], "dir C:\\   && x");
}

#[test]
fn limits_have_two_sides() {
    let text = |n: usize| format!("FROM a\n{}", "#".repeat(n - 7));
    assert!(Dockerfile::parse(&text(MAX_TEXT)).is_ok());
    assert!(wrong(&text(MAX_TEXT + 1)).contains("65536"));
    let many = |n: usize| format!("FROM a\n{}", "RUN a\n".repeat(n - 1));
    assert!(Dockerfile::parse(&many(MAX_INSTRUCTIONS)).is_ok());
    assert!(wrong(&many(MAX_INSTRUCTIONS + 1)).starts_with("line 201: "));
    assert!(Dockerfile::parse(&"FROM a\n".repeat(MAX_STAGES)).is_ok());
    assert!(wrong(&"FROM a\n".repeat(MAX_STAGES + 1)).contains("16 stages"));
    let held = |n: usize| {
        let (value, rest) = ("x".repeat(16 * 1024), "x".repeat(n));
        format!("FROM scratch\nENV A={value}\nENV B=$A$A C=$A$A D=$A$A\nENV E={rest}\n")
    };
    let room = scope::MAX_HELD - (1 + 16 * 1024) - 3 * (1 + 32 * 1024) - 1;
    assert_eq!(plan(&held(room)).config().env.len(), 5);
    assert!(wrong(&held(room + 1)).contains("131072 bytes"));
}

#[test]
fn variables_are_counted() {
    let most = scope::MAX_VARIABLES;
    // Names the first one twice.
    let names = |n: usize| (0..n).map(|n| format!(" A{n}=")).collect::<String>();
    for (begins, own) in
        [("FROM scratch\nENV", most), ("FROM a\nENV", most - 1), ("ARG G=\nFROM scratch\nARG", most - 1)]
    {
        let text = |n: usize| format!("{begins}{} A0=1\nRUN a\n", names(n));
        assert_eq!(runs(&plan(&text(own)))[0].env["A0"], "1");
        assert!(wrong(&text(own + 1)).contains("1000 variables"), "{begins}");
    }
    let with = |n: usize| {
        let config =
            ImageConfig { env: (0..n).map(|n| (n.to_string(), String::new())).collect(), ..ImageConfig::default() };
        parse("FROM a\nRUN b").plan(&Given::new(), None, &|_| Some(config.clone()))
    };
    assert!(with(most).is_ok());
    assert!(with(most + 1).unwrap_err().to_string().starts_with("line 1: the base has more than 1000 variables"));
}

#[test]
fn programs_share_their_environment_until_it_changes() {
    let plan = plan("FROM a AS b\nENV A=1\nRUN a\nRUN b\nENV A=2\nRUN c\nARG B=3\nRUN d\nFROM b\nRUN e\n");
    let [a, b, c, d, e] = runs(&plan)[..] else { panic!("{plan:?}") };
    assert!(Arc::ptr_eq(&a.env, &b.env));
    assert_eq!([&*a.env["A"], &*c.env["A"], &*d.env["B"], &*e.env["A"]], ["1", "2", "3", "2"]);
    assert!(!c.env.contains_key("B") && !e.env.contains_key("B"));
}

#[test]
fn what_a_base_may_set_is_no_mistake_before_it_is_there() {
    let none = |text: &str| parse(text).plan(&Given::new(), None, &|_| None);
    let lambda = |_: &str| {
        let env = vec![("ROOT".to_owned(), "/var/task".to_owned())];
        Some(ImageConfig { env, ..ImageConfig::default() })
    };
    let text = "FROM a AS b\nFROM b\nWORKDIR $ROOT\nCOPY app.py $ROOT/\nENV R=${ROOT:?}\nUSER ${NOBODY:-app}\nRUN c\n";
    assert_eq!(runs(&none(text).unwrap())[0].cwd, "/");
    let known = parse(text).plan(&Given::new(), None, &lambda).unwrap();
    assert_eq!((&*runs(&known)[0].cwd, &*copies(&known)[0].to), ("/var/task", "/var/task"));
    for (text, line) in [
        ("FROM a\nWORKDIR $X", "line 2"),
        ("FROM a\nCOPY $X /", "line 2"),
        ("FROM a\nCOPY b c $X", "line 2"),
        ("FROM a\nENV A=${X:?}", "line 2"),
        ("FROM a AS b\nFROM b\nARG X\nUSER $X", "line 4"),
    ] {
        assert!(none(text).is_ok(), "{text}");
        let found = parse(text).plan(&Given::new(), None, &lambda).unwrap_err().to_string();
        assert!(found.starts_with(line), "{text}: {found}");
    }
    // Mistakes that do not depend on the base are reported now.
    for text in ["FROM a\nARG X=\nWORKDIR $X", "FROM scratch\nWORKDIR $X", "FROM a\nENV Y=$X\nCOPY b c d"] {
        assert!(none(text).is_err(), "{text}");
    }
}

#[test]
fn variables_cannot_fill_the_memory() {
    let doubling = format!("FROM a\nENV A=0123456789\n{}", "ENV A=$A$A\n".repeat(100));
    assert!(wrong(&doubling).contains("longer than 32768 bytes"));
    let wide = format!(
        "FROM a\nENV A={}\nENV {}",
        "x".repeat(20_000),
        (0..9).map(|n| format!("B{n}=$A ")).collect::<String>()
    );
    assert!(wrong(&wide).contains("131072 bytes"));
    let copied = format!("FROM a\nENV A={}\nCOPY {} /x/", "x".repeat(4_000), "$A ".repeat(10_000));
    assert!(wrong(&copied).contains("too much text"));
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(text in r#"(FROM a\n)?([A-Z]{0,6}[ \-<>="'$\{\}\[\]\\#a-z0-9/:.\n]{0,20}){0,6}"#) {
        if let Ok(dockerfile) = Dockerfile::parse(&text) {
            let _ = dockerfile.plan(&Given::new(), None, &debian);
        }
    }

    #[test]
    fn words_of_the_language_in_any_order_make_no_panic(words in prop::collection::vec(prop::sample::select(vec![
        "FROM a AS b\n", "FROM b\n", "FROM ", "RUN ", "COPY ", "--from=b ", "--mount=type=x ", "<<E ", "E\n", "\\\n", "# c\n",
        "ENV A=$A ", "ARG A=${A:-x}\n", "[\"a\", ", "\"b\"]\n", "x ", "$A ", "${", "}", "'", "\"", "\n", "USER a\n", "WORKDIR /a\n",
    ]), 0..24)) {
        let text = words.concat();
        let plan = Dockerfile::parse(&text).and_then(|dockerfile| dockerfile.plan(&Given::new(), None, &debian));
        if let Ok(plan) = plan {
            prop_assert!(!plan.stages.is_empty());
            prop_assert!(runs(&plan).iter().all(|run| run.cwd.starts_with('/') && !run.argv.is_empty()));
        }
    }

    #[test]
    fn a_shell_form_reaches_the_shell_as_it_stands(command in r#"[a-zA-Z$"'|&;(){}=*. ]{1,60}"#) {
        let command = format!("x{command}y");
        let plan = plan(&format!("FROM a\nRUN {command}\n"));
        prop_assert_eq!(&runs(&plan)[0].argv[2], &command);
    }
}
