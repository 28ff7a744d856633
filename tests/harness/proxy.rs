//! A byte proxy between the gateway and a store or worker, which fails on purpose.
//!
//! Faults are switched at run time. Bytes that are held are never lost: they go on when the mode passes again,
//! even to a server whose client has gone meanwhile, so a request can land late. A cut looks for its pattern in
//! what the client sends, also across reads; requests that travel in the same write share its fate.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// What happens to bytes and connections that nothing else is planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything goes through.
    Pass,
    /// Requests are read and kept; the server sees nothing until the mode passes again.
    HoldRequests,
    /// Requests reach the server; its replies are kept until the mode passes again. (The classic stall.)
    HoldReplies,
    /// Every read goes on after this time, in both directions.
    Delay(Duration),
    /// New connections are reset at once; live ones go on.
    Refuse,
}

/// When a planned cut happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The matching request never reaches the server.
    Before,
    /// The server gets the matching request and answers; the client sees the connection lost instead.
    After,
}

/// The running proxy; it and all its connections end with this handle.
pub struct Proxy {
    address: SocketAddr,
    control: Arc<Control>,
    _listener: JoinSet<()>,
}

#[derive(Default)]
struct Counts {
    accepted: AtomicUsize,
    live: AtomicUsize,
    cuts: AtomicUsize,
}

struct Control {
    target: SocketAddr,
    mode: watch::Sender<Mode>,
    resets: watch::Sender<usize>,
    plan: Mutex<Option<Plan>>,
    counts: Counts,
    changed: Notify,
}

struct Plan {
    deed: Deed,
    pattern: Vec<u8>,
    left: usize,
}

enum Deed {
    Cut(Cut),
    Switch(Mode),
}

impl Proxy {
    /// Starts a proxy on a port of its own, in front of `target`.
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let control = Arc::new(Control {
            target,
            mode: watch::Sender::new(Mode::Pass),
            resets: watch::Sender::new(0),
            plan: Mutex::new(None),
            counts: Counts::default(),
            changed: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&control)));
        Self { address, control, _listener: tasks }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address as a store URL.
    pub fn redis_url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Its address as a worker URL.
    pub fn ws_url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Switches the mode for every connection, live ones too.
    pub fn set(&self, mode: Mode) {
        self.control.mode.send_replace(mode);
    }

    /// The next `times` requests that hold `pattern` (empty: any) lose their connection. Replaces an older plan.
    pub fn cut_next(&self, cut: Cut, times: usize, pattern: &[u8]) {
        self.plan(Deed::Cut(cut), times, pattern);
    }

    /// Switches the mode when the next request that holds `pattern` comes, so that this request is the first to feel it.
    /// Replaces an older plan.
    pub fn switch_at(&self, mode: Mode, pattern: &[u8]) {
        self.plan(Deed::Switch(mode), 1, pattern);
    }

    fn plan(&self, deed: Deed, times: usize, pattern: &[u8]) {
        let plan = Plan { deed, pattern: pattern.to_vec(), left: times };
        *self.control.plan.lock().expect("no panic inside") = Some(plan);
    }

    /// Resets (RST) every live connection, on both sides.
    pub fn reset_all(&self) {
        self.control.resets.send_modify(|times| *times += 1);
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.control.counts.accepted.load(Ordering::SeqCst)
    }

    /// Connections that are open now.
    pub fn live(&self) -> usize {
        self.control.counts.live.load(Ordering::SeqCst)
    }

    /// Cuts made so far.
    pub fn cuts(&self) -> usize {
        self.control.counts.cuts.load(Ordering::SeqCst)
    }

    /// Waits until `count` cuts were made.
    pub async fn after_cuts(&self, count: usize) {
        super::until("cut", &self.control.changed, || (self.cuts() >= count).then_some(())).await;
    }
}

async fn accept(listener: TcpListener, control: Arc<Control>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.expect("our own listener");
        while connections.try_join_next().is_some() {}
        control.counts.accepted.fetch_add(1, Ordering::SeqCst);
        if *control.mode.borrow() == Mode::Refuse {
            let _ = client.set_zero_linger();
            continue;
        }
        connections.spawn(carry(client, Arc::clone(&control)));
    }
}

