//! Why a stream is to end: asked once, heard by all of its futures. Never undone.

use std::sync::OnceLock;

use tokio_util::sync::CancellationToken;

use crate::ending::Ending;

/// The first ending asked for wins.
#[derive(Debug)]
pub(super) struct Stop {
    ending: OnceLock<Ending>,
    heard: CancellationToken,
}

impl Stop {
    /// Asked for by itself, as [`Ending::Drained`], once the gateway's `leave` is.
    pub(super) fn new(leave: &CancellationToken) -> Self {
        Self { ending: OnceLock::new(), heard: leave.child_token() }
    }

    /// Asks for the end. Later endings change nothing.
    pub(super) fn ask(&self, ending: Ending) {
        if self.ending.set(ending).is_ok() {
            self.heard.cancel();
        }
    }

    /// Waits for the first ending. Cancel safe.
    pub(super) async fn asked(&self) -> Ending {
        self.heard.cancelled().await;
        *self.ending.get_or_init(|| Ending::Drained)
    }

    /// The ending, if one was asked for.
    pub(super) fn ending(&self) -> Option<Ending> {
        self.heard.is_cancelled().then(|| *self.ending.get_or_init(|| Ending::Drained))
    }
}

#[cfg(test)]
mod tests {
    use super::Stop;
    use crate::ending::Ending;
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn first_ending_wins() {
        let stop = Stop::new(&CancellationToken::new());
        assert_eq!(stop.ending(), None);
        stop.ask(Ending::BudgetSpent);
        stop.ask(Ending::ClientGone);
        assert_eq!(stop.asked().await, Ending::BudgetSpent);
    }

    #[tokio::test]
    async fn waiting_futures_all_hear() {
        let stop = Stop::new(&CancellationToken::new());
        let (one, two, ()) = tokio::join!(stop.asked(), stop.asked(), async { stop.ask(Ending::ClientIdle) });
        assert_eq!((one, two), (Ending::ClientIdle, Ending::ClientIdle));
    }

    #[tokio::test]
    async fn leaving_gateway_drains_streams() {
        let leave = CancellationToken::new();
        let (running, done) = (Stop::new(&leave), Stop::new(&leave));
        done.ask(Ending::ClientDone);
        leave.cancel();
        assert_eq!(running.asked().await, Ending::Drained);
        running.ask(Ending::ClientDone);
        assert_eq!(running.ending(), Some(Ending::Drained));
        assert_eq!(done.asked().await, Ending::ClientDone);
    }
}
