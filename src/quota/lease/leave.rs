//! How a stream leaves its places: each by a settle in the background, the last one with the stream's own row.

use tokio::time::Instant;

use super::Lease;
use crate::limits::SETTLE_WAIT;
use crate::quota::ask::Place;
use crate::quota::settler::META_MOVED_ON;

impl Lease {
    pub(super) fn leave_on(&mut self, meta: Option<&str>) {
        if let Some(place) = self.on.take() {
            self.leave(place, meta.is_some(), meta);
        }
    }

    /// Leaves every place; with `meta` for good: the stream is over.
    pub(super) fn leave_all(&mut self, meta: Option<&str>) {
        let ahead = self.ahead.take();
        let alone = ahead.is_none() && self.on.is_none();
        if let Some(place) = ahead {
            self.leave(place, meta.is_some() && self.on.is_none(), meta);
        }
        self.leave_on(meta);
        if alone && meta.is_some() {
            self.quota.forget_stream(&self.deed);
        }
    }

    pub(super) fn leave(&mut self, place: Place, last: bool, meta: Option<&str>) {
        self.settles.retain(|settle| !settle.is_finished());
        let meta = meta.unwrap_or(META_MOVED_ON).to_owned();
        self.settles.push(self.quota.settle_later(self.deed.clone(), place, last, meta));
    }

    /// Waits a while for settles of this stream, and says whether there were any: what they return may be what is
    /// asked for next.
    pub(super) async fn finish_settles(&mut self, until: Instant) -> bool {
        let settles = std::mem::take(&mut self.settles);
        let (any, until) = (!settles.is_empty(), until.min(Instant::now() + SETTLE_WAIT));
        for mut settle in settles {
            if tokio::time::timeout_at(until, &mut settle).await.is_err() {
                self.settles.push(settle);
            }
        }
        any
    }
}
