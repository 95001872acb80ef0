//! A service that makes a bridge so and is killed before its nth step; with one step too many it ends by itself.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use berth_bridge::{Bridge, Wanted};

pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    let [folder, wanted, step] = arguments.as_slice() else { return ExitCode::FAILURE };
    let text = std::fs::read(wanted).unwrap_or_default();
    let Ok(wanted) = serde_json::from_slice::<Wanted>(&text) else { return ExitCode::FAILURE };
    let Some(last) = step.to_str().and_then(|step| step.parse::<usize>().ok()) else { return ExitCode::FAILURE };
    let taken = AtomicUsize::new(0);
    let watch = move |_| {
        if taken.fetch_add(1, Ordering::Relaxed) + 1 == last {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            std::thread::park();
        }
    };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    let made = runtime.block_on(async {
        let bridge = Bridge::open_watched(wanted.settings.clone(), folder, Box::new(watch)).await?;
        bridge.reconcile(&wanted.machines).await
    });
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
