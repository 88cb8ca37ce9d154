//! Locks: one holds, the others wait their turn, and each learns in time what it holds.

use quorate::testing::Service;
use quorate::{Session, SessionOptions};
use std::time::Duration;

async fn session(service: &Service) -> Session {
    let options = SessionOptions::with_ttl(Duration::from_secs(5));
    service.client().await.session(options).await.unwrap()
}

#[tokio::test]
async fn the_next_in_the_queue_gets_a_greater_token_when_the_holder_releases() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let held = a.lock("orders").unwrap().named("a").acquire().await.unwrap();
    let first = held.token().unwrap();
    let waiting = tokio::spawn({
        let lock = b.lock("orders").unwrap().named("b");
        async move { lock.acquire().await }
    });
    service.until(|m| m.group_list(None, 9).iter().any(|g| g.waiting == 1)).await;
    held.release().await.unwrap();
    let second = waiting.await.unwrap().unwrap().token().unwrap();
    assert!(second > first, "{second} after {first}");
}
