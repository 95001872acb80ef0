//! A program in a sandbox behaves as one of this machine.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::harness::{BOX, Here, PATIENCE, ended, err, out, until};

#[tokio::test(flavor = "multi_thread")]
async fn bytes_streams_and_codes_are_the_programs_own() {
    let here = Here::start().await;
    for (program, stdout, stderr, code) in [
        ("echo hello", "hello\n", "", 0),
        ("printf 'no newline'", "no newline", "", 0),
        ("printf 'a\\n\\nb\\r\\n'", "a\n\nb\r\n", "", 0),
        ("echo out; echo err >&2; exit 3", "out\n", "err\n", 3),
        ("exit 255", "", "", 255),
        ("kill -TERM $$", "", "", 143),
        ("kill -KILL $$", "", "", 137),
        ("printf 'half '; sleep 0.3; echo line", "half line\n", "", 0),
        ("cat", "", "", 0),
    ] {
        let output = here.exec(&["sh", "-c", program]).await;
        assert_eq!((out(&output).as_str(), err(&output).as_str()), (stdout, stderr), "{program}");
        assert_eq!(output.status.code(), Some(code), "{program}");
    }
    let binary = here.exec(&["sh", "-c", "printf '\\377\\000\\200a\\nb'; printf '\\376' >&2"]).await;
    assert_eq!((binary.stdout.as_slice(), binary.stderr.as_slice()), (&b"\xff\0\x80a\nb"[..], &b"\xfe"[..]));
    let json = here.sandbox(&["exec", "--json", BOX, "--", "echo", "hi"]).await;
    let names: Vec<String> = out(&json)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["event"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["stdout", "exit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn megabytes_come_through_whole() {
    let here = Here::start().await;
    let output = here.exec(&["sh", "-c", "seq 1 300000; head -c 3000000 /dev/zero"]).await;
    assert!(output.status.success(), "{}", err(&output));
    let lines: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    assert!(output.stdout.starts_with(lines.as_bytes()) && output.stdout.len() == lines.len() + 3_000_000);
}

/// Counts what comes, without keeping it.
async fn counted(
    mut reader: impl tokio::io::AsyncRead + Unpin,
    pause_at: usize,
    pause: impl Future<Output = ()>,
) -> u64 {
    let (mut buffer, mut sum, mut read, mut pause) = (vec![0; 64 * 1024], 0, 0, Some(pause));
    loop {
        match reader.read(&mut buffer).await.expect("output") {
            0 => return sum,
            n => {
                read += n;
                sum += buffer[..n].iter().map(|byte| u64::from(*byte)).sum::<u64>();
            }
        }
        if read >= pause_at
            && let Some(pause) = pause.take()
        {
            pause.await;
        }
    }
}

/// More than the agent's log keeps (8 MiB), and more than it sends ahead (1 MiB) with all buffers on the way (some 14).
const BYTES: u64 = 32 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_loses_nothing() {
    let here = Here::start().await;
    for stdin in ["--no-stdin", "--interactive"] {
        let script = format!("head -c {BYTES} /dev/zero | tr '\\0' 'a' | fold -w 1023; echo $? >done");
        let mut command = here.berth(&["sandbox", "exec", stdin, BOX, "--", "sh", "-c", &script]);
        let mut child = command.spawn().expect("a process");
        let stdout = child.stdout.take().expect("a pipe");
        // Nobody reads until the program has been caught waiting; another one is served meanwhile.
        let other = async { assert!(here.exec(&["test", "!", "-e", "done"]).await.status.success()) };
        let sum = tokio::time::timeout(PATIENCE, counted(stdout, 1, other)).await.expect("an end in time");
        let newlines = BYTES.div_ceil(1023) - 1;
        assert_eq!(sum, u64::from(b'a') * BYTES + u64::from(b'\n') * newlines, "{stdin}");
        assert_eq!(code(&mut child).await, Some(0), "{stdin}");
        std::fs::remove_file(here.inside("done")).expect("a mark");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn input_is_sent_on_to_its_end() {
    let here = Here::start().await;
    let input: Vec<u8> = (0..1_500_000_u32).flat_map(u32::to_le_bytes).collect();
    let output = here.fed(&["exec", BOX, "--", "sha256sum"], &input).await;
    std::fs::write(here.inside("copy"), &input).unwrap();
    assert_eq!(out(&output), out(&here.exec(&["sh", "-c", "sha256sum <copy"]).await), "{output:?}");
    // Who reads no more ends all the same, and so does who is told to read nothing.
    let output = here.fed(&["exec", BOX, "--", "head", "-c", "3"], &input).await;
    assert_eq!((output.stdout.len(), output.status.code()), (3, Some(0)), "{output:?}");
    let output = here.fed(&["exec", "--no-stdin", BOX, "--", "wc", "-c"], b"abc").await;
    assert_eq!(out(&output).trim(), "0");
    here.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn place_variables_user_and_time() {
    let here = Here::start().await;
    here.fine(&["exec", BOX, "--", "mkdir", "-p", "deep/er"]).await;
    let mut command = here.berth(&["sandbox", "exec", "-w", "deep/er", "-e", "A=1 2", "-e", "OWN", BOX, "--"]);
    command.args(["sh", "-c", "pwd; echo \"$A $OWN\""]).env("OWN", "mine");
    let output = ended(command).await;
    let text = out(&output);
    assert!(text.lines().next().unwrap().ends_with("/deep/er") && text.ends_with("1 2 mine\n"), "{output:?}");
    let late = here.sandbox(&["exec", "--timeout", "1s", BOX, "--", "sleep", "60"]).await;
    assert_eq!(late.status.code(), Some(124), "{late:?}");
    let wrong = here.sandbox(&["exec", "--user", "nobody-else", BOX, "--", "true"]).await;
    assert_eq!(wrong.status.code(), Some(125), "{wrong:?}");
    assert!(err(&wrong).contains("user"), "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_berth_could_not_do_has_codes_of_its_own() {
    let here = Here::start().await;
    for (arguments, code, word) in [
        (&["exec", BOX, "--", "no-such-program"][..], 127, "no-such-program"),
        (&["exec", BOX, "--", "/etc/passwd"], 126, ""),
        (&["exec", "no-such-box", "--", "true"], 125, "berth sandbox list"),
        (&["exec", "-e", "NOT_SET_HERE", BOX, "--", "true"], 125, "NOT_SET_HERE=VALUE"),
        (&["exec", "--timeout", "1 h", BOX, "--", "true"], 125, "1 h"),
        (&["exec", "--timeout", "60d", BOX, "--", "true"], 125, "--timeout must"),
        (&["exec", "-i", "--timeout", "60d", BOX, "--", "true"], 125, "--timeout must"),
        (&["run", "--timeout", "60d", "--", "true"], 125, "--timeout must"),
        (&["exec", "-t", "--user", "me", BOX, "--", "true"], 125, "--user must"),
        (&["exec", BOX], 2, "Usage"),
        (&["exec", "-d", "-t", BOX, "--", "true"], 2, "cannot be used"),
    ] {
        let output = here.sandbox(arguments).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {output:?}");
        assert!(err(&output).contains(word), "{arguments:?} {output:?}");
    }
    here.fine(&["pause", BOX]).await;
    let paused = here.exec(&["true"]).await;
    assert_eq!(paused.status.code(), Some(125));
    assert!(err(&paused).contains("berth sandbox resume"), "{paused:?}");
}

/// A program that runs, once it has said so.
async fn running(mut command: Command) -> (Child, BufReader<tokio::process::ChildStdout>) {
    let mut child = command.spawn().expect("a process");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    assert_eq!(line(&mut stdout).await, "up\n");
    (child, stdout)
}

async fn line(stdout: &mut BufReader<tokio::process::ChildStdout>) -> String {
    let mut line = String::new();
    tokio::time::timeout(PATIENCE, stdout.read_line(&mut line)).await.expect("a line in time").expect("a line");
    line
}

fn tell(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().expect("a number").cast_signed()).expect("a process");
    kill_process(pid, signal).expect("a signal");
}

async fn code(child: &mut Child) -> Option<i32> {
    if let Ok(ended) = tokio::time::timeout(PATIENCE, child.wait()).await {
        return ended.expect("an end").code();
    }
    let _ = child.kill().await;
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).await.expect("text");
    panic!("no end in time; it said: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_reach_the_whole_group() {
    let here = Here::start().await;
    let script = "trap 'echo got INT; exit 7' INT; echo up; while :; do sleep 0.1; done";
    let (mut child, mut rest) = running(here.berth(&["sandbox", "exec", BOX, "--", "bash", "-c", script])).await;
    tell(&child, Signal::INT);
    assert_eq!(code(&mut child).await, Some(7));
    let mut text = String::new();
    rest.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "got INT\n");
    for (signal, expected) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let group = ["sandbox", "exec", BOX, "--", "sh", "-c", "echo up; sleep 600 & sleep 600"];
        let (mut child, _rest) = running(here.berth(&group)).await;
        tell(&child, signal);
        assert_eq!(code(&mut child).await, Some(expected), "{signal:?}");
    }
    here.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_interrupts_in_vain_can_leave() {
    let here = Here::start().await;
    let script = "trap 'echo again' INT; echo up; while :; do sleep 0.1; done";
    let (mut child, mut rest) = running(here.berth(&["sandbox", "exec", BOX, "--", "bash", "-c", script])).await;
    for _ in 0..2 {
        tell(&child, Signal::INT);
        assert_eq!(line(&mut rest).await, "again\n");
    }
    tell(&child, Signal::INT);
    assert_eq!(code(&mut child).await, Some(130));
    let left = here.running().await;
    assert_eq!(left.len(), 1);
    let pid = left[0]["pid"].to_string();
    here.fine(&["kill", BOX, &pid]).await;
    here.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_leaves_ends_the_program() {
    let here = Here::start().await;
    // The second one ignores what a broken pipe tells.
    for script in ["yes up", "trap '' PIPE; while :; do echo up; sleep 0.01; done"] {
        let (mut child, rest) = running(here.berth(&["sandbox", "exec", BOX, "--", "bash", "-c", script])).await;
        drop(rest);
        let code = code(&mut child).await;
        assert!(matches!(code, Some(141 | 143 | 125)), "{script} {code:?}");
        here.quiet().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_connection_is_no_end() {
    let here = Here::start().await;
    let script = "echo up; for n in $(seq 1 40); do echo $n; echo e$n >&2; sleep 0.05; done; exit 9";
    let mut command = here.berth(&["sandbox", "exec", BOX, "--", "sh", "-c", script]);
    command.stderr(Stdio::piped());
    let (mut child, mut rest) = running(command).await;
    let mut errors = child.stderr.take().expect("a pipe");
    let cutter = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(250)).await;
            here.way.cut();
        }
    };
    let (mut stdout, mut stderr) = (String::new(), String::new());
    let ((), read_out, read_err) =
        tokio::join!(cutter, rest.read_to_string(&mut stdout), errors.read_to_string(&mut stderr));
    read_out.and(read_err).unwrap();
    assert_eq!(code(&mut child).await, Some(9), "{stderr}");
    assert_eq!(stdout, (1..=40).map(|n| format!("{n}\n")).collect::<String>());
    assert_eq!(stderr, (1..=40).map(|n| format!("e{n}\n")).collect::<String>());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_interrupted_inside_ends_with_no_code_of_its_own() {
    let here = Here::start().await;
    let (mut child, _rest) =
        running(here.berth(&["sandbox", "exec", BOX, "--", "sh", "-c", "echo up; sleep 600"])).await;
    here.fine(&["delete", BOX]).await;
    here.way.cut();
    assert_eq!(code(&mut child).await, Some(125));
}

#[tokio::test(flavor = "multi_thread")]
async fn detached_programs_are_listed_followed_and_ended() {
    let here = Here::start().await;
    let script = "echo one; read x; echo end=$x; while ! test -e go; do sleep 0.05; done; echo two >&2; exec sleep 600";
    let pid = here.fine(&["exec", "--detach", BOX, "--", "sh", "-c", script]).await.trim().to_owned();
    assert!(pid.parse::<i32>().is_ok(), "{pid}");
    let listed = here.fine(&["ps", BOX]).await;
    assert!(listed.contains(&pid) && listed.contains("running") && listed.contains("read x"), "{listed}");
    // Two pipes have no order of their own: the second is written to when the first was read.
    until("the first of its output", async || here.fine(&["logs", BOX, &pid]).await == "one\nend=\n").await;
    std::fs::write(here.inside("go"), "").unwrap();
    until("all of its output", async || {
        let logs = here.sandbox(&["logs", BOX, &pid]).await;
        out(&logs) == "one\nend=\n" && err(&logs) == "two\n"
    })
    .await;
    assert_eq!(here.fine(&["logs", BOX, &pid, "--offset", "4"]).await, "end=\n");
    let follow = here.berth(&["sandbox", "logs", "-f", BOX, &pid]);
    let following = tokio::spawn(ended(follow));
    assert_eq!(here.fine(&["kill", BOX, &pid, "--signal", "SIGTERM"]).await, format!("{pid} got SIGTERM\n"));
    let followed = following.await.unwrap();
    assert_eq!((out(&followed).as_str(), followed.status.code()), ("one\nend=\n", Some(0)), "{followed:?}");
    assert!(here.fine(&["ps", BOX]).await.contains("exited 143"));
    let missing = here.sandbox(&["logs", BOX, "999999"]).await;
    assert_eq!(missing.status.code(), Some(4), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_is_a_sandbox_for_one_program() {
    let here = Here::start().await;
    let output = here.fed(&["run", "--", "sh", "-c", "cat; exit 5"], b"through and through").await;
    assert_eq!((out(&output).as_str(), output.status.code()), ("through and through", Some(5)), "{output:?}");
    let kept = here.sandbox(&["run", "--keep", "--name", "kept", "--", "true"]).await;
    assert!(kept.status.success() && err(&kept).contains("kept"), "{kept:?}");
    let unknown = here.sandbox(&["run", "--template", "no-such-template", "--", "true"]).await;
    assert_eq!(unknown.status.code(), Some(125), "{unknown:?}");
    until("the end of the first", async || {
        let listed = here.fine(&["list"]).await;
        listed.contains("kept") && listed.lines().count() == 3
    })
    .await;
}
