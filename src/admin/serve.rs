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
