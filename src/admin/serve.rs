//! Accepts admin connections: few at once, and none may dawdle over its request head.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::limits;

/// Admin connections at once; further ones wait in the system's queue.
const CONNECTIONS_MAX: usize = 64;
/// How long one connection may last, whatever it does.
const CONNECTION_LONGEST: Duration = Duration::from_secs(300);
/// How long accepting pauses when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop`; requests under way are then finished, at most for [`limits::CLIENT_CLOSE`].
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! { biased;
            () = stop.cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        while connections.try_join_next().is_some() {}
        let Some((stream, peer, place)) = accepted else {
            continue;
        };
        let (router, stop) = (router.clone(), stop.clone());
        connections.spawn(async move {
            _ = tokio::time::timeout(CONNECTION_LONGEST, converse(stream, peer, router, stop)).await;
            drop(place);
        });
    }
    let rest = async { while connections.join_next().await.is_some() {} };
    _ = tokio::time::timeout(limits::CLIENT_CLOSE, rest).await;
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, place)),
        Err(error) => {
            tracing::warn!(%error, "admin listener can't accept");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn converse(stream: TcpStream, peer: SocketAddr, router: Router, stop: CancellationToken) {
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        let answer = router.clone().oneshot(request);
        async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIME)
        .max_buf_size(limits::TARGET_BYTES_MAX * 4)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "admin connection broke");
    }
}

#[cfg(test)]
mod tests {
    use super::serve;
    use axum::Router;
    use axum::extract::ConnectInfo;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn answers_know_their_peer_until_the_stop() {
        let router = Router::new().route(
            "/",
            axum::routing::get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.ip().to_string()),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let server = tokio::spawn(serve(listener, router, stop.clone()));

        let mut idle = TcpStream::connect(address).await.unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("127.0.0.1"), "{answer}");

        stop.cancel();
        server.await.unwrap();
        assert_eq!(idle.read(&mut [0; 8]).await.unwrap_or(0), 0, "an idle connection is closed");
    }
}
