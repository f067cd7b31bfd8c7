//! The order to end, seen by every stream and connection.

use mainstay_host::ShutdownMode;
use std::sync::Arc;
use tokio::sync::watch;

/// Says once that the host is to end, and how. Clones are the same stop; the first order counts.
#[derive(Debug, Clone)]
pub struct Stop(Arc<watch::Sender<Option<ShutdownMode>>>);

impl Default for Stop {
    fn default() -> Self {
        Self::new()
    }
}

impl Stop {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }

    /// Orders the end. A later order changes nothing.
    pub fn ask(&self, mode: ShutdownMode) {
        self.0.send_if_modified(|asked| {
            let first = asked.is_none();
            asked.get_or_insert(mode);
            first
        });
    }

    /// Whether the end was ordered.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Waits for the order.
    pub async fn asked(&self) -> ShutdownMode {
        let mut orders = self.0.subscribe();
        match orders.wait_for(Option::is_some).await {
            Ok(order) => order.unwrap_or(ShutdownMode::Detach),
            // The sender is held by `self`, so this is not reached; detaching harms nobody.
            Err(_) => ShutdownMode::Detach,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_order_counts_and_reaches_those_who_come_later() {
        let stop = Stop::new();
        assert!(!stop.is_asked());
        let early = tokio::spawn({
            let stop = stop.clone();
            async move { stop.asked().await }
        });
        stop.ask(ShutdownMode::Kill);
        stop.ask(ShutdownMode::Detach);
        assert_eq!(early.await.expect("joins"), ShutdownMode::Kill);
        assert_eq!(stop.asked().await, ShutdownMode::Kill);
    }
}
