//! Questions whose connection becomes a stream, on the side of the host.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use axum_core::body::Body;
use berth_domain::agent::{MAX_FRAME, SESSION_WINDOW, STREAM_WINDOW};
use berth_domain::host::Question;
use berth_domain::host::ask::stream::{Agent, Ask, Build, Event, Exported, Picture, Reached, Receive, Stage};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::frame;
use super::message::{ANSWER, SILENCE, Told};
use super::tell::{Stream, attend, beat, end, tell};
use crate::answer::say;
use crate::sandbox::build::Log;
use crate::sandbox::{self, DISK_FULL};
use crate::vm::{Console, Content};
use crate::{EngineError, Host, Result};

/// Bytes of a file that are received or sent at a time.
const CHUNK: usize = 128 << 10;
/// How long nothing of a file may be taken whose bytes are passed on: longer than whoever takes them last may pause.
const SLOW: Duration = Duration::from_mins(2);

/// Answers a question, and makes its connection the stream that it asks for.
pub async fn turn(host: &Host, ask: Ask, stream: impl Stream) -> io::Result<()> {
    match ask {
        Ask::Watch(_) => watch(host, stream).await,
        Ask::Console(q) => carry(host.vm.console(q.id), say(&q, Ok(())).into(), stream).await,
        Ask::Screen(q) => carry(host.vm.screen(q.id), say(&q, Ok(())).into(), stream).await,
        Ask::Picture(q) => picture(host, q, stream).await,
        Ask::Exported(q) => exported(host, q, stream).await,
        Ask::ImageFile(q) => give(host.vm.image_file(&q.edition, &q.file), say(&q, Ok(())).into(), stream).await,
        Ask::Take(q) => {
            let taken = |content| host.vm.take_image_file(q.travel, &q.image, &q.file, content);
            take(&q, taken, stream).await
        }
        Ask::GuestFile(q) => give(host.sandbox.guest_file(&q.version, &q.file), say(&q, Ok(())).into(), stream).await,
        Ask::TakeGuest(q) => {
            let taken = |content| host.sandbox.take_guest_file(q.travel, &q.file, content);
            take(&q, taken, stream).await
        }
        Ask::LayerFile(q) => give(host.sandbox.read_layer(q.id, &q.file), say(&q, Ok(())).into(), stream).await,
        Ask::TakeLayer(q) => {
            let taken = |content| host.sandbox.take_layer(q.id, &q.file, content);
            take(&q, taken, stream).await
        }
        Ask::MemoryFile(q) => give(host.sandbox.read_memory(q.id, &q.file), say(&q, Ok(())).into(), stream).await,
        Ask::TakeMemory(q) => {
            let taken = |content| host.sandbox.take_memory(q.id, &q.file, content);
            take(&q, taken, stream).await
        }
        Ask::Send(q) => carry(host.vm.send_machine(q.aim, q.channel), say(&q, Ok(())).into(), stream).await,
        Ask::Fill(q) => carry(host.vm.fill_machine(q.aim, q.channel), say(&q, Ok(())).into(), stream).await,
        Ask::Agent(q) => agent(host, q, stream).await,
        Ask::Build(q) => build(host, q, stream).await,
        Ask::Stage(q) => {
            let place = staged(host, &q).await;
            receive(place, q.bytes, stream).await
        }
        Ask::Receive(q) => {
            let place = place(host, &q).await;
            receive(place, q.bytes, stream).await
        }
    }
}

/// Tells what happens, and now and then what the host is, until nobody listens.
async fn watch(host: &Host, mut stream: impl Stream) -> io::Result<()> {
    let (mut vms, mut sandboxes) = (host.vm.watch(), host.sandbox.watch());
    tell(&mut stream, &Told::Said(Value::Null)).await?;
    let mut beat = beat();
    loop {
        let event = tokio::select! {
            event = vms.recv() => happened(event, Event::Vm),
            event = sandboxes.recv() => happened(event, Event::Sandbox),
            _ = beat.tick() => Some(Event::About(host.about())),
            _ = stream.read_u8() => None,
        };
        let Some(event) = event else { return Ok(()) };
        let bytes = frame::of(&event, ANSWER)?;
        timeout(SILENCE, frame::write(&mut stream, &bytes)).await??;
    }
}

