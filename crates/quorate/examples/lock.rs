//! Shows: three workers take turns under one lock, in the order in which they asked, each under a greater token.
//!
//! Run: `cargo run -p quorate --example lock`, or with `QUORATE_SERVER=host:port` on a real service.
//!
//! You will see (who asks first is not decided here, and the tokens differ):
//! ```text
//! anna acts under token 6
//! bert acts under token 9
//! cleo acts under token 10
//! ```

use quorate::testing::Service;
use quorate::{Client, SessionOptions};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let own = Service::start().await;
    let client = Client::connect(std::env::var("QUORATE_SERVER").unwrap_or_else(|_| own.address()))?;
    let mut workers = Vec::new();
    for name in ["anna", "bert", "cleo"] {
        // A session is a process: here each worker has its own, as if it ran elsewhere.
        let session = client.session(SessionOptions::with_ttl(Duration::from_secs(5))).await?;
        let lock = session.lock("example/ledger")?.named(name);
        let worker = async move {
            let guard = lock.acquire().await?;
            tokio::select! {
                () = work(name, &guard) => guard.release().await,
                // It comes in time to stop; `work` is dropped here.
                loss = guard.lost() => { println!("{name} stops: {loss}"); Ok(()) }
            }
        };
        workers.push(worker);
    }
    futures::future::try_join_all(workers).await?;
    Ok(())
}

async fn work(name: &str, guard: &quorate::LockGuard) {
    // The clock is read at each call: no token means that it may not act any more.
    if let Some(token) = guard.token() {
        println!("{name} acts under token {token}");
    }
}