async fn carry(mut client: TcpStream, control: Arc<Control>) {
    let Ok(mut server) = TcpStream::connect(control.target).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    control.counts.live.fetch_add(1, Ordering::SeqCst);
    let mut resets = control.resets.subscribe();
    resets.mark_unchanged();
    let cutting = watch::Sender::new(false);
    let cut = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let up = requests(from_client, to_server, &control, &cutting);
        let down = replies(from_server, to_client, &control, &cutting);
        tokio::select! {
            ends = async { tokio::try_join!(up, down) } => ends.err(),
            _ = resets.changed() => {
                let _ = (client.set_zero_linger(), server.set_zero_linger());
                None
            }
        }
    };
    drop(client);
    control.counts.live.fetch_sub(1, Ordering::SeqCst);
    if let Some(cut) = cut {
        control.counts.cuts.fetch_add(1, Ordering::SeqCst);
        control.changed.notify_waiters();
        if cut == Cut::After {
            // Half closed and read to the end, so that the server surely runs all it was sent.
            let _ = server.shutdown().await;
            let _ = tokio::io::copy(&mut server, &mut tokio::io::sink()).await;
        }
    }
}

/// Client to server, until the client's end; `Err` when a cut is due before the server sees the request.
async fn requests(
    mut client: ReadHalf<'_>,
    mut server: WriteHalf<'_>,
    control: &Control,
    cutting: &watch::Sender<bool>,
) -> Result<(), Cut> {
    let mut mode = control.mode.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    let mut seen = Vec::new();
    loop {
        let count = client.read(&mut buffer).await.unwrap_or(0);
        if count == 0 {
            let _ = server.shutdown().await;
            return Ok(());
        }
        match control.planned(&mut seen, &buffer[..count]) {
            Some(Cut::Before) => return Err(Cut::Before),
            Some(Cut::After) => drop(cutting.send_replace(true)),
            None => {}
        }
        passing(&mut mode, Mode::HoldRequests).await;
        if server.write_all(&buffer[..count]).await.is_err() {
            return Ok(());
        }
    }
}

/// Server to client, until the server's end; `Err` instead of the first reply after a request to be cut.
async fn replies(
    mut server: ReadHalf<'_>,
    mut client: WriteHalf<'_>,
    control: &Control,
    cutting: &watch::Sender<bool>,
) -> Result<(), Cut> {
    let mut mode = control.mode.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = server.read(&mut buffer).await.unwrap_or(0);
        if *cutting.borrow() {
            return Err(Cut::After);
        }
        if count == 0 {
            let _ = client.shutdown().await;
            return Ok(());
        }
        passing(&mut mode, Mode::HoldReplies).await;
        if client.write_all(&buffer[..count]).await.is_err() {
            // The client is gone; the server's replies are still read, so that held requests can land.
            let _ = tokio::io::copy(&mut server, &mut tokio::io::sink()).await;
            return Ok(());
        }
    }
}

/// Waits while the mode is `hold`, or for the delay that the mode asks for.
async fn passing(mode: &mut watch::Receiver<Mode>, hold: Mode) {
    let now = *mode.wait_for(|mode| *mode != hold).await.expect("the proxy outlives its connections");
    if let Mode::Delay(time) = now {
        tokio::time::sleep(time).await;
    }
}

impl Control {
    /// Whether `bytes`, behind what was `seen` of this connection, complete a request that is to be cut. Does at once what
    /// else is planned for it.
    fn planned(&self, seen: &mut Vec<u8>, bytes: &[u8]) -> Option<Cut> {
        let mut plan = self.plan.lock().expect("no panic inside");
        let plan = plan.as_mut().filter(|plan| plan.left > 0)?;
        seen.extend_from_slice(bytes);
        let hit =
            plan.pattern.is_empty() || seen.windows(plan.pattern.len()).any(|part| part == plan.pattern);
        let keep = if hit { 0 } else { plan.pattern.len().saturating_sub(1).min(seen.len()) };
        seen.drain(..seen.len() - keep);
        if hit {
            plan.left -= 1;
        }
        match plan.deed {
            Deed::Cut(cut) => hit.then_some(cut),
            Deed::Switch(mode) => {
                if hit {
                    self.mode.send_replace(mode);
                }
                None
            }
        }
    }
}
