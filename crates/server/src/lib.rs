//! The wire: firth over HTTP, in the shapes of OpenAI, Anthropic, llama-server and Ollama. Every dialect is a
//! translation to and from one request of the server's own ([`generation`]).
#![forbid(unsafe_code)]

mod anthropic;
mod app;
mod body;
mod completions;
mod conversation;
mod door;
mod embeddings;
mod error;
mod fields;
pub mod generation;
mod info;
mod keep;
mod limits;
mod metrics;
mod native;
mod ollama;
mod openai_chat;
mod openapi;
mod page;
mod record;
mod rerank;
mod responses;
mod shape;
mod slots;
mod stream;
mod structured;
mod tokens;

use std::future::Future;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use axum_server::{Handle, Server};

pub use app::{App, ServerOptions};
pub use door::Door;
pub use error::ApiError;
pub use fields::ThoughtLimit;
pub use keep::keep;
pub use record::{Record, Replayed, replay};

/// Time for a connection to agree on its keys.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How connections are encrypted.
#[derive(Clone)]
pub struct Tls(RustlsConfig);

impl Tls {
    /// With a chain of certificates and a private key, both in PEM.
    ///
    /// # Errors
    /// A file that cannot be read, or holds no certificate, no key, or a key of another certificate.
    pub async fn from_files(certificates: &Path, key: &Path) -> std::io::Result<Tls> {
        Ok(Tls(RustlsConfig::from_pem_file(certificates, key).await?))
    }
}

/// Answers on a socket until `shutdown`; then no connection is taken any more, and what is under way is finished within
/// `grace`.
///
/// # Errors
/// The socket fails.
pub async fn serve(
    listener: TcpListener,
    door: Arc<Door>,
    tls: Option<Tls>,
    grace: Duration,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let handle = Handle::new();
    let told = handle.clone();
    let ending = tokio::spawn(async move {
        shutdown.await;
        told.graceful_shutdown(Some(grace));
    });
    listener.set_nonblocking(true)?;
    let answers = door.clone().router().into_make_service();
    // Tokens are small, and each is to go out at once.
    let server: Server<std::net::SocketAddr> = axum_server::from_tcp(listener)?.handle(handle);
    let ended = match tls {
        None => server.acceptor(NoDelayAcceptor::new()).serve(answers).await,
        Some(Tls(config)) => {
            let acceptor = RustlsAcceptor::new(config).handshake_timeout(HANDSHAKE);
            server.acceptor(acceptor.acceptor(NoDelayAcceptor::new())).serve(answers).await
        }
    };
    ending.abort();
    if let Some(app) = door.app() {
        let service = app.service.clone();
        let _ = tokio::task::spawn_blocking(move || service.stop(Duration::ZERO)).await;
    }
    ended
}