fn happened<T>(event: std::result::Result<T, RecvError>, to: impl FnOnce(T) -> Event) -> Option<Event> {
    match event {
        Ok(id) => Some(to(id)),
        Err(RecvError::Lagged(_)) => Some(Event::Missed),
        Err(RecvError::Closed) => None,
    }
}

/// Carries the bytes of a serial console or a screen, once it is reached and that is said.
async fn carry(
    reach: impl Future<Output = Result<Box<dyn Console>>>,
    reached: Told,
    mut stream: impl Stream,
) -> io::Result<()> {
    let Some(machine) = attend(&mut stream, reach).await? else { return Ok(()) };
    match machine {
        Err(error) => end(&mut stream, Told::Failed(error)).await,
        Ok(mut machine) => {
            tell(&mut stream, &reached).await?;
            tokio::io::copy_bidirectional(&mut stream, &mut machine).await.map(drop)
        }
    }
}

/// Sends a picture of a screen.
async fn picture(host: &Host, q: Picture, mut stream: impl Stream) -> io::Result<()> {
    let Some(made) = attend(&mut stream, host.vm.picture(q.id)).await? else { return Ok(()) };
    let bytes = match made {
        Err(error) => return end(&mut stream, Told::Failed(error)).await,
        Ok(bytes) => bytes,
    };
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    tell(&mut stream, &say(&q, Ok(length)).into()).await?;
    for piece in bytes.chunks(CHUNK) {
        timeout(SILENCE, stream.write_all(piece)).await??;
    }
    timeout(SILENCE, stream.flush()).await?
}

/// Sends a part of a file that was made of a disk. Whoever asked passes it on, to somebody who may be slow to take it.
async fn exported(host: &Host, q: Exported, mut stream: impl Stream) -> io::Result<()> {
    let opened = attend(&mut stream, host.vm.exported(&q.of, &q.sha256, q.part)).await?;
    let content = match opened {
        None => return Ok(()),
        Some(Err(error)) => return end(&mut stream, Told::Failed(error)).await,
        Some(Ok(content)) => content,
    };
    tell(&mut stream, &say(&q, Ok(())).into()).await?;
    pour(content, stream).await
}

/// Sends all of a file to whoever may be slow to take it.
async fn pour(mut content: impl AsyncRead + Unpin, mut stream: impl Stream) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = content.read(&mut chunk).await?;
        if read == 0 {
            return timeout(SLOW, stream.shutdown()).await?;
        }
        timeout(SLOW, stream.write_all(&chunk[..read])).await??;
    }
}

/// Sends a file that goes to another host, once it is open and that is said.
async fn give(
    open: impl Future<Output = Result<Box<dyn Content>>>,
    opened: Told,
    mut stream: impl Stream,
) -> io::Result<()> {
    let content = match attend(&mut stream, open).await? {
        None => return Ok(()),
        Some(Err(error)) => return end(&mut stream, Told::Failed(error)).await,
        Some(Ok(content)) => content,
    };
    tell(&mut stream, &opened).await?;
    pour(content, stream).await
}

/// Takes a file that comes from another host.
async fn take<Q, S, T>(q: &Q, taken: impl FnOnce(Box<dyn Content>) -> T, mut stream: S) -> io::Result<()>
where
    Q: Question<Answer = ()>,
    S: Stream + 'static,
    T: Future<Output = Result<()>>,
{
    tell(&mut stream, &say(q, Ok(())).into()).await?;
    let (content, mut stream) = tokio::io::split(stream);
    let (mut taken, mut beat) = (pin!(taken(Box::new(content))), beat());
    // What has come to its end is still worked on: a memory is unpacked.
    let taken = loop {
        tokio::select! {
            biased;
            taken = &mut taken => break taken,
            _ = beat.tick() => tell(&mut stream, &Told::Working).await?,
        }
    };
    tell(&mut stream, &say(q, taken).into()).await?;
    stream.shutdown().await
}

