//! Asks one worker whether it is alive, by a connection of its own. Never decides what follows from the answer.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Check, Settings, WorkerUrl};

/// Whether the worker answered within the connect time.
pub(super) async fn alive(url: &WorkerUrl, settings: &Settings) -> bool {
    let asked = async {
        match &settings.check {
            Check::Off => true,
            Check::Tcp => TcpStream::connect(&url.authority).await.is_ok(),
            Check::Http { path } => answers(url, path).await.unwrap_or(false),
        }
    };
    tokio::time::timeout(settings.connect, asked).await.unwrap_or(false)
}

/// Any HTTP answer counts: a worker that says 404 or 426 is there.
async fn answers(url: &WorkerUrl, path: &str) -> std::io::Result<bool> {
    let mut socket = TcpStream::connect(&url.authority).await?;
    let ask = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", url.authority);
    socket.write_all(ask.as_bytes()).await?;
    let mut start = [0; 5];
    socket.read_exact(&mut start).await?;
    Ok(&start == b"HTTP/")
}
