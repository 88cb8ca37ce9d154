//! Shows: a writer that was paused wakes up when another holds the lock, and its late write is refused. No clock of
//! its own could tell it: the file's guard remembers the greatest token.
//!
//! Run: `cargo run -p quorate --example fenced_write`, or with `QUORATE_SERVER=host:port` on a real service.
//!
//! You will see (the tokens differ):
//! ```text
//! anna holds the lock under token 4, writes, and is paused
//! bert holds the lock under token 6, and writes
//! anna wakes up and is refused: token 4 is older than 6, which balance.txt accepted at ...
//! balance.txt: 90 by bert
//! ```

use quorate::guard::{FileGuard, FileOptions, Guard, GuardError, Name, Offer};
use quorate::testing::Service;
use quorate::{Client, SessionOptions};
use std::path::Path;

type Failed = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let own = Service::start().await;
    let client = Client::connect(std::env::var("QUORATE_SERVER").unwrap_or_else(|_| own.address()))?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("balance.txt");
    let guard = FileGuard::open(directory.path().join("balance.guard"), FileOptions::default())?;

    let session = client.session(SessionOptions::default()).await?;
    let anna = session.lock("example/balance")?.named("anna").acquire().await?;
    let paused = anna.offer().ok_or("anna holds the lock")?;
    write(&guard, paused, &file, "100 by anna")?;
    println!("anna holds the lock under token {}, writes, and is paused", paused.token);

    anna.release().await?; // What a pause longer than her lease does: the lock passes on, and she does not know.
    let bert = session.lock("example/balance")?.named("bert").acquire().await?;
    let offer = bert.offer().ok_or("bert holds the lock")?;
    write(&guard, offer, &file, "90 by bert")?;
    println!("bert holds the lock under token {}, and writes", offer.token);

    match write(&guard, paused, &file, "250 by anna") {
        Ok(()) => return Err("the late write went through".into()),
        Err(refused) => println!("anna wakes up and is refused: {refused}"),
    }
    println!("balance.txt: {}", std::fs::read_to_string(&file)?);
    Ok(())
}

/// Writes inside the guard's scope: with the permit in hand no older writer is inside, nor ever will be.
fn write(guard: &FileGuard, offer: Offer, file: &Path, text: &str) -> Result<(), GuardError> {
    let permit = guard.enter(&Name::new("balance.txt").expect("it is a name"), offer)?;
    std::fs::write(file, text).expect("the directory is ours");
    drop(permit);
    Ok(())
}
