//! Named points at which a test makes a step fail or kills the service.
//!
//! Compiled only with the feature `faults`; the shipped binary has none of it. `BERTH_FAULT` holds
//! `point=action[:nth]`, several separated by commas; actions are `kill` (SIGKILL to ourselves),
//! `fail` (the step reports a fault), `fails` (it does so every time) and `wait` (the step waits until the file is there
//! that `BERTH_FAULT_GO` names, and reports a fault where nobody makes it within a minute). What a test writes to the file
//! that `BERTH_FAULT_LATER` names is added to them while the service runs, which removes the file.

/// Passes a fault point. The error is what a failing step would report.
#[cfg(not(feature = "faults"))]
#[expect(clippy::unused_async, reason = "awaits only with the feature `faults`")]
pub async fn point(_name: &str) -> Result<(), String> {
    Ok(())
}

#[cfg(feature = "faults")]
pub use active::point;

#[cfg(feature = "faults")]
mod active {
    use std::collections::HashMap;
    use std::path::PathBuf;
    use std::sync::{LazyLock, Mutex, PoisonError};
    use std::time::{Duration, Instant};

    /// How long a step waits.
    const PATIENCE: Duration = Duration::from_mins(1);
    /// Between two looks.
    const LOOK: Duration = Duration::from_millis(10);

    #[derive(Clone)]
    struct Fault {
        action: String,
        remaining: u32,
    }

    static FAULTS: LazyLock<Mutex<HashMap<String, Fault>>> =
        LazyLock::new(|| Mutex::new(read(&std::env::var("BERTH_FAULT").unwrap_or_default()).collect()));
    static LATER: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os("BERTH_FAULT_LATER").map(PathBuf::from));

    fn read(text: &str) -> impl Iterator<Item = (String, Fault)> {
        text.split(',').filter_map(|entry| {
            let (point, action) = entry.trim().split_once('=')?;
            let (action, nth) = action.split_once(':').unwrap_or((action, "1"));
            Some((point.to_owned(), Fault { action: action.to_owned(), remaining: nth.parse().unwrap_or(1) }))
        })
    }

    /// Adds what a test wrote since the last point.
    fn take_later(faults: &mut HashMap<String, Fault>) {
        let Some(file) = &*LATER else { return };
        if let Ok(text) = std::fs::read_to_string(file) {
            let _ = std::fs::remove_file(file);
            faults.extend(read(&text));
        }
    }

    /// Passes a fault point.
    pub async fn point(name: &str) -> Result<(), String> {
        let action = {
            let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
            take_later(&mut faults);
            let Some(fault) = faults.get_mut(name) else {
                return Ok(());
            };
            fault.remaining = fault.remaining.saturating_sub(1);
            if fault.remaining > 0 {
                return Ok(());
            }
            let action = fault.action.clone();
            if action != "fails" {
                faults.remove(name);
            }
            action
        };
        eprintln!("fault point {name}: {action}");
        match action.as_str() {
            "kill" => {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                std::future::pending().await
            }
            "wait" => wait(name).await,
            _ => Err(format!("fault injected at {name}")),
        }
    }

    async fn wait(name: &str) -> Result<(), String> {
        let go = std::env::var_os("BERTH_FAULT_GO").map(PathBuf::from).unwrap_or_default();
        let since = Instant::now();
        while !go.exists() {
            if since.elapsed() > PATIENCE {
                eprintln!("fault point {name}: nobody let it go on");
                return Err(format!("nobody let the step go on at {name}"));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}