/// Passes on what a sandbox's agent is asked, by HTTP/2, as long as both sides are there.
async fn agent(host: &Host, q: Agent, mut stream: impl Stream) -> io::Result<()> {
    let Some(reached) = attend(&mut stream, host.sandbox.connect(q.id)).await? else { return Ok(()) };
    let connection = match reached {
        Ok(connection) => connection,
        Err(error) => return end(&mut stream, Told::Failed(error)).await,
    };
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let reached = Reached {
        authorization: connection.authorization.clone(),
        age_ms: millis(connection.since.elapsed()),
        patience_ms: millis(connection.patience),
    };
    tell(&mut stream, &say(&q, Ok(reached)).into()).await?;
    let session = connection.session.clone();
    let pass = service_fn(move |request: Request<Incoming>| {
        let session = session.clone();
        async move { session.send(request.map(Body::new)).await }
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(SESSION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .keep_alive_interval(SILENCE)
        .keep_alive_timeout(SILENCE)
        .serve_connection(TokioIo::new(stream), pass);
    tokio::select! {
        outcome = served => outcome.map_err(io::Error::other),
        () = connection.session.over() => Ok(()),
    }
}

/// Builds a template, and tells its log meanwhile. A byte calls it off; who leaves ends it.
async fn build(host: &Host, q: Build, mut stream: impl Stream) -> io::Result<()> {
    let cancel = CancellationToken::new();
    let build = sandbox::Build { spec: q.spec.clone(), log: Log::default(), cancel: cancel.clone() };
    let (mut log, mut at) = (build.log.end(), 0);
    let mut work = pin!(host.sandbox.build_template(&build));
    let mut beat = beat();
    loop {
        let (outcome, told) = tokio::select! {
            biased;
            outcome = &mut work => (Some(outcome), None),
            _ = log.changed() => (None, None),
            _ = beat.tick() => (None, Some(Told::Working)),
            more = stream.read_u8(), if !cancel.is_cancelled() => match more {
                Ok(_) => {
                    cancel.cancel();
                    continue;
                }
                Err(_) => return Ok(()),
            },
        };
        let piece = build.log.read(at);
        at = piece.from + piece.text.len() as u64;
        if !piece.text.is_empty() {
            tell(&mut stream, &Told::Lines(piece.text)).await?;
        }
        if let Some(told) = told {
            tell(&mut stream, &told).await?;
        }
        if let Some(outcome) = outcome {
            return end(&mut stream, say(&q, outcome).into()).await;
        }
    }
}

/// Where an image is received, if there is room for it.
async fn staged(host: &Host, q: &Stage) -> Result<PathBuf> {
    room(host, q.bytes).await?;
    host.staged(&q.image).await
}

/// Where an upload is received, if there is room for it.
async fn place(host: &Host, q: &Receive) -> Result<PathBuf> {
    room(host, q.bytes).await?;
    host.sandbox.upload(q.id).await
}

/// Refuses what there is no room for. What is kept back is kept back from images, too: they lie on the same disk.
async fn room(host: &Host, bytes: u64) -> Result<()> {
    let free = host.sandbox.capacity().await?.disk_bytes;
    let fits = i64::try_from(bytes).is_ok_and(|bytes| bytes < free);
    if fits { Ok(()) } else { Err(EngineError::NoCapacity(DISK_FULL.into())) }
}

/// Receives so many bytes as a file, whole or not at all.
async fn receive(place: Result<PathBuf>, bytes: u64, mut stream: impl Stream) -> io::Result<()> {
    let place = match place {
        Ok(place) => place,
        Err(error) => return end(&mut stream, Told::Failed(error)).await,
    };
    tell(&mut stream, &Told::Said(Value::Null)).await?;
    let mut part = place.clone().into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let received = match write(&part, bytes, &mut stream).await {
        Ok(()) => tokio::fs::rename(&part, &place).await,
        Err(error) => Err(error),
    };
    if let Err(error) = received {
        // What is left of it is overwritten by the next try.
        let _ = tokio::fs::remove_file(&part).await;
        return end(&mut stream, Told::Failed(EngineError::Transient(error.to_string()))).await;
    }
    end(&mut stream, Told::Said(Value::Null)).await
}

async fn write(part: &Path, bytes: u64, stream: &mut impl Stream) -> io::Result<()> {
    let mut file = tokio::fs::File::create(part).await?;
    let mut left = bytes;
    let mut chunk = vec![0; CHUNK];
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        let read = timeout(SILENCE, stream.read(&mut chunk[..most])).await??;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.write_all(&chunk[..read]).await?;
        left -= read as u64;
    }
    file.sync_all().await
}
