//! The public listener: who may connect, how long a request head may take, which path leads where. Knows no stream.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Method, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::answer::{self, Answer};
use super::{Core, grant, handshake, meters, pages};
use crate::limits;
use crate::wire::deepgram::Refusal;

/// Accepts connections until the gateway is shut.
pub(super) async fn serve(core: Arc<Core>, listener: TcpListener) {
    let seats =
        Arc::new(Seats::new(core.settings.connections_max, core.settings.connections_per_address_max));
    while let Some(accepted) = core.shut.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, peer)) => match Seats::take(&seats, peer.ip()) {
                Ok(seat) => {
                    core.connections.spawn(connection(Arc::clone(&core), stream, Arc::new(seat)));
                }
                Err(why) => meters::turned_away(why),
            },
            Err(error) => {
                // Out of descriptors, most likely: the next accept would fail at once as well.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection up to its upgrade or its end.
async fn connection(core: Arc<Core>, stream: TcpStream, seat: Arc<Seat>) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let asked = Arc::clone(&core);
    let service = service_fn(move |request| {
        let (core, seat) = (Arc::clone(&asked), Arc::clone(&seat));
        async move { Ok::<_, Infallible>(route(&core, request, seat).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIME)
        .max_buf_size(limits::HEAD_BYTES_MAX)
        .max_headers(limits::HEADERS_MAX);
    let mut served = pin!(http.serve_connection(TokioIo::new(stream), service).with_upgrades());
    let ended = tokio::time::timeout(CONNECTION_LONGEST, async {
        tokio::select! {
            ended = served.as_mut() => ended,
            () = core.shut.cancelled() => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        }
    });
    match ended.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended before its answer"),
        Err(_) => tracing::debug!("a connection lasted too long"),
    }
}

async fn route(core: &Arc<Core>, request: Request<Incoming>, seat: Arc<Seat>) -> Answer {
    let request_id = uuid::Uuid::new_v4().to_string();
    let path = request.uri().path();
    let page = pages::find(path);
    if page.is_none() && ![LISTEN, QUOTA, GRANT].contains(&path) {
        return answer::refused(&Refusal::not_found(), &request_id);
    }
    let wanted = if path == GRANT { Method::POST } else { Method::GET };
    if request.method() != wanted && !(request.method() == Method::HEAD && page.is_some()) {
        return answer::refused(&wrong_method(&wanted), &request_id);
    }
    if request.uri().to_string().len() > limits::TARGET_BYTES_MAX {
        return answer::refused(&Refusal::bad_request("The request target is too long."), &request_id);
    }
    match (page, path) {
        (Some(page), _) => answer::page(page, &request_id),
        (None, GRANT) => grant::grant(core, request, &request_id).await,
        (None, QUOTA) => handshake::quota(core, request.headers(), &request_id).await,
        (None, _) => handshake::listen(core, request, &request_id, seat).await,
    }
}

fn wrong_method(wanted: &Method) -> Refusal {
    Refusal {
        status: 405,
        err_code: "METHOD_NOT_ALLOWED",
        err_msg: format!("Only {wanted} is served here."),
        retry_after: None,
    }
}

/// How many connections there are, in total and from each address.
#[derive(Debug)]
struct Seats {
    taken: Mutex<Taken>,
    most: usize,
    most_per_address: usize,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl Seats {
    fn new(most: usize, most_per_address: usize) -> Self {
        Self { taken: Mutex::default(), most, most_per_address }
    }

    /// A place for a connection from this address, or which bound is reached.
    fn take(seats: &Arc<Self>, address: IpAddr) -> Result<Seat, &'static str> {
        let mut taken = seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.total >= seats.most {
            return Err("total");
        }
        let own = taken.by_address.entry(address).or_default();
        if *own >= seats.most_per_address {
            return Err("address");
        }
        *own += 1;
        taken.total += 1;
        Ok(Seat { seats: Arc::clone(seats), address })
    }
}

/// A connection's place; free again when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    address: IpAddr,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.total = taken.total.saturating_sub(1);
        if let Entry::Occupied(mut own) = taken.by_address.entry(self.address) {
            *own.get_mut() = own.get().saturating_sub(1);
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

const LISTEN: &str = "/v1/listen";
const QUOTA: &str = "/v1/quota";
const GRANT: &str = "/v1/auth/grant";
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Longest time before the upgrade, all requests of a connection together.
const CONNECTION_LONGEST: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::Seats;
    use std::net::IpAddr;
    use std::sync::Arc;

    #[test]
    fn seats_are_bounded_and_return() {
        let seats = Arc::new(Seats::new(3, 2));
        let (one, two) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let first = Seats::take(&seats, one).expect("a seat");
        let _second = Seats::take(&seats, one).expect("a seat");
        assert_eq!(Seats::take(&seats, one).err(), Some("address"));
        let _third = Seats::take(&seats, two).expect("a seat");
        assert_eq!(Seats::take(&seats, two).err(), Some("total"));
        drop(first);
        assert!(Seats::take(&seats, two).is_ok());
        assert_eq!(seats.taken.lock().expect("not poisoned").by_address.len(), 2);
    }
}
