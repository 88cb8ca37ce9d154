//! Shows: two candidates and one that looks on. The leader is cut off without a word; it knows by its own clock that it
//! leads no more, the one that looks on hears who leads next, and at the end that nobody does.
//!
//! Run: `cargo run -p quorate --example leader`, or with `QUORATE_SERVER=host:port` on a real service.
//!
//! You will see (the tokens differ):
//! ```text
//! nobody leads
//! A leads at 10.0.0.1:80 under token 6
//! A leads at 10.0.0.1:81 under token 6
//! A has stopped: its own deadline has passed
//! B leads at 10.0.0.2:80 under token 10
//! nobody leads
//! ```

use quorate::leadership::{Observed, Observer};
use quorate::testing::{Cable, Service};
use quorate::{Client, Leadership, SessionOptions};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let own = Service::start().await;
    let address = std::env::var("QUORATE_SERVER").unwrap_or_else(|_| own.address());
    let cable = Cable::to(&address).await;
    let client = Client::connect(&address)?;
    let mut seen = leadership(&client, "onlooker").await?.observe().await?;
    print_next(&mut seen).await;

    let first = leadership(&cable.client(), "A").await?.campaign("10.0.0.1:80").await?;
    print_next(&mut seen).await;
    first.proclaim("10.0.0.1:81").await?;
    print_next(&mut seen).await;

    let second = leadership(&client, "B").await?;
    let campaign = tokio::spawn(async move { second.campaign("10.0.0.2:80").await });
    cable.freeze(); // The network dies without a word: only A's own clock can tell it.
    println!("A has stopped: {}", first.gone().await);
    print_next(&mut seen).await;
    campaign.await??.resign().await?;
    print_next(&mut seen).await;
    Ok(())
}

async fn leadership(client: &Client, name: &str) -> Result<Leadership, quorate::Error> {
    let session = client.session(SessionOptions::with_ttl(Duration::from_secs(1))).await?;
    Ok(session.leadership("example/boss")?.named(name))
}

async fn print_next(seen: &mut Observer) {
    match seen.next().await {
        Some(Observed::Leader(l)) => println!("{} leads at {} under token {}", l.name, l.value, l.token),
        Some(Observed::NoLeader { .. }) => println!("nobody leads"),
        other => println!("{other:?}"),
    }
}
