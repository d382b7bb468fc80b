//! Answers as they come: events of server-sent streams, or lines of JSON.

use std::convert::Infallible;
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::error::ApiError;
use crate::generation::{Choice, Piece};

/// A dialect's stream: turns pieces into frames, each appended to `out`.
pub trait Form: Send + 'static {
    /// Before the first piece.
    fn begin(&mut self, _choices: &[Choice], _out: &mut String) {}
    /// A piece of answer `index`.
    fn piece(&mut self, index: usize, piece: Piece, choice: &Choice, out: &mut String);
    /// Behind the last piece of all answers.
    fn end(&mut self, _out: &mut String) {}
    /// A failure behind the first byte; nothing follows.
    fn fail(&mut self, e: &ApiError, out: &mut String);
    /// What keeps a silent connection alive.
    fn ping(&self) -> &'static str {
        ":\n\n"
    }
}

/// Appends an event of a name, or without one.
pub fn event(name: Option<&str>, data: &Value, out: &mut String) {
    if let Some(name) = name {
        out.push_str("event: ");
        out.push_str(name);
        out.push('\n');
    }
    out.push_str("data: ");
    out.push_str(&data.to_string());
    out.push_str("\n\n");
}

/// Frames that wait for a slow client before the answer waits, too.
const AHEAD: usize = 64;

/// A stream of server-sent events.
pub fn sse(choices: Vec<Choice>, form: impl Form, ping: Option<Duration>) -> Response {
    respond(choices, form, ping, "text/event-stream")
}

/// A stream of lines.
pub fn lines(choices: Vec<Choice>, form: impl Form) -> Response {
    respond(choices, form, None, "application/x-ndjson")
}

fn respond(choices: Vec<Choice>, form: impl Form, ping: Option<Duration>, kind: &'static str) -> Response {
    let (sender, receiver) = mpsc::channel::<Bytes>(AHEAD);
    tokio::spawn(async move {
        tokio::select! {
            () = write(choices, form, ping, &sender) => {}
            // The client has gone: the choices are dropped, and with them their requests.
            () = sender.closed() => {}
        }
    });
    let body = Body::from_stream(ReceiverStream::new(receiver).map(Ok::<_, Infallible>));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

async fn write(
    mut choices: Vec<Choice>,
    mut form: impl Form,
    ping: Option<Duration>,
    sender: &mpsc::Sender<Bytes>,
) {
    let mut out = String::new();
    form.begin(&choices, &mut out);
    loop {
        if !out.is_empty() && sender.send(Bytes::from(std::mem::take(&mut out))).await.is_err() {
            return;
        }
        let next = next_of(&mut choices);
        let next = match ping {
            None => next.await,
            Some(ping) => match tokio::time::timeout(ping, next).await {
                Ok(next) => next,
                Err(_) => {
                    out.push_str(form.ping());
                    continue;
                }
            },
        };
        match next {
            Some((i, Ok(piece))) => form.piece(i, piece, &choices[i], &mut out),
            Some((_, Err(e))) => {
                form.fail(&e, &mut out);
                break;
            }
            None => {
                form.end(&mut out);
                break;
            }
        }
    }
    let _ = sender.send(Bytes::from(out)).await;
}

/// The next piece of any answer; `None` when all have ended.
async fn next_of(choices: &mut [Choice]) -> Option<(usize, Result<Piece, ApiError>)> {
    std::future::poll_fn(|cx| {
        let mut open = false;
        for (i, choice) in choices.iter_mut().enumerate() {
            match choice.poll(cx) {
                Poll::Ready(Some(piece)) => return Poll::Ready(Some((i, piece))),
                Poll::Ready(None) => {}
                Poll::Pending => open = true,
            }
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    })
    .await
}
