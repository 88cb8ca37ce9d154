//! Where the service is: `host:port` or a URL, several of them with commas, and how a tool reaches it.

use super::exit::{Code, Failure};
use quorate::proto::StatusRequest;
use quorate::proto::operator_client::OperatorClient;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint, Uri};

/// How long one address may take to answer. Long enough for a far network, short enough for a person.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The port where none is given.
const PORT: u16 = 7420;

/// The addresses of a service, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers(Vec<Server>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    host: String,
    port: u16,
}

impl Servers {
    /// The addresses as `host:port`, in order.
    pub fn addresses(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(Server::to_string)
    }

    /// Each address on its own, in order.
    pub fn each(&self) -> impl Iterator<Item = Self> {
        self.0.iter().map(|one| Self(vec![one.clone()]))
    }

    /// Connects to the first address at which a service answers. That a port is open says nothing: whatever listens
    /// there may be stopped, or something else, and the next address must get its turn.
    ///
    /// # Errors
    /// [`Code::Unreachable`] with each address and why it does not answer.
    pub async fn connect(&self) -> Result<Channel, Failure> {
        let mut reasons = Vec::new();
        for server in &self.0 {
            let endpoint = server.endpoint()?;
            match tokio::time::timeout(ANSWER_TIMEOUT, answering(&endpoint)).await {
                Ok(Ok(channel)) => return Ok(channel),
                Ok(Err(why)) => reasons.push(format!("{server} ({why})")),
                Err(_) => reasons.push(format!("{server} (no answer within {} s)", ANSWER_TIMEOUT.as_secs())),
            }
        }
        Err(Failure::new(
            Code::Unreachable,
            format!(
                "no service answers at {}; start one with `quorate serve`, or name another with --server or \
                 QUORATE_SERVER",
                reasons.join(", "),
            ),
        ))
    }

    /// Connects to the plain calls for tools.
    ///
    /// # Errors
    /// As [`Servers::connect`].
    pub async fn operator(&self) -> Result<OperatorClient<Channel>, Failure> {
        Ok(OperatorClient::new(self.connect().await?).max_decoding_message_size(REPLY_BYTES_MAX))
    }
}

/// The longest reply that a tool takes: a list of 1,000 names of 255 bytes with their holders has 2 MiB.
const REPLY_BYTES_MAX: usize = 64 << 20;

impl Server {
    fn endpoint(&self) -> Result<Endpoint, Failure> {
        let endpoint = Endpoint::from_shared(format!("http://{self}"))
            .map_err(|error| Failure::usage(format!("{self} is no address: {error}")))?;
        endpoint
            .tcp_nodelay(true)
            .user_agent(concat!("quorate/", env!("CARGO_PKG_VERSION")))
            .map_err(|error| Failure::failed(error.to_string()))
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.addresses().collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Servers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let servers = text.split(',').map(str::trim).filter(|one| !one.is_empty());
        let servers: Vec<Server> = servers.map(str::parse).collect::<Result<_, _>>()?;
        if servers.is_empty() {
            return Err("an address is host:port or http://host:port".into());
        }
        Ok(Self(servers))
    }
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{text:?} {why}; an address is host:port or http://host:port");
        if text.starts_with("https:") {
            return Err(wrong("asks for TLS, which this release does not speak"));
        }
        let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let uri: Uri = format!("http://{bare}").parse().map_err(|_| wrong("is no address"))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host.is_empty() || uri.path() != "/" {
            return Err(wrong("is no address"));
        }
        let after = uri.authority().map_or("", |authority| authority.as_str());
        let has_port = after.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        match uri.port_u16() {
            Some(port) => Ok(Self { host, port }),
            None if has_port => Err(wrong("has no valid port")),
            None => Ok(Self { host, port: PORT }),
        }
    }
}

/// A connection over which a service has answered a first, cheap question.
async fn answering(endpoint: &Endpoint) -> Result<Channel, String> {
    let channel = endpoint.connect().await.map_err(|error| innermost(&error))?;
    match OperatorClient::new(channel.clone()).status(StatusRequest {}).await {
        Ok(_) => Ok(channel),
        Err(status) if matches!(status.code(), tonic::Code::ResourceExhausted | tonic::Code::Unavailable) => {
            Err(status.message().to_owned())
        }
        Err(_) => Err("what listens there is no service of quorate".into()),
    }
}

/// The last cause of an error, which is what the operating system said.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let text = cause.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, String> {
        text.parse::<Servers>().map(|servers| servers.to_string())
    }

    #[test]
    fn addresses_come_in_every_form() {
        assert_eq!(parse("127.0.0.1:7420").unwrap(), "127.0.0.1:7420");
        assert_eq!(parse("http://a:1/, b:2").unwrap(), "a:1,b:2");
        assert_eq!(parse("localhost").unwrap(), "localhost:7420");
        assert_eq!(parse("[::1]:5,[::1]").unwrap(), "[::1]:5,[::1]:7420");
    }

    #[test]
    fn what_is_no_address_is_said() {
        assert!(parse("https://a:1").unwrap_err().contains("TLS"));
        assert!(parse("a:99999").unwrap_err().contains("no valid port"));
        assert!(parse("a:b:c").unwrap_err().contains("is no address"));
        assert!(parse("http://a:1/path").unwrap_err().contains("is no address"));
        assert!(parse(" , ").unwrap_err().contains("host:port"));
    }
}
