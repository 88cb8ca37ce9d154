//! Shows: one member acts and two stand by; the active one is cut off from the service and knows it by its own
//! clock, before the next one is told to act; when it is back it stands last.
//!
//! Run: `cargo run -p quorate --example standby`, or with `QUORATE_SERVER=host:port` on a real service.
//!
//! You will see (among other lines; the tokens differ):
//! ```text
//! P1 joined       ordinal  1 active token 6 (join)
//! P1 disconnected ordinal -1 disconnected (deadline_passed)
//! P2 active       ordinal  1 active token 10 (expired)
//! P1 reconnected  ordinal  3 standby (session_lost)
//! ```

use quorate::advisory::{Advisory, Event};
use quorate::testing::{Cable, Service};
use quorate::{Client, Group, JoinOptions, SessionOptions};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let own = Service::start().await;
    let address = std::env::var("QUORATE_SERVER").unwrap_or_else(|_| own.address());
    let cable = Cable::to(&address).await;
    let mut first = member(&cable.client(), "P1").await?;
    let others = Client::connect(&address)?;
    let mut second = member(&others, "P2").await?;
    let _third = member(&others, "P3").await?;

    until(&mut first, Event::Joined).await;
    cable.freeze(); // The network dies without a word: only P1's own clock can tell it.
    until(&mut first, Event::Disconnected).await;
    assert_eq!((first.ordinal(), first.token()), (Some(-1), None));
    until(&mut second, Event::Active).await;
    cable.thaw();
    until(&mut first, Event::Reconnected).await;
    Ok(())
}

async fn member(client: &Client, name: &str) -> Result<Group, quorate::Error> {
    let session = client.session(SessionOptions::with_ttl(Duration::from_secs(1))).await?;
    session.join("example/pair", JoinOptions::default().name(name)).await
}

/// Prints each advisory until one of this kind has come.
async fn until(group: &mut Group, event: Event) {
    while let Some(told) = group.next().await {
        print(&told);
        if told.event == event {
            return;
        }
    }
}

fn print(told: &Advisory) {
    let ordinal = told.ordinal.map_or("-".into(), |ordinal| ordinal.to_string());
    let role = told.role.map_or("gone".into(), |role| role.to_string());
    let token = told.token.map_or(String::new(), |token| format!(" token {token}"));
    println!("{} {:12} ordinal {ordinal:>2} {role}{token} ({})", told.name, told.event.as_str(), told.reason);
}
