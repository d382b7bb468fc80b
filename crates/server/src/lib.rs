//! The wire: firth over HTTP, in the shapes of OpenAI, Anthropic, llama-server and Ollama. Every dialect is a
//! translation to and from one request of the server's own ([`generation`]).
#![forbid(unsafe_code)]

mod anthropic;
mod app;
mod body;
mod completions;
mod conversation;
mod embeddings;
mod error;
mod fields;
pub mod generation;
mod info;
mod metrics;
mod native;
mod ollama;
mod openai_chat;
mod openapi;
mod record;
mod rerank;
mod responses;
mod shape;
mod slots;
mod stream;
mod structured;
mod tokens;

use std::future::Future;
use std::sync::Arc;

use tokio::net::TcpListener;

pub use app::{App, ServerOptions, router};
pub use error::ApiError;
pub use record::{Record, Replayed, replay};

/// Answers on a socket until `shutdown`; then no connection is taken any more, and what is under way is finished within
/// the grace of the options.
///
/// # Errors
/// The socket fails.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (told, mut ending) = tokio::sync::watch::channel(());
    let grace = app.options.grace;
    let served = axum::serve(listener, router(app.clone())).with_graceful_shutdown(async move {
        shutdown.await;
        let _ = told.send(());
    });
    let late = async {
        let _ = ending.changed().await;
        tokio::time::sleep(grace).await;
    };
    let ended = tokio::select! {
        ended = served => ended,
        () = late => Ok(()),
    };
    let service = app.service.clone();
    let _ = tokio::task::spawn_blocking(move || service.stop(std::time::Duration::ZERO)).await;
    ended
}
